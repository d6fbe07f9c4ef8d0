"""Ditto: every client has a model of its own, near the global one (Li et al. 2021, algorithm 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.core.part import CHECKED, NonNegative
from fedslice.core.slice import Values
from fedslice.local.sgd import Forward
from fedslice.local.twin import Twin
from fedslice.task import Loss

if TYPE_CHECKING:
    from fedslice.training.work import Batch, Work


@dataclass(frozen=True, config=CHECKED)
class Ditto(Twin):
    """v minimises F_i(v) + (λ/2)·‖v − X‖², where X is the model that came down; w is trained as in FedAvg.

    Both take as many steps, at the same rate. ``pull`` is λ.

    Args:
        pull: Weight of the pull of a client's own model to the server's, λ; 0 trains it alone.
    """

    label = "ditto"

    pull: NonNegative = 0.1

    def objective(self, forward: Forward, loss: Loss, parameters: Values, batch: Batch, work: Work, s: int) -> Tensor:
        """Both losses; the pull is in the direction."""
        shared, own = (
            super(Ditto, self).objective(forward, loss, model, batch, work, s) for model in self.models(parameters)
        )
        return shared + own

    def own_direction(self, gradient: Values, own: Values, work: Work) -> Values:
        """∇F_i(v) + λ·(v − X), then clipped like any other."""
        pulled = {n: g.add(own[n] - work.start[n], alpha=self.pull) for n, g in gradient.items()}
        return super().own_direction(pulled, own, work)
