"""The server's side of FedDyn and FedDC: the model stands where clients end, and their mean drift beyond that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.errors import UserError
from fedslice.parts import CHECKED
from fedslice.server.base import Averaging

if TYPE_CHECKING:
    from fedslice.recipe import Recipe


@dataclass(config=CHECKED)
class Drift(Averaging):
    """d ← d + (K/N)·Δ, X += Δ + d, where Δ is the mean update: d is the mean over all N clients of the sum of updates.

    FedDyn (Acar et al. 2021, algorithm 1) writes −h/α for d, which holds for any α; FedDC (Gao et al. 2022,
    algorithm 1) adds the mean of its clients' drifts, which is d.
    """

    label = "drift"
    kinds = ("drift",)

    def check(self, recipe: Recipe) -> None:
        """Refuse clients without a drift, and a mean whose divisor changes from round to round."""
        if not recipe.local.accumulates:
            raise UserError(
                f"server=drift adds up the drift of clients, and local={recipe.local.label} has none; use "
                "local=feddyn or local=feddc, or server=sgd."
            )
        if recipe.combine.per_holder:
            raise UserError(
                "server=drift needs a step that is a share of all clients' updates, and "
                f"combine={recipe.combine.label} divides each coordinate by the round's senders; use combine=mean "
                "or combine=heat."
            )

    def move(self, name: str, update: Tensor, share: float) -> Tensor:
        """One step to the clients' mean, and as far again as they drifted."""
        return update + self.average("drift", name, update).add_(update, alpha=share)
