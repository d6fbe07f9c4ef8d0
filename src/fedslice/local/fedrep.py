"""FedRep: the head first, then the body.

Exploiting Shared Representations for Personalized Federated Learning
    Liam Collins, Hamed Hassani, Aryan Mokhtari, Sanjay Shakkottai. ICML 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from fedslice.core.part import ClientRun, Count
from fedslice.local.last_layer import HeadMemory
from fedslice.local.term import Term

if TYPE_CHECKING:
    from fedslice.local.base import Local
    from fedslice.training.work import Work


class FedRep(Term):
    """The first steps of a client move the last Linear layer with all else fixed, its others move all else.

    Args:
        head_epochs (passes): Passes in which the head moves.
        head_iterations (steps): Steps in which the head moves. If neither is given, it has the first half of a
            client's steps.
    """

    label = "fedrep"

    head_epochs: Count | None = None
    head_iterations: Count | None = None

    def check(self, local: Local) -> None:
        """Refuse a head phase that leaves no step to the body."""
        epochs, steps = local.sampler.epochs, None if local.sampler.epochs else local.sampler.iterations or 10
        if self.head_epochs is not None and (epochs is None or self.head_epochs >= epochs):
            raise ValueError(f"head_epochs={self.head_epochs} must be fewer than epochs, which is {epochs}")
        if self.head_iterations is not None and (steps is None or self.head_iterations >= steps):
            raise ValueError(f"head_iterations={self.head_iterations} must be fewer than iterations, which is {steps}")

    def client_memory(self, run: ClientRun, place: str) -> HeadMemory:
        """Find the head."""
        return HeadMemory(run, place, f"local={self.label}")

    def frozen(self, work: Work, s: int) -> Mapping[str, Tensor]:
        """Return the body for clients in their head phase, then the head."""
        head, steps = work.memory.head, work.real.any(2).sum(1)
        if self.head_epochs is not None:
            until = steps * self.head_epochs // work.memory.run.spec.recipe.local.sampler.epochs
        elif self.head_iterations is not None:
            until = steps.clamp(max=self.head_iterations)
        else:
            until = (steps + 1) // 2
        first = s < until
        return {name: ~first if name in head else first for name in work.start}
