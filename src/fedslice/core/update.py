"""Changes of a model: of each client of a chunk (:class:`Update`), and of the server's model (:data:`Step`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedslice.core.entries import OnSlice, View, per_client
from fedslice.core.slice import Shapes, Slice, Values


@dataclass(frozen=True)
class RowDelta:
    """A change of one parameter: values to add on some of its rows, or on all of it.

    Args:
        rows: Ascending, distinct row numbers, or ``None`` for all rows.
        values: The values [rows, ...], or of the parameter's shape. A tensor without dimensions stands for one value
            everywhere.
    """

    rows: Tensor | None
    values: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> RowDelta:
        """Return the same rows with other values."""
        return RowDelta(self.rows, change(self.values))

    def scaled(self, factor: Tensor) -> RowDelta:
        """Return the values times a factor per row [rows]."""
        return RowDelta(self.rows, self.values * factor.view(-1, *[1] * (self.values.dim() - 1)))

    def dense(self, shape: torch.Size) -> Tensor:
        """Return the values on all rows, with zeros where there are none."""
        if self.rows is None:
            return self.values
        out = self.values.new_zeros(shape[0], *self.values.shape[1:])
        return out.index_add_(0, self.rows, self.values)

    def add_to(self, parameter: Tensor, alpha: float = 1.0) -> None:
        """Add the values, times ``alpha``, to a parameter in place."""
        if self.rows is None:
            parameter.add_(self.values, alpha=alpha)
        else:
            parameter.index_add_(0, self.rows, self.values, alpha=alpha)

    def merge(self, other: RowDelta, shape: torch.Size) -> RowDelta:
        """Return the sum of both changes of a parameter of this shape."""
        if self.rows is None or other.rows is None:
            return RowDelta(None, self.dense(shape) + other.dense(shape))
        rows, place = torch.unique(torch.cat([self.rows, other.rows]), return_inverse=True)
        values = self.values.new_zeros(len(rows), *self.values.shape[1:])
        values.index_add_(0, place[: len(self.rows)], self.values)
        values.index_add_(0, place[len(self.rows) :], other.values)
        return RowDelta(rows, values)

    def at(self, rows: Tensor | None, shape: torch.Size) -> Tensor:
        """Return the values on the given rows, all of which this change covers."""
        if self.rows is None or self.values.dim() == 0:
            return self.values if rows is None or self.values.dim() == 0 else self.values[rows]
        return self.dense(shape) if rows is None else self.values[torch.searchsorted(self.rows, rows)]


# A change of the model by parameter. A parameter that is absent does not change.
Step = dict[str, RowDelta]


def flatten(step: Step, shapes: Shapes) -> Tensor:
    """Return a change of the model as one new vector, parameter after parameter; zeros where it says nothing."""
    like = next((delta.values for delta in step.values()), torch.zeros(0))
    parts = [
        step[name].dense(shape).expand(shape) if name in step else like.new_zeros(shape)
        for name, shape in shapes.items()
    ]
    return torch.cat([part.flatten() for part in parts])


def split(flat: Tensor, shapes: Shapes) -> Values:
    """Return parameters out of one vector, or out of the rows of a matrix, without a copy."""
    parts = flat.split([shape.numel() for shape in shapes.values()])
    return {n: p.view(*s, *flat.shape[1:]) for (n, s), p in zip(shapes.items(), parts, strict=True)}


@dataclass(frozen=True)
class Uniform:
    """A change that every client makes in one direction, each by its own amount: ``-amount * direction``.

    Args:
        amount: [clients].
        direction: The direction, of which only the coordinates that are asked for are read.
    """

    amount: Tensor
    direction: View | OnSlice


@dataclass(frozen=True)
class Update:
    """The changes of a chunk of clients.

    Args:
        slice: The coordinates that are exchanged. They set the wire cost and who covers a coordinate.
        layout: Where ``values`` sit. It may leave out coordinates of ``slice`` whose change is zero, or ``uniform``.
        values: Per parameter [clients, ...] on the layout.
        uniform: The part of the change that is known without values, on all of ``slice``.
    """

    slice: Slice
    layout: Slice
    values: Values
    uniform: Uniform | None = None

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.slice.clients

    def finite(self) -> Tensor:
        """Return which clients' values have a finite square, so that nothing overflows when it is summed [clients]."""
        if not self.values:
            return torch.ones(self.clients, dtype=torch.bool)
        norms = [torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1) for value in self.values.values()]
        return torch.isfinite(torch.stack([norm.square() for norm in norms]).amax(0)).cpu()

    def masked(self, keep: Tensor) -> Update:
        """Return the update with zeros for all clients that are not in ``keep`` [clients]."""
        if bool(keep.all()):
            return self
        values = {n: v.masked_fill(~per_client(keep.to(v.device), v), 0) for n, v in self.values.items()}
        uniform = self.uniform and replace(self.uniform, amount=self.uniform.amount * keep)
        return replace(self, values=values, uniform=uniform)

    def only(self, names: Iterable[str]) -> Update:
        """Return the update of some parameters alone."""
        kept = list(names)
        values = {name: self.values[name] for name in kept}
        return replace(self, slice=self.slice.only(kept), layout=self.layout.only(kept), values=values)

    def one(self, client: int, on: Slice) -> Values:
        """Return one client's change on all of ``on``, without padding, with a leading axis of one."""
        own = {name: self.values[name][client][self.layout.own(name, client)][None] for name in on.axes}
        sent = on.one(client)
        values = self.layout.only(on.axes).one(client).expand(own, sent)
        if self.uniform is not None:
            names = [name for name in self.beyond() if name in values]
            for name, direction in self.uniform.direction.at(sent.only(names)).items():
                values[name] = values[name] - self.uniform.amount[client].to(direction) * direction
        return values

    def beyond(self) -> list[str]:
        """Return the parameters of which the slice has more than the layout."""
        held = self.layout.axes.items()
        return [name for name, axes in held if axes and axes[0] is not self.slice.axes[name][0]]
