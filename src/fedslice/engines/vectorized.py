"""The vectorised engine: the clients of a chunk train together, stacked on a leading axis."""

from typing import ClassVar

from torch import Tensor
from torch.func import vmap

from fedslice.engines.base import Trained, descend
from fedslice.local.sgd import SGD
from fedslice.slice import Values
from fedslice.task import Task
from fedslice.work import Work


class Vectorized:
    """``vmap`` over the forward pass, then one backward pass for all clients."""

    label: ClassVar[str] = "vectorized"

    def train(self, task: Task, local: SGD, work: Work) -> Trained:
        """All clients at once."""
        names, columns = list(work.start), list(work.features)

        def one(*tensors: Tensor) -> Tensor:
            split = len(names)
            return task.forward(
                dict(zip(names, tensors[:split], strict=True)), dict(zip(columns, tensors[split:], strict=True))
            )

        batched = vmap(
            one, randomness="different"
        )  # on plain tensors: unpacking containers costs more than small layers

        def forward(parameters: Values, features: dict[str, Tensor]) -> Tensor:
            out: Tensor = batched(*parameters.values(), *features.values())
            return out

        return descend(forward, task, local, work)
