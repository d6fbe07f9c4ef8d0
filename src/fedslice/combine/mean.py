"""The mean of FedAvg."""

from typing import Literal

from fedslice.combine.base import Combine


class Mean(Combine):
    """X += Σ w_i·Δ_i / Σ w_i over the cohort; a coordinate that a client does not hold counts as a zero update."""

    label = "mean"

    weights: Literal["samples", "uniform"] = "samples"

    @property
    def provides(self) -> frozenset[str]:
        """The mean is the step."""
        return frozenset({"plain"})
