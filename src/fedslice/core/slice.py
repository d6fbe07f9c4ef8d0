"""The slice: which coordinates of the global model each client of a chunk holds.

For every parameter a slice gives, per dimension, the positions held, or all of them; a parameter it does not
name is not held at all. Embedding rows are ``(rows, all)``, a narrow layer ``(first outputs, first inputs)``,
an uploaded channel ``(chosen outputs, all)``, a private layer is absent. Two operations carry every method:
``gather`` reads a slice out of a model, ``scatter_add`` adds values on a slice into an accumulator.

One object describes a whole chunk of clients: values have a leading client axis, and clients that hold fewer
positions than others are padded. Padding is never read by a model and never added to anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

Values = dict[str, Tensor]
Shapes = Mapping[str, torch.Size]


class Axis:
    """The positions that each client holds along one dimension: ascending, padded by repeating the last.

    The members may be given as a function: their number, which is all that the wire cost needs, is then known
    without listing them. ``first`` says which clients hold the first positions: the number then names them.
    """

    def __init__(self, counts: Tensor, ids: Tensor | Callable[[], Tensor], first: Tensor | None = None):
        self.counts = counts
        self.first = torch.zeros_like(counts, dtype=torch.bool) if first is None else first
        self._ids = ids

    @cached_property
    def ids(self) -> Tensor:
        """[clients, longest]: the held positions."""
        return self._ids() if callable(self._ids) else self._ids

    @property
    def flat(self) -> Tensor:
        """The members without padding, one client's after the other's."""
        return self.ids[self.mask]

    @cached_property
    def mask(self) -> Tensor:
        """[clients, longest]: true where ``ids`` is a member and not padding."""
        places = torch.arange(self.ids.shape[1], device=self.counts.device)
        return places < self.counts[:, None]

    def read(self, ids: Tensor) -> None:
        """Set the members of an axis of which only the number was known."""
        self._ids = ids

    @classmethod
    def from_flat(cls, ids: Tensor, counts: Tensor) -> Axis:
        """From the clients' sorted positions laid end to end."""
        longest = int(counts.max()) if len(counts) else 0
        starts = counts.cumsum(0) - counts
        places = torch.arange(longest, device=ids.device).clamp(max=(counts[:, None] - 1).clamp(min=0))
        index = (starts[:, None] + places).clamp(max=max(len(ids) - 1, 0))
        padded = ids[index] if len(ids) else ids.new_zeros(len(counts), longest)
        return cls(counts, padded)

    @classmethod
    def unique(cls, ids: Tensor) -> tuple[Axis, Tensor]:
        """The distinct positions in each row of ``ids`` [clients, any], and where each of ``ids`` stands among them."""
        ordered, source = ids.sort(dim=1)
        new = torch.ones_like(ordered, dtype=torch.bool)
        torch.ne(ordered[:, 1:], ordered[:, :-1], out=new[:, 1:])
        counts, place = new.sum(1), new.cumsum(1) - 1
        padded = ordered[:, -1:].repeat(1, int(counts.max()))
        axis = cls(counts, padded.scatter_(1, place, ordered))
        return axis, torch.empty_like(place).scatter_(1, source, place)

    @classmethod
    def from_mask(cls, held: Tensor) -> Axis | None:
        """From a boolean [clients, size]; ``None``, which means all, when every client holds every position."""
        if bool(held.all()):
            return None
        counts = held.sum(1)
        return cls.from_flat(held.nonzero()[:, 1], counts)

    def union(self, other: Axis) -> Axis:
        """The positions that either axis holds, client by client."""
        extent = 1 + max((int(axis.ids.max()) for axis in (self, other) if axis.ids.numel()), default=0)
        first = torch.arange(len(self.counts), device=self.counts.device)[:, None] * extent
        named = torch.cat([(axis.ids + first)[axis.mask] for axis in (self, other)]).unique()
        return Axis.from_flat(named % extent, torch.bincount(named // extent, minlength=len(self.counts)))

    def positions_of(self, ids: Tensor) -> Tensor:
        """Return the place of each of ``ids`` [clients, any], all of them members, among the client's positions."""
        return torch.searchsorted(self.ids, ids).clamp(max=max(self.ids.shape[1] - 1, 0))

    def contains(self, ids: Tensor) -> Tensor:
        """Return whether each of ``ids`` [clients, any] is a member."""
        if not self.ids.shape[1]:
            return torch.zeros_like(ids, dtype=torch.bool)
        place = torch.searchsorted(self.ids, ids).clamp(max=self.ids.shape[1] - 1)
        return (self.ids.gather(1, place) == ids) & self.mask.gather(1, place)


Axes = tuple[Axis | None, ...]


class Line(NamedTuple):
    """A parameter's values in one line per client, padding among them."""

    values: Tensor  # [clients, places], zero on padding
    held: Tensor | None  # the same shape, false on padding; ``None`` if none is padded
    counts: Tensor  # [clients]: number of values of each client's own

    def positions(self) -> Tensor:
        """[clients, places] or [1, places]: each value's number among the client's own."""
        if self.held is None:
            return torch.arange(self.values.shape[1], device=self.values.device)[None]
        return self.held.cumsum(1) - 1


class Slice:
    """The coordinates that each client of a chunk holds, as indices per parameter and dimension."""

    def __init__(self, clients: int, shapes: Shapes, axes: Mapping[str, Axes]):
        self.clients = clients
        self.shapes = shapes
        self.axes = dict(axes)

    @classmethod
    def whole(cls, clients: int, shapes: Shapes, names: Iterable[str] | None = None) -> Slice:
        """All coordinates of the named parameters (of every parameter by default)."""
        chosen = shapes if names is None else names
        return cls(clients, shapes, {name: (None,) * len(shapes[name]) for name in chosen})

    def only(self, names: Iterable[str]) -> Slice:
        """The same slice of the named parameters, and of no other."""
        return Slice(self.clients, self.shapes, {name: self.axes[name] for name in names})

    def replace(self, changes: Mapping[str, Axis | None]) -> Slice:
        """The same slice with other positions along the first dimension of the named parameters it holds."""
        axes = {n: (changes[n], *a[1:]) if n in changes else a for n, a in self.axes.items()}
        return Slice(self.clients, self.shapes, axes)

    def gather(self, model: Mapping[str, Tensor]) -> Values:
        """Read the slice: values with a leading client axis. Parameters held in full are views, not copies.

        Parameters may have more dimensions than the slice knows, which are then read in full.
        """
        out: Values = {}
        for name, axes in self.axes.items():
            lead = _sliced(axes)
            if lead:
                out[name] = model[name].flatten(0, lead - 1)[self._positions(name, lead)]
            else:
                out[name] = model[name].expand(self.clients, *model[name].shape)
        return out

    def scatter_add(self, accumulator: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        """Add every client's values to the coordinates they belong to, in place."""
        for name, axes in self.axes.items():
            lead = _sliced(axes)
            if not lead:
                accumulator[name].add_(values[name].sum(0))
                continue
            index, part = self._positions(name, lead), self.clear(name, values[name])
            target = accumulator[name].view(-1, *self.shapes[name][lead:])
            target.index_add_(0, index.flatten(), part.flatten(0, lead))

    def held(self, name: str) -> Tensor | None:
        """Boolean [clients, positions…] over the sliced dimensions, false on padding; ``None`` if none is padded."""
        axes = self.axes[name][: _sliced(self.axes[name])]
        masks = [(dim, axis.mask) for dim, axis in enumerate(axes) if axis is not None]
        if all(bool(mask.all()) for _, mask in masks):
            return None
        sizes = [self.shapes[name][d] if a is None else a.ids.shape[1] for d, a in enumerate(axes)]
        out = torch.ones(self.clients, *sizes, dtype=torch.bool, device=masks[0][1].device)
        for dim, mask in masks:
            out &= mask.view(self.clients, *[-1 if d == dim else 1 for d in range(len(axes))])
        return out

    def inside(self, outer: Slice, name: str) -> Tensor:
        """Return whether each coordinate of ``outer`` is in this slice: boolean, broadcasts over its values."""
        rank = len(self.shapes[name])
        out = torch.ones(self.clients, *[1] * rank, dtype=torch.bool)
        if name not in self.axes:
            return ~out
        for dim, (mine, theirs) in enumerate(zip(self.axes[name], outer.axes[name], strict=True)):
            if mine is None:
                continue
            every = torch.arange(self.shapes[name][dim], device=mine.ids.device).expand(self.clients, -1)
            flags = mine.contains(every.contiguous() if theirs is None else theirs.ids)
            out = out.to(flags.device) & flags.view(self.clients, *[-1 if d == dim else 1 for d in range(rank)])
        return out

    def within(self, outer: Slice) -> bool:
        """Whether ``outer`` contains this slice. A dimension held in full is only inside of one held in full."""
        for name, axes in self.axes.items():
            for mine, theirs in zip(axes, outer.axes[name], strict=True):
                if theirs is None or mine is theirs:
                    continue
                if mine is None or not bool((theirs.contains(mine.ids) | ~mine.mask).all()):
                    return False
        return True

    def pick(self, values: Mapping[str, Tensor], outer: Slice) -> Values:
        """This slice's part of values that sit on ``outer``, a slice that contains it."""
        out: Values = {}
        for name, axes in self.axes.items():
            part = values[name]
            for dim, (mine, theirs) in enumerate(zip(axes, outer.axes[name], strict=True)):
                if mine is None or mine is theirs:
                    continue
                index = mine.ids if theirs is None else theirs.positions_of(mine.ids)
                shape = [-1 if d == dim else 1 for d in range(part.dim() - 1)]
                sizes = [mine.ids.shape[1] if d == dim else s for d, s in enumerate(part.shape[1:])]
                part = part.gather(dim + 1, index.view(self.clients, *shape).expand(self.clients, *sizes))
            out[name] = part
        return out

    def spread(self, name: str, values: Tensor) -> Tensor:
        """A parameter's values at their places in the whole of it, for each client; zero where it holds nothing."""
        lead = _sliced(self.axes[name])
        if not lead:
            return values
        index, part = self._positions(name, lead).flatten(1), self.clear(name, values).flatten(1, lead)
        shape, rest = self.shapes[name][:lead], part.shape[2:]
        out = values.new_zeros(self.clients, math.prod(shape), *rest)
        place = index.view(*index.shape, *[1] * len(rest))
        return out.scatter_add_(1, place.expand_as(part), part).view(self.clients, *shape, *rest)

    def clear(self, name: str, values: Tensor) -> Tensor:
        """A parameter's values with zeros on padding."""
        held = self.held(name)
        return values if held is None else values.masked_fill(~_like(held, values), 0)

    def one(self, client: int) -> Slice:
        """One client's slice, without padding; axes that parameters share are shared still."""
        axes: dict[Axis, Axis] = {}
        for axis in (axis for held in self.axes.values() for axis in held if axis is not None):
            count = axis.counts[client : client + 1]
            ids = axis.ids[client : client + 1, : int(count)]
            axes.setdefault(axis, Axis(count, ids, axis.first[client : client + 1]))
        held = {n: tuple(None if axis is None else axes[axis] for axis in own) for n, own in self.axes.items()}
        return Slice(1, self.shapes, held)

    def expand(self, values: Values, on: Slice, rest: float = 0) -> Values:
        """Values of one client laid out on a slice that contains this one, with ``rest`` elsewhere."""
        whole = {name: self.spread(name, value - rest if rest else value) for name, value in values.items()}
        out = on.pick(whole, Slice.whole(1, on.shapes, whole))
        return {name: value + rest if rest else value for name, value in out.items()}

    def sizes(self, name: str) -> list[int]:
        """Number of positions that a chunk's values of a parameter have along each dimension."""
        held = zip(self.shapes[name], self.axes[name], strict=True)
        return [extent if axis is None else axis.ids.shape[1] for extent, axis in held]

    def line(self, name: str, values: Tensor) -> Line:
        """A parameter's values [clients, ...] in one line per client."""
        held = self.held(name)
        if held is not None:
            held = _like(held, values).expand_as(values).reshape(self.clients, -1)
        flat = values.reshape(self.clients, -1)
        counts = self.only([name]).numbers().to(values.device)
        return Line(flat if held is None else flat.masked_fill(~held, 0), held, counts)

    def sums(self, name: str, values: Tensor) -> Tensor:
        """[clients]: the sum of a parameter's values, in float64."""
        return self.line(name, values).values.sum(1, dtype=torch.float64)

    def own(self, name: str, client: int) -> tuple[slice, ...]:
        """Return the place of a client's own values in those of a chunk; the rest is padding."""
        return tuple(slice(None if axis is None else int(axis.counts[client])) for axis in self.axes[name])

    def numbers(self) -> Tensor:
        """Return the number of values that each client holds [clients]."""
        alike = 0  # values of parameters of which all clients hold the same number
        own: list[Tensor] = []
        for name, axes in self.axes.items():
            size: int | Tensor = 1
            for extent, axis in zip(self.shapes[name], axes, strict=True):
                size = size * (extent if axis is None else axis.counts.cpu())
            if isinstance(size, int):
                alike += size
            else:
                own.append(size)
        return sum(own, torch.full((self.clients,), alike, dtype=torch.int64))

    def _positions(self, name: str, lead: int) -> Tensor:
        """[clients, positions…]: linear indices into the first ``lead`` dimensions, flattened."""
        axes, shape = self.axes[name][:lead], self.shapes[name]
        index = torch.zeros(self.clients, *[1] * lead, dtype=torch.int64, device=_device(axes))
        for dim, axis in enumerate(axes):
            ids = torch.arange(shape[dim], device=index.device)[None] if axis is None else axis.ids
            ids = ids.view(len(ids), *[-1 if d == dim else 1 for d in range(lead)])
            index = index + ids * math.prod(shape[dim + 1 : lead])
        return index


def _sliced(axes: Axes) -> int:
    """Return the number of leading dimensions that must be indexed to reach every sliced one."""
    return max((dim + 1 for dim, axis in enumerate(axes) if axis is not None), default=0)


def _device(axes: Axes) -> torch.device:
    return next((axis.counts.device for axis in axes if axis is not None), torch.device("cpu"))


def _like(mask: Tensor, values: Tensor) -> Tensor:
    """A mask over the leading dimensions of ``values``, with ones for the others."""
    return mask.view(*mask.shape, *[1] * (values.dim() - mask.dim()))
