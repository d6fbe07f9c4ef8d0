"""The plain step of FedAvg and FedSubAvg."""

from __future__ import annotations

from typing import Any

from fedslice.core.part import Positive
from fedslice.core.slice import Values
from fedslice.core.update import Step
from fedslice.server.base import ServerOptimizer


class ServerSGD(ServerOptimizer):
    """X += η·step, on the rows that changed and nowhere else.

    Args:
        server_lr: Factor of the merged update, η; 1 takes it as it is.
    """

    label = "sgd"

    server_lr: Positive = 1.0

    @property
    def rate(self) -> float:
        """η."""
        return self.server_lr

    def step(self, state: Any, model: Values, step: Step, share: float) -> Step:  # noqa: ARG002
        """Add the step, row by row."""
        change: Step = {}
        for name, delta in step.items():
            change[name] = delta.map(lambda values: values * self.server_lr) if self.server_lr != 1.0 else delta
            change[name].add_to(model[name])
        return change
