"""What every way to merge updates answers."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedslice.combine.total import Total
from fedslice.messages import Step
from fedslice.parts import Part, World


class Combine(Part):
    """How updates are weighted, what the sum is divided by, and what is done to it per coordinate."""

    per_holder: ClassVar[bool] = False  # divide each coordinate by the weight of those who sent it?

    weights: Literal["samples", "uniform"] = "samples"
    population_weight: float  # W, the weights of all clients; known after the set-up

    def setup(self, world: World) -> None:
        """w_i: the number of a client's training samples, or one."""
        sizes = world.task.federation.train.sizes.cpu()
        self._weights = sizes.to(torch.float64) if self.weights == "samples" else torch.ones(len(sizes)).double()
        self.population_weight = float(self._weights.sum())

    def weigh(self, clients: Tensor) -> Tensor:
        """The weights of these clients."""
        return self._weights[clients.cpu()]

    def begin(self) -> Total:
        """An empty total for a round."""
        return Total(covered=self.per_holder)

    def correct(self, mean: Step, total: Total) -> Step:  # noqa: ARG002
        """Turn the mean, by now in the model's own space, into the server's step."""
        return mean
