"""The running sum of a round's uploads: one accumulator, however many clients.

Sums are associative, so the sum over any shard of a cohort can be made anywhere and merged. On a table only the
rows that somebody named are kept, so the cost follows the cohort's slices and not the size of the table.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedslice.messages import Step, Upload
from fedslice.slice import Slice, Values

_DENSE_ROWS = 8  # table rows per named row up to which a sum is kept for the whole table


class Sum(NamedTuple):
    """Values summed over clients on ``rows`` (sorted, distinct) of a parameter, or on all of it (``None``)."""

    rows: Tensor | None
    values: Tensor

    def merge(self, other: Sum, size: torch.Size) -> Sum:
        """The sum of both."""
        if self.rows is None or other.rows is None:
            return Sum(None, self.spread(size) + other.spread(size))
        rows, place = torch.unique(torch.cat([self.rows, other.rows]), return_inverse=True)
        values = self.values.new_zeros(len(rows), *self.values.shape[1:])
        values.index_add_(0, place[: len(self.rows)], self.values)
        values.index_add_(0, place[len(self.rows) :], other.values)
        return Sum(rows, values)

    def spread(self, size: torch.Size) -> Tensor:
        """On all rows, with zeros where nothing was added."""
        if self.rows is None:
            return self.values
        out = self.values.new_zeros(size[0], *self.values.shape[1:])
        return out.index_add_(0, self.rows, self.values)

    def at(self, rows: Tensor | None, size: torch.Size) -> Tensor:
        """The values on the given rows, which this sum covers."""
        if self.rows is None or self.values.dim() == 0:
            return self.values if rows is None or self.values.dim() == 0 else self.values[rows]
        return self.spread(size) if rows is None else self.values[torch.searchsorted(self.rows, rows)]


class Total:
    """Σ w_i·Δ_i and Σ w_i of a round; per coordinate Σ w_i over those who sent it, if ``covered`` is asked for."""

    def __init__(self, covered: bool = False):
        self.covered = covered
        self.clients = 0
        self.weight = 0.0
        self._sums: dict[str, Sum] = {}
        self._cover: dict[str, Sum] = {}
        self._reach: dict[str, Sum] = {}
        self._drift: Values = {}
        self._shapes: dict[str, torch.Size] = {}

    def add(self, upload: Upload) -> None:
        """Take in a chunk."""
        part = Total(self.covered)
        part.clients = int((upload.weights > 0).sum())
        part.weight = float(upload.weights.double().sum())
        part._shapes = {name: upload.layout.shapes[name] for name in upload.layout.axes}
        part._sums = {n: _weighted(upload.layout, n, upload.values[n], upload.weights) for n in upload.layout.axes}
        if self.covered:
            part._cover = {n: _cover(upload.slice, n, upload.weights, upload.values[n]) for n in upload.layout.axes}
        if upload.reach is not None:
            far = upload.weights * upload.reach
            part._reach = {n: _cover(upload.slice, n, far, upload.values[n]) for n in upload.drifting()}
            part._drift = dict(upload.drift)
        self.merge(part)

    def merge(self, other: Total) -> None:
        """Take in the total of another shard of the cohort."""
        self.clients += other.clients
        self.weight += other.weight
        self._shapes |= other._shapes
        self._drift |= other._drift
        for mine, theirs in ((self._sums, other._sums), (self._cover, other._cover), (self._reach, other._reach)):
            for name, part in theirs.items():
                mine[name] = mine[name].merge(part, self._shapes[name]) if name in mine else part

    def sum(self) -> Step:
        """Σ w_i·Δ_i."""
        return {name: (rows, values) for name, (rows, values) in self._sums.items()}

    def mean(self) -> Step:
        """Σ w_i·Δ_i divided by the cohort's weight, or by the weight of those who sent the coordinate.

        Where clients drifted, each as far as it reached, that is part of their Δ_i. What nobody sent
        has no entry, or a zero: the model keeps its value there, to the bit.
        """
        if not self.weight:
            return {}
        step: Step = {}
        for name, total in self._sums.items():
            rows, values = self._drifted(name, total) if name in self._reach else total
            if not self.covered:
                step[name] = rows, values / self.weight
                continue
            cover = self._cover[name].at(rows, self._shapes[name])
            step[name] = rows, torch.where(cover > 0, values / cover, torch.zeros_like(values))
        return step

    def _drifted(self, name: str, total: Sum) -> Sum:
        """Add −Σ w_i·reach_i·drift on all that the clients hold."""
        (rows, reach), drift = self._reach[name], self._drift[name]
        return total.merge(Sum(rows, -reach * (drift if rows is None else drift[rows])), self._shapes[name])


def _weighted(layout: Slice, name: str, values: Tensor, weights: Tensor) -> Sum:
    """Σ w_i·values_i on what the clients of one chunk hold of a parameter."""
    axes = layout.axes[name]
    weights = weights.to(values.dtype).to(values.device)
    if all(axis is None for axis in axes):
        return Sum(None, torch.tensordot(weights, values, dims=1))
    weighted = values * weights.view(-1, *[1] * (values.dim() - 1))
    if any(axis is not None for axis in axes[1:]):
        total = {name: values.new_zeros(layout.shapes[name])}
        Slice(layout.clients, layout.shapes, {name: axes}).scatter_add(total, {name: weighted})
        return Sum(None, total[name])
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
    return Sum(rows, total_rows.index_add_(0, place.flatten(), weighted.flatten(0, 1)))


def _cover(sent: Slice, name: str, weights: Tensor, like: Tensor) -> Sum:
    """Σ w_i over the clients that sent each coordinate; one number if all of them sent the whole parameter."""
    axes = sent.axes[name]
    if all(axis is None for axis in axes):
        return Sum(None, weights.sum().to(like.dtype).to(like.device))
    sizes = [extent if a is None else a.ids.shape[1] for extent, a in zip(sent.shapes[name], axes, strict=True)]
    if all(axis is None for axis in axes[1:]):  # rows: the same weight for the whole row
        sizes[1:] = [1] * len(sizes[1:])
        sent = Slice(sent.clients, {name: torch.Size([sent.shapes[name][0], *sizes[1:]])}, {name: axes})
    return _weighted(sent, name, like.new_ones(1).expand(sent.clients, *sizes), weights)
