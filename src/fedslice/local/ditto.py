"""Ditto: every client has a model of its own, near the global one.

Ditto: Fair and Robust Federated Learning Through Personalization
    Tian Li, Shengyuan Hu, Ahmad Beirami, Virginia Smith. ICML 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedslice.core.part import NonNegative
from fedslice.core.slice import Values
from fedslice.local.own_model import OwnModel

if TYPE_CHECKING:
    from fedslice.training.work import Work


class Ditto(OwnModel):
    """v minimises F_i(v) + (λ/2)·‖v − X‖², where X is the model that came down; w is trained as in FedAvg.

    Both take as many steps, at the same rate.

    Args:
        pull: Weight of the pull of a client's own model to the server's, λ; 0 trains it alone.
    """

    label = "ditto"

    pull: NonNegative = 0.1

    def gradient(self, gradient: Values, parameters: Values, work: Work) -> Values:
        """Return the gradient of w, and ∇F_i(v) + λ·(v − X)."""
        at = self.own(parameters)
        pulled = {n: g.add(at[n] - work.start[n], alpha=self.pull) for n, g in self.own(gradient).items()}
        return gradient | self.labelled(pulled)
