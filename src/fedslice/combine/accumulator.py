"""The running sum of a round's uploads: one accumulator, however many clients.

Sums are associative, so the sum over any shard of a cohort can be made anywhere and merged. On a table only the
rows that somebody named are kept, so the cost follows the cohort's slices and not the size of the table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedslice.core.entries import View
from fedslice.core.slice import Slice
from fedslice.core.update import RowDelta, Step, Update

_DENSE_ROWS = 8  # table rows per named row up to which a sum is kept for the whole table


class Accumulator:
    """Σ w_i·Δ_i and Σ w_i of a round; per coordinate Σ w_i over those who sent it, if ``per_sender``."""

    def __init__(self, per_sender: bool = False):
        self.per_sender = per_sender
        self.clients = 0
        self.weight = 0.0
        self._sums: dict[str, RowDelta] = {}
        self._cover: dict[str, RowDelta] = {}
        self._amounts: dict[str, RowDelta] = {}
        self._direction: View | None = None
        self._shapes: dict[str, torch.Size] = {}

    def add(self, update: Update, weights: Tensor) -> None:
        """Take in a chunk of clients with their weights [clients]; a weight of zero leaves a client out."""
        part = Accumulator(self.per_sender)
        part.clients = int((weights > 0).sum())
        part.weight = float(weights.double().sum())
        layout = update.layout
        part._shapes = {name: layout.shapes[name] for name in layout.axes}
        part._sums = {n: _weighted(layout, n, update.values[n], weights) for n in layout.axes}
        if self.per_sender:
            part._cover = {n: _cover(update.slice, n, weights, update.values[n]) for n in layout.axes}
        if update.uniform is not None:
            amount = weights * update.uniform.amount
            part._amounts = {n: _cover(update.slice, n, amount, update.values[n]) for n in update.beyond()}
            assert isinstance(update.uniform.direction, View)  # it never comes out of bytes
            part._direction = update.uniform.direction
        self.merge(part)

    def merge(self, other: Accumulator) -> None:
        """Take in the total of another shard of the cohort."""
        self.clients += other.clients
        self.weight += other.weight
        self._shapes |= other._shapes
        self._direction = self._direction or other._direction
        for mine, theirs in ((self._sums, other._sums), (self._cover, other._cover), (self._amounts, other._amounts)):
            for name, part in theirs.items():
                mine[name] = mine[name].merge(part, self._shapes[name]) if name in mine else part

    def sum(self) -> Step:
        """Return Σ w_i·Δ_i, without what is uniform."""
        return dict(self._sums)

    def mean(self) -> Step:
        """Return Σ w_i·Δ_i divided by the cohort's weight, or by the weight of those who sent the coordinate.

        What nobody sent has no entry, or a zero: the model keeps its value there, to the bit.
        """
        if not self.weight:
            return {}
        step: Step = {}
        for name, own in self._sums.items():
            total = self._with_uniform(name, own)
            if not self.per_sender:
                step[name] = total.map(lambda values: values / self.weight)
                continue
            cover = self._cover[name].at(total.rows, self._shapes[name])
            mean = torch.where(cover > 0, total.values / cover, torch.zeros_like(total.values))
            step[name] = RowDelta(total.rows, mean)
        return step

    def _with_uniform(self, name: str, total: RowDelta) -> RowDelta:
        """Add −Σ w_i·amount_i·direction on all that the clients hold."""
        if name not in self._amounts or self._direction is None:
            return total
        rows, amount = self._amounts[name].rows, self._amounts[name].values
        direction = self._direction.tensors[name] if rows is None else self._direction.tensors[name][rows]
        return total.merge(RowDelta(rows, -amount * self._direction.factor * direction), self._shapes[name])


def _weighted(layout: Slice, name: str, values: Tensor, weights: Tensor) -> RowDelta:
    """Σ w_i·values_i on what the clients of one chunk hold of a parameter."""
    axes = layout.axes[name]
    weights = weights.to(values.dtype).to(values.device)
    if all(axis is None for axis in axes):
        return RowDelta(None, torch.tensordot(weights, values, dims=1))
    weighted = values * weights.view(-1, *[1] * (values.dim() - 1))
    if any(axis is not None for axis in axes[1:]):
        total = {name: values.new_zeros(layout.shapes[name])}
        Slice(layout.clients, layout.shapes, {name: axes}).scatter_add(total, {name: weighted})
        return RowDelta(None, total[name])
    axis, size = axes[0], layout.shapes[name]
    assert axis is not None
    held = layout.held(name)
    if held is not None:
        weighted = weighted.masked_fill(~held.view(*held.shape, *[1] * (weighted.dim() - 2)), 0)
    if size[0] <= _DENSE_ROWS * axis.ids.numel():  # a table this small is summed faster than its rows are sorted out
        rows, place, count = None, axis.ids, size[0]
    else:
        rows, place = torch.unique(axis.ids, return_inverse=True)
        count = len(rows)
    total_rows = values.new_zeros(count, *values.shape[2:])
    return RowDelta(rows, total_rows.index_add_(0, place.flatten(), weighted.flatten(0, 1)))


def _cover(sent: Slice, name: str, weights: Tensor, like: Tensor) -> RowDelta:
    """Σ w_i over the clients that sent each coordinate; one number if all of them sent the whole parameter."""
    axes = sent.axes[name]
    if all(axis is None for axis in axes):
        return RowDelta(None, weights.sum().to(like.dtype).to(like.device))
    sizes = [extent if a is None else a.ids.shape[1] for extent, a in zip(sent.shapes[name], axes, strict=True)]
    if all(axis is None for axis in axes[1:]):  # rows: the same weight for the whole row
        sizes[1:] = [1] * len(sizes[1:])
        sent = Slice(sent.clients, {name: torch.Size([sent.shapes[name][0], *sizes[1:]])}, {name: axes})
    return _weighted(sent, name, like.new_ones(1).expand(sent.clients, *sizes), weights)
