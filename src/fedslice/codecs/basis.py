"""An orthonormal basis that follows a trajectory (S4, algorithm 2), with its Gram matrices in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedslice.messages import Upload
from fedslice.slice import Shapes
from fedslice.vectors import Vectors

Blocks = Callable[[], Iterable[Tensor]]  # the rows of a matrix, some at a time; every call begins at the first

_ROWS = 1 << 16  # rows of a matrix that are taken to float64 together
_TINY = 1e-7  # of the largest singular value: a direction with less has no energy
_SKEW = 1e-6  # from orthonormal: more is corrected
_PASSES = 3


@dataclass(frozen=True, eq=False)
class Basis:
    """P [D, R], orthonormal, each column with its largest entry positive; Σ [R], descending, in float64 on the CPU.

    The sign is a convention, by which server and clients come to the same basis each for itself. P may fill the memory,
    so no other copy of it is ever made: it is changed in place, by blocks of rows.
    """

    columns: Tensor
    sigma: Tensor

    @property
    def rank(self) -> int:
        """How many directions there are: fewer than asked for if the trajectory had fewer."""
        return self.columns.shape[1]

    @classmethod
    def of(cls, updates: Tensor | Vectors, rank: int, device: torch.device | None = None) -> Basis | None:
        """The leading left singular vectors of updates [D, L], on a device; ``None`` if they are all zero."""

        def blocks() -> Iterable[Tensor]:
            return updates.split(_ROWS) if isinstance(updates, Tensor) else updates.blocks(_ROWS)

        gram, first = _gram(blocks()), next(iter(blocks()))
        size = len(updates) if isinstance(updates, Tensor) else updates.size
        room = torch.empty(size, 0, dtype=first.dtype, device=device or first.device)
        return _leading(blocks, torch.ones(len(gram), dtype=torch.float64), gram, rank, room)

    def follow(self, update: Tensor, decay: float, rank: int) -> Basis:
        """The leading directions of [λ·P·Σ, g]; PᵀP = 1 makes the Gram matrix known but for one column.

        This basis is used up: its memory becomes that of the one returned.
        """
        if not bool(update.any()):
            return self
        weights = torch.cat([decay * self.sigma, torch.ones(1, dtype=torch.float64)])
        along = self._along(update)
        gram = torch.zeros(len(weights), len(weights), dtype=torch.float64)
        gram[:-1, :-1] = torch.eye(self.rank, dtype=torch.float64)
        gram[:-1, -1], gram[-1, :-1] = along, along
        gram[-1, -1] = _energy(update)

        def blocks() -> Iterator[Tensor]:
            for ours, new in zip(self.columns.split(_ROWS), update.split(_ROWS), strict=True):
                yield torch.cat([ours, new[:, None].to(ours.dtype)], 1)

        return _leading(blocks, weights, gram * weights * weights[:, None], rank, self.columns) or self

    def residual(self, update: Tensor) -> float:
        """‖g − P·Pᵀg‖² / ‖g‖²: the share of an update that projection would lose."""
        whole = _energy(update)
        inside = float(self._along(update).square().sum())
        return max(0.0, 1 - inside / whole) if whole else 0.0

    def _along(self, update: Tensor) -> Tensor:
        """Pᵀg in float64."""
        blocks = zip(self.columns.split(_ROWS), update.split(_ROWS), strict=True)
        return sum((p.double().T @ g.double() for p, g in blocks), start=_zero()).cpu()

    def project(self, upload: Upload, shapes: Shapes) -> Tensor:
        """Pᵀg_i of every client [clients, R], from the coordinates that each has.

        Either the client's coordinates are put at their places among all, or their rows of the basis are gathered,
        whichever is smaller: a client holds all of a layer, or few rows of a table.
        """
        part, code = upload.layout, self.columns.new_zeros(upload.layout.clients, self.rank)
        sizes = [shape.numel() for shape in shapes.values()]
        rows = dict(zip(shapes, self.columns.split(sizes), strict=True))
        for name, values in upload.values.items():
            if math.prod(shapes[name]) <= self.rank * values[0].numel():
                code += part.spread(name, values).flatten(1) @ rows[name]
            else:
                own = part.only([name]).gather({name: rows[name].view(*shapes[name], self.rank)})[name]
                cleared = part.clear(name, values).flatten(1)
                code += torch.einsum("cv,cvr->cr", cleared, own.flatten(1, -2))
        return code


def _zero() -> Tensor:
    return torch.zeros((), dtype=torch.float64)


def _energy(update: Tensor) -> float:
    """‖g‖² in float64."""
    return float(sum((g.double() @ g.double() for g in update.split(_ROWS)), start=_zero()))


def _gram(blocks: Iterable[Tensor]) -> Tensor:
    """AᵀA in float64 on the CPU."""
    wide = (block.double() for block in blocks)
    return sum((a.T @ a for a in wide), start=_zero()).cpu()


def _leading(blocks: Blocks, weights: Tensor, gram: Tensor, rank: int, room: Tensor) -> Basis | None:
    """Top directions of A·diag(weights), given its Gram matrix: u_r = A·diag(weights)·v_r/σ_r.

    They take the place of ``room`` if it has as many columns; a block of A is read before it is written over.
    """
    energy, right = torch.linalg.eigh(gram)
    sigma = energy.clamp(min=0).sqrt().flip(0)[:rank]
    keep = sigma > _TINY * sigma[0]
    if not bool(keep.any()):
        return None
    sigma, mix = sigma[keep], right.flip(1)[:, :rank][:, keep] * weights[:, None] / sigma[keep]
    columns = room if room.shape[1] == len(sigma) else room.new_empty(len(room), len(sigma))
    _mix(blocks(), mix, columns)
    columns = _straightened(columns)
    return Basis(columns.mul_(_largest(columns).sign()), sigma[: columns.shape[1]])


def _mix(blocks: Iterable[Tensor], mix: Tensor, out: Tensor) -> None:
    """A·mix, block by block into ``out``."""
    for block, place in zip(blocks, out.split(_ROWS), strict=True):
        place.copy_(block.double() @ mix.to(block.device))


def _straightened(columns: Tensor) -> Tensor:
    """The columns made orthonormal in place where rounding left them skew, as it does those of little energy.

    The triangle of a QR decomposition is the Cholesky factor of the Gram matrix; a second pass mends what the first one
    loses of precision. Columns from the first that depends on those before it are rounding and nothing else.
    """
    for _ in range(_PASSES):
        gram = _gram(columns.split(_ROWS))
        one = torch.eye(len(gram), dtype=torch.float64)
        if float((gram - one).abs().max()) <= _SKEW:
            break
        lower, dependent = torch.linalg.cholesky_ex(gram)
        if dependent:
            keep = int(dependent) - 1
            columns, lower, one = columns[:, :keep].clone(), lower[:keep, :keep], one[:keep, :keep]
        inverse = torch.linalg.solve_triangular(lower.T, one, upper=True)
        _mix(columns.split(_ROWS), inverse, columns)
    return columns


def _largest(columns: Tensor) -> Tensor:
    """The entry of the largest magnitude in each column, the first of equals."""
    found = columns.new_zeros(columns.shape[1])
    for block in columns.split(_ROWS):
        entry = block.gather(0, block.abs().argmax(0, keepdim=True))[0]
        found = torch.where(entry.abs() > found.abs(), entry, found)
    return found
