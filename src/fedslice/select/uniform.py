"""Uniform sampling (S0, algorithm 1, line 3)."""

import warnings

import numpy as np
import torch
from pydantic.dataclasses import dataclass

from fedslice import rng
from fedslice.errors import UserError
from fedslice.parts import CHECKED, Count, World
from fedslice.select.base import USUAL_COHORT, Cohort, Select


@dataclass(config=CHECKED)
class Uniform(Select):
    """``cohort`` clients, each equally likely, without replacement unless said otherwise.

    Without ``cohort`` they are 50, or all clients if there are fewer.
    """

    label = "uniform"

    cohort: Count | None = None
    replacement: bool = False

    def repeats(self) -> bool:
        """A client can be drawn twice only with replacement."""
        return self.replacement

    def setup(self, world: World) -> None:
        """Refuse a cohort that the population cannot fill."""
        clients = len(world.task.federation)
        if self.replacement or clients >= (self.cohort or USUAL_COHORT):
            return
        if self.cohort is not None:
            raise UserError(f"cohort={self.cohort} but the task has {clients} clients; give {clients} or fewer.")
        warnings.warn(
            f"The task has {clients} clients. The cohort is {clients}, not {USUAL_COHORT} as usual.", stacklevel=4
        )

    def seen(self, rounds: int | None, clients: int) -> int:
        """A cohort of others in every round, while there are others."""
        return clients if rounds is None else min(clients, rounds * (self.cohort or USUAL_COHORT))

    def choose(self, t: int, clients: int, seed: int) -> Cohort:
        """Draw with a generator of the round's own."""
        draw = rng.generator(seed, rng.Purpose.COHORT, t)
        usual = USUAL_COHORT if self.replacement else min(USUAL_COHORT, clients)
        chosen = np.sort(draw.choice(clients, self.cohort or usual, replace=self.replacement))
        first = np.searchsorted(chosen, chosen)
        return Cohort(torch.from_numpy(chosen), torch.from_numpy(np.arange(len(chosen)) - first))
