"""The updates of a round's cohort, kept until the round ends, and read again by rows of one parameter.

They stay in memory up to a limit; further ones go to files that are mapped, not read. What is read at a time is
bounded too, so a round needs memory for the limit, one parameter and one chunk of rows, however many clients took part.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedslice.core.entries import View
from fedslice.core.errors import UserError
from fedslice.core.slice import Axis, Slice
from fedslice.core.update import RowDelta, Step, Update
from fedslice.room import free_disk, gib

_COPIES = 8  # of a chunk's values that a merge may need at a time: flags, a sorted copy with its order, results


class Stack(NamedTuple):
    """Updates of the clients of a round, of some rows of a parameter.

    Args:
        rows: The row numbers [rows].
        values: The updates [clients, rows, ...]; zero where a client did not send the coordinate.
        present: Which clients sent which coordinate, of the shape of ``values``.
        weights: The clients' weights [clients], in float64.
    """

    rows: Tensor
    values: Tensor
    present: Tensor
    weights: Tensor


Merge = Callable[[str, Stack], Tensor]


class Cohort:
    """All updates of a round.

    Args:
        merge: The merged update [rows, ...] of a parameter's rows.
        limit: Bytes of updates that are kept in memory.
        folder: Where the rest goes, ``None`` for the directory of temporary files.
        label: The part, for errors.
    """

    def __init__(self, merge: Merge, limit: float, folder: Path | None, label: str):
        self.clients = 0
        self.weight = 0.0
        self._merge = merge
        self._limit = limit
        self._folder = folder
        self._label = label
        self._kept: list[tuple[Update, Tensor]] = []
        self._in_memory = 0

    def add(self, update: Update, weights: Tensor) -> None:
        """Take in a chunk of clients with their weights [clients]; a weight of zero leaves a client out."""
        weights = weights.double().cpu()
        self.clients += int((weights > 0).sum())
        self.weight += float(weights.sum())
        if not bool((weights > 0).any()):
            return
        size = sum(value.numel() * value.element_size() for value in update.values.values())
        if self._in_memory + size > self._limit:
            values = {name: self._spilled(value) for name, value in update.values.items()}
            update = replace(update, values=values)
        else:
            self._in_memory += size
        self._kept.append((update, weights))

    def mean(self) -> Step:
        """Return the merged update. Coordinates that nobody sent, and rows that nobody trained, have none, or zero."""
        names = dict.fromkeys(name for update, _ in self._kept for name in update.slice.axes)
        return {name: self._merged(name) for name in names}

    def _merged(self, name: str) -> RowDelta:
        first = next(update for update, _ in self._kept if name in update.slice.axes)
        shape, like = first.slice.shapes[name], first.values[name]
        rows, size = self._rows(name), shape[0] if shape else 1
        every = torch.arange(size) if rows is None else rows
        out = like.new_zeros(len(every), *shape[1:])
        at = 0
        for some in self._chunks(every, shape, like):
            out[at : at + len(some)] = self._checked(name, self._stack(name, some)).to(out)
            at += len(some)
        return RowDelta(None if rows is None else rows.to(out.device), out if shape else out[0])

    def _checked(self, name: str, stack: Stack) -> Tensor:
        """Return the result of ``merge`` for a stack where somebody sent something; zero elsewhere."""
        merged, shape = self._merge(name, stack), stack.values.shape[1:]
        wrong = f"values of shape {tuple(merged.shape)}" if merged.shape != shape else ""
        if not wrong:
            merged = torch.where(stack.present.any(0), merged, torch.zeros_like(merged))
            wrong = "" if bool(torch.isfinite(merged).all()) else "NaN or infinity"
        if wrong:
            raise UserError(
                f"combine={self._label}: merge returned {wrong} for {len(stack.rows)} rows of {name!r}, expected "
                f"finite values of shape {tuple(shape)}."
            )
        return merged

    def _rows(self, name: str) -> Tensor | None:
        """The rows that somebody trained, or that drifted; all of them where a client has the whole parameter."""
        found: list[Tensor] = []
        for update, weights in self._kept:
            if name not in update.slice.axes:
                continue
            part = update.slice if update.uniform is not None else update.layout
            axis = part.axes[name][0] if part.axes[name] else None
            if axis is None:
                return None
            found.append(axis.ids[axis.mask & (weights > 0).to(axis.mask.device)[:, None]].cpu())
        return torch.cat(found).unique()  # type: ignore[no-any-return]

    def _chunks(self, rows: Tensor, shape: torch.Size, like: Tensor) -> Iterator[Tensor]:
        row = shape[1:].numel() * like.element_size() * max(self.clients, 1) * _COPIES
        if len(rows):
            yield from rows.split(max(1, int(self._limit // row)))

    def _stack(self, name: str, rows: Tensor) -> Stack:
        values, present, weights = [], [], []
        for update, weight in self._kept:
            if name not in update.slice.axes:
                continue
            used = (weight > 0).nonzero()[:, 0]
            own, sent = read_rows(update, name, rows)
            values.append(own[used.to(own.device)])
            present.append(sent[used.to(sent.device)].to(own.device))
            weights.append(weight[used])
        return Stack(rows, torch.cat(values), torch.cat(present), torch.cat(weights))

    def _spilled(self, value: Tensor) -> Tensor:
        """The same values in a file without a name."""
        flat = value.detach().cpu().contiguous()
        if not flat.numel():
            return flat
        folder = Path(tempfile.gettempdir()) if self._folder is None else self._folder
        size = flat.numel() * flat.element_size()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder) as file:  # mapped pages outlive the name
                file.write(flat.view(-1).view(torch.uint8).numpy().data)
                file.flush()
                mapped = torch.from_file(file.name, shared=False, size=flat.numel(), dtype=flat.dtype)
        except OSError as error:
            raise UserError(
                f"combine={self._label} keeps a round's updates, and {gib(size)} more cannot be written to {folder} "
                f"({error.strerror}; {gib(free_disk(folder))} are free); make room, or take a smaller cohort."
            ) from None
        return mapped.view(flat.shape)


def read_rows(update: Update, name: str, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return what clients sent of some rows of a parameter, and which coordinates they sent.

    Args:
        update: The updates of a chunk of clients.
        name: The parameter.
        rows: Ascending row numbers [rows]; 0 alone for a parameter without dimensions.

    Returns:
        Values [clients, rows, ...], zero where nothing was sent, and flags of the same shape.
    """
    shape, clients = update.slice.shapes[name], update.clients
    if not shape:
        values = update.values[name][:, None]
        return values, torch.ones_like(values, dtype=torch.bool)
    values = _on_rows(update.layout, name, update.values[name], rows)
    ids = rows.to(_device(update.slice, name)).expand(clients, -1).contiguous()
    axis = Axis(torch.full((clients,), len(rows), device=ids.device), ids)
    wanted = Slice.whole(clients, {name: shape}).replace({name: axis})
    sent = update.slice.inside(wanted, name).to(values.device).expand_as(values)
    if update.uniform is not None and name in update.beyond():
        assert isinstance(update.uniform.direction, View)  # it never comes out of bytes
        direction = update.uniform.direction
        step = direction.factor * direction.tensors[name][rows.to(direction.tensors[name].device)]
        amount = update.uniform.amount.to(values).view(-1, *[1] * len(shape))
        values = values - amount * step.to(values)
    return values.masked_fill(~sent, 0), sent


def _on_rows(layout: Slice, name: str, values: Tensor, rows: Tensor) -> Tensor:
    """Values of a layout at some rows [clients, rows, ...]; zero, or anything, where the layout has none."""
    first, *others = layout.axes[name]
    rows = rows.to(values.device)
    if any(axis is not None for axis in others):  # a client at a time: laid out in full it takes a whole parameter
        return torch.stack(
            [
                layout.only([name]).one(client).spread(name, values[client][layout.own(name, client)][None])[0][rows]
                for client in range(layout.clients)
            ]
        )
    if first is None:
        return values[:, rows]
    if not first.ids.shape[1]:
        return values.new_zeros(len(values), len(rows), *values.shape[2:])
    ids = rows.to(first.ids.device).expand(len(values), -1).contiguous()
    place, has = first.positions_of(ids).to(values.device), first.contains(ids).to(values.device)
    wide = (*place.shape, *[1] * (values.dim() - 2))
    own = values.gather(1, place.view(wide).expand(*place.shape, *values.shape[2:]))
    return own.masked_fill(~has.view(wide), 0)


def _device(part: Slice, name: str) -> torch.device:
    return next((axis.ids.device for axis in part.axes[name] if axis is not None), torch.device("cpu"))
