"""CentralSGD: the reference in which all data lie in one place (FedSubAvg, section 5.1)."""

from __future__ import annotations

from typing import Any

import torch

from fedslice.core.part import Count
from fedslice.select.base import USUAL_COHORT, Cohort, Select
from fedslice.task import Task


class Pooled(Select):
    """One client owns all samples and stands for a cohort: its batches are ``cohort`` (usually 50) times as large.

    Args:
        cohort (clients): How many clients one stands for: batches are so many times as large; 50 if not given.
    """

    label = "pooled"

    cohort: Count | None = None

    @property
    def provides(self) -> frozenset[str]:
        """Nothing travels."""
        return frozenset({"pools"})

    def population(self, task: Task) -> Task:
        """Everyone's samples in one hand."""
        return task.pooled()

    def batch_scale(self) -> int:
        """The pooled batch is K·B."""
        return self.cohort or USUAL_COHORT

    def choose(self, state: Any, t: int) -> Cohort:  # noqa: ARG002
        """The only client there is."""
        return Cohort(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
