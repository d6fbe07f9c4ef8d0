"""The vectorised engine: the clients of a chunk train together, stacked on a leading axis."""

from typing import Any, ClassVar

from torch import Tensor
from torch.func import vmap

from fedslice.engines.base import Pass, Trained, descend
from fedslice.errors import UserError
from fedslice.local.sgd import SGD
from fedslice.task import Task
from fedslice.work import Work


class NotVectorizableError(UserError):
    """A model that trains client by client, but not under ``vmap``; ``reason`` is PyTorch's."""

    def __init__(self, model: str, error: RuntimeError):
        self.reason = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(" .")
        super().__init__(
            f"{model} cannot train with engine=vectorized ({self.reason}); use engine=sequential, or auto, which finds "
            "out by itself."
        )


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

        try:
            return descend(lift, task, local, work)
        except RuntimeError as error:  # one client's step has been run in plain PyTorch before (see choose)
            raise NotVectorizableError(type(task.module).__name__, error) from error
