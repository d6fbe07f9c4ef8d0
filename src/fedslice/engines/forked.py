"""Several processes for one chunk: each trains its share of the clients on one thread.

PyTorch's threads share out single operations and meet after each; Python's threads wait for each other's lock. A forked
process has the task, the model and the clients' data already, so nothing is sent to it, and it lays what it trained
into memory that both see.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from fedslice.engines.base import Engine, Trained
from fedslice.engines.scope import threads
from fedslice.local.sgd import SGD
from fedslice.task import Task
from fedslice.work import Work

AVAILABLE = sys.platform == "linux"  # elsewhere a fork is missing, or unsafe beside the system's own libraries


class Forked:
    """``inner`` on so many processes, this one among them; the others live as long as the chunk."""

    label: ClassVar[str] = "forked"

    def __init__(self, inner: Engine, processes: int) -> None:
        self.inner, self.processes = inner, processes

    def train(self, task: Task, local: SGD, work: Work) -> Trained:
        """This process takes the first share.

        It also takes the share of a process that did not end well: a mistake in the user's model then shows here.
        """
        clients = len(work.clients)
        edges = sorted({clients * k // self.processes for k in range(self.processes + 1)})
        first, *others = (slice(low, high) for low, high in pairwise(edges))
        end = {name: _shared(value.shape, value.dtype) for name, value in work.start.items()}
        losses = _shared(work.clients.shape, torch.float64)

        def run(share: slice) -> torch.dtype:
            done = self.inner.train(task, local, work.part(share))
            for name, value in done.end.items():
                end[name][share] = value
            losses[share] = done.losses
            return done.losses.dtype

        with threads(1):
            children = {_fork(run, share, number): share for number, share in enumerate(others, 1)}
            try:
                dtype = run(first)
                for child, share in list(children.items()):
                    _, status = os.waitpid(child, 0)
                    del children[child]
                    if status:
                        warnings.warn(f"A training process ended with status {status}; trying again.", stacklevel=2)
                        run(share)
            finally:
                for child in children:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
        return Trained(end, losses.to(dtype))


def _fork(run: Callable[[slice], object], share: slice, number: int) -> int:
    """A process that runs the share and ends; layers with randomness draw from a stream of its own."""
    child = os.fork()
    if child:
        return child
    status = 1
    with suppress(BaseException):  # whoever forked runs the share again, and meets the error there
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        torch.default_generator.manual_seed(torch.default_generator.initial_seed() + number)
        run(share)
        status = 0
    os._exit(status)


def _shared(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Memory that stays one and the same after a fork."""
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, shape.numel() * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype, count=shape.numel()).view(shape)
