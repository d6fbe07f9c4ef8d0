"""The interface of ``combine``: how does the server merge updates?"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from fedslice.combine.accumulator import Accumulator
from fedslice.core.facts import facts
from fedslice.core.message import Fields
from fedslice.core.part import Part
from fedslice.core.spec import Spec
from fedslice.core.update import Step


class Combine(Part):
    """The weights of updates, the divisor of their sum, and its correction per coordinate.

    It runs on the server. Weights are what clients enrolled with.
    """

    weights: Literal["samples", "uniform"] = "samples"

    def facts(self, spec: Spec) -> Fields:
        """The number of training samples, if it is the weight."""
        return facts(["samples"] if self.weights == "samples" else [], spec)

    def weigh(self, state: Any, clients: Tensor) -> Tensor:
        """Return the weights of these clients in float64: their numbers of training samples, or ones."""
        if self.weights == "uniform":
            return torch.ones(len(clients), dtype=torch.float64)
        return state.run.enrolled.facts("samples", clients)[:, 0].double()  # type: ignore[no-any-return]

    def total_weight(self, state: Any) -> float:
        """Return W, the weights of all enrolled clients."""
        enrolled = state.run.enrolled
        return float(enrolled.count if self.weights == "uniform" else enrolled.sum("samples"))

    def begin(self) -> Accumulator:
        """Return an empty sum for a round."""
        return Accumulator(per_sender="per-sender" in self.provides)

    def correct(self, state: Any, mean: Step, total: Accumulator) -> Step:  # noqa: ARG002
        """Return the server's step, given the mean, by now in the model's own space."""
        return mean
