"""Full participation (S3: every client uploads in every round)."""

import torch
from pydantic.dataclasses import dataclass

from fedslice.parts import CHECKED
from fedslice.select.base import Cohort, Select


@dataclass(config=CHECKED)
class Everyone(Select):
    """All clients in every round."""

    label = "everyone"

    def choose(self, t: int, clients: int, seed: int) -> Cohort:  # noqa: ARG002
        """The whole population."""
        return Cohort(torch.arange(clients), torch.zeros(clients, dtype=torch.int64))
