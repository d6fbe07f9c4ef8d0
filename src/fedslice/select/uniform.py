"""Uniform sampling (S0, algorithm 1, line 3)."""

import numpy as np
import torch
from pydantic.dataclasses import dataclass

from fedslice import rng
from fedslice.errors import UserError
from fedslice.parts import CHECKED, Count, World
from fedslice.select.base import Cohort, Select


@dataclass(config=CHECKED)
class Uniform(Select):
    """``cohort`` clients, each equally likely, without replacement unless said otherwise."""

    label = "uniform"

    cohort: Count = 50
    replacement: bool = False

    def repeats(self) -> bool:
        """A client can be drawn twice only with replacement."""
        return self.replacement

    def setup(self, world: World) -> None:
        """Refuse a cohort that the population cannot fill."""
        clients = len(world.task.federation)
        if self.cohort > clients and not self.replacement:
            raise UserError(f"cohort={self.cohort} but the task has {clients} clients; give {clients} or fewer.")

    def seen(self, rounds: int | None, clients: int) -> int:
        """A cohort of others in every round, while there are others."""
        return clients if rounds is None else min(clients, rounds * self.cohort)

    def choose(self, t: int, clients: int, seed: int) -> Cohort:
        """Draw with a generator of the round's own."""
        draw = rng.generator(seed, rng.Purpose.COHORT, t)
        chosen = np.sort(draw.choice(clients, self.cohort, replace=self.replacement))
        first = np.searchsorted(chosen, chosen)
        return Cohort(torch.from_numpy(chosen), torch.from_numpy(np.arange(len(chosen)) - first))
