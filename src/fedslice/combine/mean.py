"""The mean of FedAvg."""

from fedslice.combine.base import Weighted


class Mean(Weighted):
    """X += Σ w_i·Δ_i / Σ w_i over the cohort; a coordinate that a client does not hold counts as a zero update."""

    label = "mean"

    @property
    def provides(self) -> frozenset[str]:
        """The mean is the step."""
        return frozenset({"plain"})
