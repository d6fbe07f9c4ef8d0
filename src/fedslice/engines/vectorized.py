"""The vectorised engine: the clients of a chunk train together, stacked on a leading axis."""

from typing import Any, ClassVar

from torch import Tensor
from torch.func import vmap

from fedslice.engines.base import Pass, Trained, descend
from fedslice.local.sgd import SGD
from fedslice.task import Task
from fedslice.work import Work


class Vectorized:
    """``vmap`` over the forward pass, then one backward pass for all clients."""

    label: ClassVar[str] = "vectorized"

    def train(self, task: Task, local: SGD, work: Work) -> Trained:
        """All clients at once."""
        names, columns = list(work.start), list(work.features)

        def lift(function: Pass) -> Pass:
            def one(*tensors: Tensor) -> Any:
                split = len(names)
                return function(
                    dict(zip(names, tensors[:split], strict=True)), dict(zip(columns, tensors[split:], strict=True))
                )

            # On plain tensors: unpacking containers costs more than small layers.
            batched = vmap(one, randomness="different")
            return lambda parameters, features: batched(*parameters.values(), *features.values())

        return descend(lift, task, local, work)
