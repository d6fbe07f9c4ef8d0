"""The interface of ``combine``: how does the server merge updates?"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedslice.combine.accumulator import Accumulator
from fedslice.core.facts import facts
from fedslice.core.message import Fields
from fedslice.core.part import Part
from fedslice.core.spec import Spec
from fedslice.core.update import Step, Update


class Total(Protocol):
    """The uploads of a round, as far as they have been taken."""

    clients: int
    weight: float

    def add(self, update: Update, weights: Tensor) -> None:
        """Take in a chunk of clients with their weights [clients]; a weight of zero leaves a client out."""
        ...

    def mean(self) -> Step:
        """Return what the uploads come to: their mean, or what stands in its place."""
        ...


class Combine(Part):
    """The weights of updates, what they come to, and a correction of it.

    It runs on the server. Here all clients weigh the same; :class:`Weighted` lets them weigh what they enrolled with,
    and :class:`~fedslice.combine.robust.Robust` looks at all updates of a coordinate at once.
    """

    place: ClassVar[str] = "combine"
    weights: ClassVar[Literal["samples", "uniform"]] = "uniform"

    def weigh(self, state: Any, clients: Tensor) -> Tensor:  # noqa: ARG002
        """Return the weights of these clients in float64."""
        return torch.ones(len(clients), dtype=torch.float64)

    def total_weight(self, state: Any) -> float:
        """Return W, the weights of all enrolled clients."""
        return float(state.run.enrolled.count)

    def begin(self, state: Any) -> Total:  # noqa: ARG002
        """Return an empty total for a round."""
        return Accumulator(per_sender="per-sender" in self.provides)

    def correct(self, state: Any, mean: Step, total: Total) -> Step:  # noqa: ARG002
        """Return the server's step, given the mean, by now in the model's own space."""
        return mean


class Weighted(Combine):
    """A merge in which clients weigh as many samples as they train on, or all the same.

    Args:
        weights: ``samples`` weighs a client by its number of training samples, which it tells when it enrols;
            ``uniform`` weighs all clients the same.
    """

    weights: Literal["samples", "uniform"] = "samples"  # type: ignore[misc]

    def facts(self, spec: Spec) -> Fields:
        """The number of training samples, if it is the weight."""
        return facts(["samples"] if self.weights == "samples" else [], spec)

    def weigh(self, state: Any, clients: Tensor) -> Tensor:
        """Return the clients' numbers of training samples, or ones."""
        if self.weights == "uniform":
            return super().weigh(state, clients)
        return state.run.enrolled.facts("samples", clients)[:, 0].double()  # type: ignore[no-any-return]

    def total_weight(self, state: Any) -> float:
        """Return W, the weights of all enrolled clients."""
        return super().total_weight(state) if self.weights == "uniform" else float(state.run.enrolled.sum("samples"))
