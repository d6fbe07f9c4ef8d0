"""FedProx: local training is held near the model it began from (S0, section 5.1)."""

from pydantic.dataclasses import dataclass

from fedslice.local.sgd import SGD
from fedslice.parts import CHECKED, NonNegative
from fedslice.slice import Values


@dataclass(config=CHECKED)
class Prox(SGD):
    """Adds (μ/2)·‖x − X_{S(i)}‖² to the client's loss, as its gradient μ·(x − X_{S(i)})."""

    label = "prox"

    mu: NonNegative = 0.01

    def direction(self, gradient: Values, parameters: Values, start: Values, aside: Values) -> Values:
        """The proximal gradient, then clipped like any other."""
        pulled = {n: g.add(parameters[n] - start[n], alpha=self.mu) for n, g in gradient.items()}
        return super().direction(pulled, parameters, start, aside)
