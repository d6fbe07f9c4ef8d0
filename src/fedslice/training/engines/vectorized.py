"""The vectorised engine: the clients of a chunk train together, stacked on a leading axis."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedslice.core.errors import UserError
from fedslice.local.base import Local
from fedslice.task import Task
from fedslice.training.engines.base import Forward, Trained, train_chunk
from fedslice.training.engines.workers import Workers
from fedslice.training.work import Work


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

    def __init__(self, workers: Workers | None = None):
        self._workers = workers or Workers()

    def train(self, task: Task, local: Local, work: Work) -> Trained:
        """All clients at once, or with several workers as many parts, as even as can be."""
        clients = len(work.clients)
        count = min(self._workers.count, clients)
        edges = [clients * k // count for k in range(count + 1)]
        some = _alike(work) if work.cut else [torch.arange(first, last) for first, last in pairwise(edges)]
        parts = [work] if len(some) == 1 else [work.part(each) for each in some]
        with attention(work.label.device):
            done = self._workers.train(partial(_together, local), task, parts)
        if len(done) == 1:
            return done[0]
        trained = Trained.joined(done, {name: torch.cat([each.end[name] for each in done]) for name in done[0].end})
        return trained if not work.cut else trained.part(torch.cat(some).argsort())


def _alike(work: Work) -> list[Tensor]:
    """Return the clients by groups in which all batches are of one size, so that none is filled up."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for client, sizes in enumerate(work.real.sum(2).tolist()):
        groups.setdefault(tuple(sizes), []).append(client)
    return [torch.tensor(clients) for clients in groups.values()]


def attention(device: torch.device) -> AbstractContextManager[None]:
    """On the CPU attention by its equation: vmap knows its operations, and runs the fused kernel client by client."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()


def _together(local: Local, task: Task, work: Work) -> Trained:
    columns = list(work.features)

    def lift(function: Forward) -> Forward:
        names = [*work.start, *work.statistics]

        def one(*tensors: Tensor) -> Any:
            split = len(names)
            return function(
                dict(zip(names, tensors[:split], strict=True)), dict(zip(columns, tensors[split:], strict=True))
            )

        # On plain tensors: unpacking containers costs more than small layers.
        batched = vmap(one, randomness="different")
        return lambda parameters, features: batched(*map(parameters.__getitem__, names), *features.values())

    try:
        return train_chunk(lift, task, local, work)
    except RuntimeError as error:  # one client's step has been run in plain PyTorch before (see choose)
        raise NotVectorizableError(type(task.module).__name__, error) from error
