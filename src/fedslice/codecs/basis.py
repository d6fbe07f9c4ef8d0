"""An orthonormal basis that follows a trajectory (FLSS, algorithm 2), with its Gram matrices in float64.

A basis follows an update g by a product from the right: P_new = [P, g]·M. So whoever has only some rows of P and g has
the same rows of P_new, given M, which is as large as the square of the rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedslice.core.entries import OnSlice, View
from fedslice.core.slice import Shapes, Slice, Values
from fedslice.core.update import Update, split
from fedslice.core.vectors import Vectors

Blocks = Callable[[], Iterable[Tensor]]  # the rows of a matrix, some at a time; every call begins at the first

_ROWS = 1 << 16  # rows of a matrix that are taken to float64 together
_TINY = 1e-7  # of the largest singular value: a direction with less has no energy
_SKEW = 1e-6  # from orthonormal: more is corrected
_PASSES = 3


@dataclass(frozen=True, eq=False)
class Basis:
    """P [D, R], orthonormal, each column with its largest entry positive; Σ [R], descending, in float64 on the CPU.

    P may fill the memory, so no other copy of it is ever made: it is changed in place, by blocks of rows.
    """

    columns: Tensor
    sigma: Tensor

    @property
    def rank(self) -> int:
        """The number of directions: fewer than asked for if the trajectory had fewer."""
        return self.columns.shape[1]

    @classmethod
    def of(cls, updates: Tensor | Vectors, rank: int, device: torch.device | None = None) -> Basis | None:
        """Return the leading left singular vectors of updates [D, L], on a device; ``None`` if they are all zero."""

        def blocks() -> Iterable[Tensor]:
            return updates.split(_ROWS) if isinstance(updates, Tensor) else updates.blocks(_ROWS)

        gram, first = _gram(blocks()), next(iter(blocks()))
        size = len(updates) if isinstance(updates, Tensor) else updates.size
        room = torch.empty(size, 0, dtype=first.dtype, device=device or first.device)
        found = _leading(blocks, torch.ones(len(gram), dtype=torch.float64), gram, rank, room)
        return None if found is None else found.basis

    def follow(self, update: Tensor, decay: float, rank: int) -> Followed:
        """Return the leading directions of [λ·P·Σ, g], and M with P_new = [P, g]·M.

        PᵀP = 1 makes the Gram matrix known but for one column. This basis is used up: its memory becomes that of the
        one returned.
        """
        if not bool(update.any()):
            return Followed(self, None)
        weights = torch.cat([decay * self.sigma, torch.ones(1, dtype=torch.float64)])
        along = self._along(update)
        gram = torch.zeros(len(weights), len(weights), dtype=torch.float64)
        gram[:-1, :-1] = torch.eye(self.rank, dtype=torch.float64)
        gram[:-1, -1], gram[-1, :-1] = along, along
        gram[-1, -1] = _energy(update)

        def blocks() -> Iterator[Tensor]:
            for ours, new in zip(self.columns.split(_ROWS), update.split(_ROWS), strict=True):
                yield _beside(ours, new)

        found = _leading(blocks, weights, gram * weights * weights[:, None], rank, self.columns)
        return found or Followed(self, None)

    def residual(self, update: Tensor) -> float:
        """Return ‖g − P·Pᵀg‖² / ‖g‖²: the share of an update that projection would lose."""
        whole = _energy(update)
        inside = float(self._along(update).square().sum())
        return max(0.0, 1 - inside / whole) if whole else 0.0

    def rows(self, shapes: Shapes) -> Values:
        """Return P by parameter [*shape, R], without a copy."""
        return split(self.columns, shapes)

    def _along(self, update: Tensor) -> Tensor:
        """Pᵀg in float64."""
        blocks = zip(self.columns.split(_ROWS), update.split(_ROWS), strict=True)
        return sum((p.double().T @ g.double() for p, g in blocks), start=_zero()).cpu()


class Followed(NamedTuple):
    """A basis that has followed an update.

    Args:
        basis: P_new.
        mix: M in float64 on the CPU, [R + 1, R'], or ``None`` if the basis is the same as before.
    """

    basis: Basis
    mix: Tensor | None


def mixed(rows: Tensor, update: Tensor, mix: Tensor) -> Tensor:
    """Return rows [n, R'] of P_new = [P, g]·M, given those of P [n, R] and g [n]."""
    return (_beside(rows, update).double() @ mix.to(rows.device)).to(rows.dtype)


def project(basis: View | OnSlice, update: Update, rank: int, dtype: torch.dtype) -> Tensor:
    """Return Pᵀg_i of every client [clients, R], from the coordinates that each has and their rows of the basis.

    Where the server's basis can be read, either a client's coordinates are put at their places among all, or their rows
    are gathered, whichever is smaller: a client holds all of a layer, or few rows of a table.
    """
    part = update.layout
    device = next((value.device for value in update.values.values()), torch.device("cpu"))
    code = torch.zeros(part.clients, rank, dtype=dtype, device=device)
    for name, values in update.values.items():
        own, one = values.to(dtype), part.only([name])
        whole = isinstance(basis, View) and math.prod(part.shapes[name]) <= rank * values[0].numel()
        if whole or all(axis is None for axis in part.axes[name]):
            rows = basis.at(with_directions(Slice.whole(1, part.shapes, [name]), rank))[name][0]
            code += part.spread(name, own).flatten(1) @ rows.flatten(0, -2)
        else:
            rows = basis.at(with_directions(one, rank))[name]
            code += torch.einsum("cv,cvr->cr", part.clear(name, own).flatten(1), rows.flatten(1, -2))
    return code


def with_directions(part: Slice, rank: int) -> Slice:
    """Return the slice of a basis: ``rank`` values for every coordinate of a slice of the model."""
    shapes = {name: torch.Size([*part.shapes[name], rank]) for name in part.axes}
    return Slice(part.clients, shapes, {name: (*axes, None) for name, axes in part.axes.items()})


def _beside(rows: Tensor, update: Tensor) -> Tensor:
    """[P, g]."""
    return torch.cat([rows, update[:, None].to(rows.dtype)], 1)


def _zero() -> Tensor:
    return torch.zeros((), dtype=torch.float64)


def _energy(update: Tensor) -> float:
    """‖g‖² in float64."""
    return float(sum((g.double() @ g.double() for g in update.split(_ROWS)), start=_zero()))


def _gram(blocks: Iterable[Tensor]) -> Tensor:
    """AᵀA in float64 on the CPU."""
    wide = (block.double() for block in blocks)
    return sum((a.T @ a for a in wide), start=_zero()).cpu()


def _leading(blocks: Blocks, weights: Tensor, gram: Tensor, rank: int, room: Tensor) -> Followed | None:
    """Top directions of A·diag(weights), given its Gram matrix: u_r = A·diag(weights)·v_r/σ_r, and M with u = A·M.

    They take the place of ``room`` if it has as many columns; a block of A is read before it is written over.
    """
    energy, right = torch.linalg.eigh(gram)
    sigma = energy.clamp(min=0).sqrt().flip(0)[:rank]
    keep = sigma > _TINY * sigma[0]
    if not bool(keep.any()):
        return None
    mix = _straightened(blocks, right.flip(1)[:, :rank][:, keep] * weights[:, None] / sigma[keep])
    columns = room if room.shape[1] == mix.shape[1] else room.new_empty(len(room), mix.shape[1])
    _mix(blocks(), mix, columns)
    sign = _largest(columns).sign()
    return Followed(Basis(columns.mul_(sign), sigma[keep][: mix.shape[1]]), mix * sign.cpu().double())


def _mix(blocks: Iterable[Tensor], mix: Tensor, out: Tensor) -> None:
    """A·mix, block by block into ``out``."""
    for block, place in zip(blocks, out.split(_ROWS), strict=True):
        place.copy_(block.double() @ mix.to(block.device))


def _straightened(blocks: Blocks, mix: Tensor) -> Tensor:
    """M such that the columns of A·M are orthonormal where rounding would leave them skew, as those of little energy.

    The triangle of a QR decomposition is the Cholesky factor of the Gram matrix; a second pass mends what the first one
    loses of precision. Columns from the first that depends on those before it are rounding and nothing else. Nothing is
    written before M is known, so the columns are rounded once, and whoever computes some rows of A·M has the same rows.
    """
    for _ in range(_PASSES):
        gram = _gram(block.double() @ mix.to(block.device) for block in blocks())
        one = torch.eye(len(gram), dtype=torch.float64)
        if float((gram - one).abs().max()) <= _SKEW:
            break
        lower, dependent = torch.linalg.cholesky_ex(gram)
        keep = int(dependent) - 1 if dependent else len(gram)
        inverse = torch.linalg.solve_triangular(lower[:keep, :keep].T, one[:keep, :keep], upper=True)
        mix = mix[:, :keep] @ inverse
    return mix


def _largest(columns: Tensor) -> Tensor:
    """The entry of the largest magnitude in each column, the first of equals."""
    found = columns.new_zeros(columns.shape[1])
    for block in columns.split(_ROWS):
        entry = block.gather(0, block.abs().argmax(0, keepdim=True))[0]
        found = torch.where(entry.abs() > found.abs(), entry, found)
    return found
