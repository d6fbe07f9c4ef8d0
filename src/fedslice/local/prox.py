"""FedProx: local training is held near the model that it began from (FedSubAvg, section 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass

from fedslice.core.part import CHECKED, NonNegative
from fedslice.core.slice import Values
from fedslice.local.sgd import SGD

if TYPE_CHECKING:
    from fedslice.training.work import Work


@dataclass(frozen=True, config=CHECKED)
class Prox(SGD):
    """Adds (μ/2)·‖x − X_{S(i)}‖² to the client's loss, as its gradient μ·(x − X_{S(i)}).

    Args:
        mu: Weight of the pull to the server's model, μ; 0 is FedAvg.
    """

    label = "prox"
    follows_gradient = True

    mu: NonNegative = 0.01

    def direction(self, gradient: Values, parameters: Values, work: Work) -> Values:
        """The proximal gradient, then clipped like any other."""
        pulled = {n: g.add(parameters[n] - work.start[n], alpha=self.mu) for n, g in gradient.items()}
        return super().direction(pulled, parameters, work)
