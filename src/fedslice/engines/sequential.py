"""The sequential engine: one client at a time, with plain PyTorch."""

from typing import ClassVar

import torch
from torch import Tensor

from fedslice.engines.base import Trained, descend
from fedslice.local.sgd import SGD
from fedslice.slice import Values
from fedslice.task import Task
from fedslice.work import Work


class Sequential:
    """Faster where one client's batch fills the machine (large convolutions), and for models vmap cannot carry."""

    label: ClassVar[str] = "sequential"

    def train(self, task: Task, local: SGD, work: Work) -> Trained:
        """Each client in turn."""

        def forward(parameters: Values, features: dict[str, Tensor]) -> Tensor:
            one = {name: value[0] for name, value in parameters.items()}
            return task.forward(one, {name: value[0] for name, value in features.items()})[None]

        done = [descend(forward, task, local, work.part(slice(c, c + 1))) for c in range(len(work.clients))]
        end = {name: torch.cat([each.end[name] for each in done]) for name in work.start}
        return Trained(end, torch.cat([each.losses for each in done]))
