"""An orthonormal basis that follows a trajectory (S4, algorithm 2), with its Gram matrices in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedslice.messages import Upload
from fedslice.slice import Shapes

_ROWS = 1 << 16  # rows of a basis that are taken to float64 together
_TINY = 1e-7  # of the largest singular value: a direction with less has no energy
_SKEW = 1e-6  # from orthonormal: more is corrected


@dataclass(frozen=True, eq=False)
class Basis:
    """P [D, R], orthonormal, each column with its largest entry positive; Σ [R], descending, in float64 on the CPU.

    The sign is a convention, by which server and clients come to the same basis each for itself.
    """

    columns: Tensor
    sigma: Tensor

    @property
    def rank(self) -> int:
        """How many directions there are: fewer than asked for if the trajectory had fewer."""
        return self.columns.shape[1]

    @classmethod
    def of(cls, updates: Tensor, rank: int) -> Basis | None:
        """The leading left singular vectors of updates [D, L]; ``None`` if they are all zero."""
        return _leading(updates, torch.ones(updates.shape[1], dtype=torch.float64), _gram(updates, updates), rank)

    def follow(self, update: Tensor, decay: float, rank: int) -> Basis:
        """The leading directions of [λ·P·Σ, g]; PᵀP = 1 makes the Gram matrix known but for one column."""
        if not bool(update.any()):
            return self
        weights = torch.cat([decay * self.sigma, torch.ones(1, dtype=torch.float64)])
        along = _gram(self.columns, update[:, None])
        gram = torch.zeros(len(weights), len(weights), dtype=torch.float64)
        gram[:-1, :-1] = torch.eye(self.rank, dtype=torch.float64)
        gram[:-1, -1:], gram[-1:, :-1] = along, along.T
        gram[-1:, -1:] = _gram(update[:, None], update[:, None])
        both = torch.cat([self.columns, update[:, None].to(self.columns.dtype)], 1)
        return _leading(both, weights, gram * weights * weights[:, None], rank) or self

    def residual(self, update: Tensor) -> float:
        """‖g − P·Pᵀg‖² / ‖g‖²: the share of an update that projection would lose."""
        whole = float(_gram(update[:, None], update[:, None]))
        inside = float(_gram(self.columns, update[:, None]).square().sum())
        return max(0.0, 1 - inside / whole) if whole else 0.0

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


def _gram(one: Tensor, other: Tensor) -> Tensor:
    """AᵀB in float64, by blocks of rows: no copy of a basis in double precision is ever made."""
    blocks = zip(one.split(_ROWS), other.split(_ROWS), strict=True)
    return sum((a.double().T @ b.double() for a, b in blocks), start=torch.zeros((), dtype=torch.float64)).cpu()


def _leading(vectors: Tensor, weights: Tensor, gram: Tensor, rank: int) -> Basis | None:
    """Top directions of vectors·diag(weights), given its Gram matrix: u_r = G·v_r/σ_r."""
    energy, right = torch.linalg.eigh(gram)
    sigma = energy.clamp(min=0).sqrt().flip(0)[:rank]
    keep = sigma > _TINY * sigma[0]
    if not bool(keep.any()):
        return None
    sigma, mix = sigma[keep], right.flip(1)[:, :rank][:, keep] * weights[:, None] / sigma[keep]
    mix = mix.to(vectors.device)
    columns = torch.cat([(block.double() @ mix).to(vectors.dtype) for block in vectors.split(_ROWS)])
    skew = _gram(columns, columns) - torch.eye(len(sigma), dtype=torch.float64)
    if float(skew.abs().max()) > _SKEW:  # directions of little energy come out skew
        columns = torch.linalg.qr(columns.double()).Q.to(vectors.dtype)
    largest = columns.gather(0, columns.abs().argmax(0, keepdim=True))
    return Basis(columns * largest.sign(), sigma)
