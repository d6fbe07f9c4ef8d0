"""What every way to choose a cohort answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedslice.parts import Part
from fedslice.task import Task

USUAL_COHORT = 50  # clients per round, where nobody says how many


@dataclass(frozen=True)
class Cohort:
    """The clients of one round, in ascending order.

    ``draws`` tells the first from the second appearance of a client drawn twice, so that its batches differ.
    """

    clients: Tensor
    draws: Tensor

    def chunks(self, size: int, likeness: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunks of clients and their draws; clients of a similar likeness [clients] go together: less is padded."""
        order = likeness[self.clients].argsort(stable=True)
        for part in order.split(size):
            yield self.clients[part], self.draws[part]


class Select(Part):
    """Who takes part."""

    remote: ClassVar[bool] = True  # does anything travel over a network?
    squares: ClassVar[bool] = False  # do clients report the mean squared loss of the samples they trained on?

    def repeats(self) -> bool:
        """May one client appear twice in a cohort?"""
        return False

    def population(self, task: Task) -> Task:
        """The task as its clients see it; only a reference that is not federated changes it."""
        return task

    def batch_scale(self) -> int:
        """By how much a client's batches are larger than one client's own."""
        return 1

    def seen(self, rounds: int | None, clients: int) -> int:  # noqa: ARG002
        """How many of so many clients can have taken part when a run of so many rounds is over."""
        return clients

    def choose(self, t: int, clients: int, seed: int) -> Cohort:
        """The cohort of round ``t`` out of this many clients."""
        raise NotImplementedError
