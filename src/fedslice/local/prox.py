"""FedProx: local training is held near the model that it began from.

Federated Optimization in Heterogeneous Networks
    Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith. MLSys 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedslice.core.part import NonNegative
from fedslice.core.slice import Values
from fedslice.local.term import Term

if TYPE_CHECKING:
    from fedslice.training.work import Work


class Prox(Term):
    """Adds (μ/2)·‖x − X‖² to the client's loss, where X is the model that it began from (FedSubAvg, section 5.1).

    Args:
        mu: Weight of the pull to the server's model, μ; 0 is FedAvg.
    """

    label = "prox"
    follows_gradient = True

    mu: NonNegative = 0.01

    def gradient(self, gradient: Values, parameters: Values, work: Work) -> Values:
        """Return g + μ·(x − X)."""
        own = {n: gradient[n].add(parameters[n] - work.start[n], alpha=self.mu) for n in gradient if n in work.start}
        return gradient | own
