"""The interface of every server optimizer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedslice.core.part import Part, ServerRun, State
from fedslice.core.slice import Values
from fedslice.core.update import RowDelta, Step

Fraction = Annotated[float, Field(ge=0, lt=1)]


class ServerOptimizer(Part):
    """The step of the server's model, given the merged update."""

    place: ClassVar[str] = "server"

    @property
    def rate(self) -> float | None:
        """The constant by which the update is multiplied, if nothing else becomes of it: capability ``plain``."""
        return None

    @property
    def provides(self) -> frozenset[str]:
        """Whether the model moves by the update times a constant."""
        return frozenset() if self.rate is None else frozenset({"plain"})

    @abstractmethod
    def step(self, state: Any, model: Values, step: Step, share: float) -> Step:
        """Change the model in place and return the change.

        Args:
            state: What the optimizer remembers.
            model: The server's model.
            step: The merged update.
            share: The share of all enrolled clients that took part in the round.
        """
        raise NotImplementedError


class Averages(State):
    """Running averages of updates, one value per coordinate that was ever updated."""

    saved = ("averages",)

    def __init__(self, run: ServerRun, kinds: tuple[str, ...]):
        super().__init__(run)
        self.kinds = kinds
        self.averages: dict[str, Tensor] = {}

    def get(self, kind: str, name: str, like: Tensor, first: float = 0.0) -> Tensor:
        """Return a running average of a parameter's shape, for changing in place."""
        key = f"{kind}.{name}"
        if key not in self.averages:
            self.averages[key] = torch.full_like(like, first)
        return self.averages[key]


class Averaging(ServerOptimizer):
    """A server that remembers running averages of updates.

    Averages move coordinates long after their last update, so a step touches every row of a table. A round from which
    nothing usable arrived moves nothing.
    """

    kinds: ClassVar[tuple[str, ...]]  # the averages it has

    def server_state(self, run: ServerRun) -> Averages:
        """Nothing is remembered yet."""
        return Averages(run, self.kinds)

    def step(self, state: Averages, model: Values, step: Step, share: float) -> Step:
        """Move every coordinate of the parameters that somebody sent."""
        change: Step = {}
        for name, delta in step.items():
            moved = self.move(state, name, delta.dense(model[name].shape), share)
            model[name].add_(moved)
            change[name] = RowDelta(None, moved)
        return change

    @abstractmethod
    def move(self, state: Averages, name: str, update: Tensor, share: float) -> Tensor:
        """Return how far a parameter moves, given the mean update of all its coordinates (zero where nobody sent)."""
        raise NotImplementedError
