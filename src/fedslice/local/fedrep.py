"""FedRep: the head first, then the body (Collins et al. 2021, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.core.part import CHECKED, ClientRun, Count
from fedslice.local.last_layer import HeadMemory
from fedslice.local.sgd import SGD

if TYPE_CHECKING:
    from fedslice.training.work import Work


@dataclass(frozen=True, config=CHECKED)
class FedRep(SGD):
    """A client's first steps move the last Linear layer with all else fixed, its others move all else.

    The head has the first ``head_epochs`` of ``epochs`` passes, or ``head_iterations`` of ``iterations`` steps; the
    first half of a client's steps if neither is given.

    Args:
        head_epochs (passes): Passes in which the last layer moves; half of the steps if neither is given.
        head_iterations (steps): Steps in which the last layer moves, where iterations are given.
    """

    label = "fedrep"

    head_epochs: Count | None = None
    head_iterations: Count | None = None

    @model_validator(mode="after")
    def _within(self) -> FedRep:
        if self.head_epochs is not None and (self.epochs is None or self.head_epochs >= self.epochs):
            raise ValueError(f"head_epochs={self.head_epochs} must be fewer than epochs, which is {self.epochs}")
        steps = None if self.epochs else self.iterations or 10
        if self.head_iterations is not None and (steps is None or self.head_iterations >= steps):
            raise ValueError(f"head_iterations={self.head_iterations} must be fewer than iterations, which is {steps}")
        return self

    def client_memory(self, run: ClientRun, place: str) -> HeadMemory:
        """Find the head."""
        return HeadMemory(run, place, f"local={self.label}")

    def still(self, work: Work, s: int) -> Mapping[str, Tensor]:
        """Return the body while the client is with its head, then the head."""
        assert isinstance(work.memory, HeadMemory)
        head = work.memory.head
        steps = work.real.any(2).sum(1)
        if self.head_epochs is not None and self.epochs is not None:
            until = steps * self.head_epochs // self.epochs
        elif self.head_iterations is not None:
            until = steps.clamp(max=self.head_iterations)
        else:
            until = (steps + 1) // 2
        first = s < until
        return {name: ~first if name in head else first for name in work.start}
