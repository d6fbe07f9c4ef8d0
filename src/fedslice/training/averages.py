"""Means of clients' running statistics."""

from __future__ import annotations

import torch
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.core.message import Body
from fedslice.core.slice import Values
from fedslice.core.spec import Spec
from fedslice.core.statistics import PREFIX, usable
from fedslice.recipe import Recipe


class Averages:
    """Sums of the statistics of a round's uploads, with the weights of the merge.

    Args:
        spec: What both sides know.
    """

    def __init__(self, spec: Spec):
        self._names = spec.recipe.slices.statistics(spec)
        self._sums: dict[str, Tensor] = {}
        self._weight = 0.0
        if self._names:
            self._check(spec.recipe, self._names[0].rpartition(".")[0])

    @staticmethod
    def _check(recipe: Recipe, layer: str) -> None:
        keep = "keep the layer with the clients (slices=shared patterns=!batchnorm), or use GroupNorm."
        if "needs-updates" in recipe.combine.provides:
            raise UserError(
                f"combine={recipe.combine.label} guards the model against single clients, but the running statistics "
                f"of layer {layer!r} would be plain means; {keep}"
            )
        if "sealed" in recipe.codec.provides:
            raise UserError(
                f"codec={recipe.codec.label} opens nothing but sums under masks, and the running statistics of layer "
                f"{layer!r} would travel openly; {keep}"
            )

    def usable(self, body: Body, clients: int) -> Tensor:
        """Return whose statistics are finite, and variances not below zero [clients]."""
        fine = torch.ones(clients, dtype=torch.bool)
        for name in self._names:
            fine &= usable(name, body[PREFIX + name])
        return fine

    def add(self, body: Body, weights: Tensor) -> None:
        """Add the statistics of clients with these weights [clients]; zero for those that are not taken."""
        for name in self._names:
            values = body[PREFIX + name]
            own = weights.to(values.device, torch.float64)
            part = (values.double() * own[:, None]).masked_fill((own == 0)[:, None], 0).sum(0)
            self._sums[name] = self._sums[name] + part if name in self._sums else part
        self._weight += float(weights.sum())

    def put(self, model: Values) -> None:
        """Put the means into the model; if nobody's upload was taken it stays as it is."""
        for name, total in self._sums.items():
            if self._weight > 0:
                mean = total / self._weight
                value = model[name]
                value.copy_((mean if value.is_floating_point() else mean.round()).view(value.shape))
