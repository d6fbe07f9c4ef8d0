"""The plain step of FedAvg and FedSubAvg."""

from pydantic.dataclasses import dataclass

from fedslice.messages import Step
from fedslice.parts import CHECKED, Positive
from fedslice.server.base import Server
from fedslice.slice import Values


@dataclass(config=CHECKED)
class ServerSGD(Server):
    """X += η·step, on the rows that changed and nowhere else."""

    label = "sgd"

    server_lr: Positive = 1.0

    def step(self, model: Values, step: Step, share: float) -> Step:  # noqa: ARG002
        """Add the step, row by row."""
        change: Step = {}
        for name, (rows, values) in step.items():
            delta = values * self.server_lr if self.server_lr != 1.0 else values
            if rows is None:
                model[name].add_(delta)
            else:
                model[name].index_add_(0, rows, delta)
            change[name] = rows, delta
        return change
