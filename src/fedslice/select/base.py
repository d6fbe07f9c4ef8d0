"""The interface of ``select``: who takes part in a round?"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedslice.core.part import Part
from fedslice.task import Task

USUAL_COHORT = 50  # clients per round, where nobody says how many


@dataclass(frozen=True)
class Cohort:
    """The clients of one round, in ascending order.

    ``draws`` tells the first from the second appearance of a client drawn twice, so that its batches differ.
    """

    clients: Tensor
    draws: Tensor

    def chunks(self, size: int, likeness: Tensor) -> Iterator[Cohort]:
        """Chunks of clients; those of a similar likeness [clients] go together: less is padded."""
        order = likeness[self.clients].argsort(stable=True)
        for part in order.split(size):
            yield Cohort(self.clients[part], self.draws[part])


class Select(Part):
    """The choice of the cohort, on the server, but for :meth:`population` and :meth:`batch_scale`."""

    place: ClassVar[str] = "select"

    @abstractmethod
    def choose(self, state: Any, t: int) -> Cohort:
        """Return the cohort of round ``t`` out of the enrolled clients."""
        raise NotImplementedError

    def check(self, state: Any) -> None:
        """Refuse the clients with whom a run is to begin, or warn of them."""
        self.choose(state, 0)

    def population(self, task: Task) -> Task:
        """Return the task as its clients see it; only a reference that is not federated changes it."""
        return task

    def batch_scale(self) -> int:
        """Return by how much a client's batches are larger than one client's own."""
        return 1

    def seen(self, rounds: int | None, clients: int) -> int:  # noqa: ARG002
        """Return how many of this many clients can have taken part when a run of ``rounds`` is over."""
        return clients
