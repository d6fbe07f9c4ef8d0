"""Uniform sampling (FedSubAvg, algorithm 1, line 3)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from pydantic.dataclasses import dataclass

from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.core.part import CHECKED, Count
from fedslice.select.base import USUAL_COHORT, Cohort, Select


@dataclass(frozen=True, config=CHECKED)
class Uniform(Select):
    """``cohort`` clients, each equally likely, without replacement unless said otherwise.

    Without ``cohort`` they are 50, or all clients if there are fewer.
    """

    label = "uniform"

    cohort: Count | None = None
    replacement: bool = False

    @property
    def provides(self) -> frozenset[str]:
        """A client can be drawn twice only with replacement."""
        return frozenset({"repeats"}) if self.replacement else frozenset()

    def seen(self, rounds: int | None, clients: int) -> int:
        """A cohort of others in every round, while there are others."""
        return clients if rounds is None else min(clients, rounds * (self.cohort or USUAL_COHORT))

    def check(self, state: Any) -> None:
        """Warn of a cohort that is smaller than usual, although nobody asked for that."""
        super().check(state)
        clients = state.run.enrolled.count
        if self.cohort is None and not self.replacement and clients < USUAL_COHORT:
            warnings.warn(
                f"The task has {clients} clients. The cohort is {clients}, not {USUAL_COHORT} as usual.", stacklevel=3
            )

    def choose(self, state: Any, t: int) -> Cohort:
        """Draw with a generator of the round's own.

        Raises:
            UserError: If fewer clients are enrolled than were asked for.
        """
        enrolled = state.run.enrolled.numbers()
        clients = len(enrolled)
        size = self.cohort or USUAL_COHORT
        if not self.replacement and clients < size:
            if self.cohort is not None:
                raise UserError(f"cohort={self.cohort} but the task has {clients} clients; give {clients} or fewer.")
            size = clients
        draw = rng.generator(state.run.spec.seed, rng.Purpose.COHORT, t)
        chosen = np.sort(draw.choice(clients, size, replace=self.replacement))
        first = np.searchsorted(chosen, chosen)
        return Cohort(
            enrolled.index_select(0, torch.from_numpy(chosen)), torch.from_numpy(np.arange(len(chosen)) - first)
        )
