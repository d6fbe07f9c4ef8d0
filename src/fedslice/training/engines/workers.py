"""Parts of a chunk on threads of their own, each with a network of its own to put values into."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from threading import Lock
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedslice.nn.threads import shared_out
from fedslice.task import Task
from fedslice.training.engines.base import Trained
from fedslice.training.work import Work

_default_generator = Lock()


class Workers:
    """Threads that train parts of a chunk at the same time.

    Clients are independent, and each part is computed on one thread, so the result is that of the parts one after the
    other, to the bit, however the threads take turns.

    Args:
        count: How many parts are trained at once.
        noisy: Whether the network draws random numbers (dropout). PyTorch has one stream of them for all threads; each
            part then has its own.
    """

    def __init__(self, count: int = 1, noisy: bool = False):
        self.count = count
        self._noisy = noisy
        self._task: Task | None = None
        self._tasks: list[Task] = []

    def train(self, run: Callable[[Task, Work], Trained], task: Task, parts: Sequence[Work]) -> list[Trained]:
        """``run`` of every part."""
        if min(self.count, len(parts)) < 2:
            return [run(task, part) for part in parts]
        if task is not self._task:
            self._task, self._tasks = task, [task, *(twin(task) for _ in range(self.count - 1))]
        free: SimpleQueue[Task] = SimpleQueue()
        for each in self._tasks:
            free.put(each)
        seeds = torch.randint(2**62, (len(parts),)).tolist() if self._noisy else [None] * len(parts)

        def one(piece: tuple[Work, int | None]) -> Trained:
            part, seed = piece
            mine = free.get()
            try:
                if seed is None:
                    return run(mine, part)
                with _Stream(seed):
                    return run(mine, part)
            finally:
                free.put(mine)

        return shared_out(one, list(zip(parts, seeds, strict=True)), self.count)


def twin(task: Task) -> Task:
    """The same task with a copy of its module: values are put into a module for the time of a forward pass.

    The module's own parameter values, which are never used, are not copied.
    """
    same: dict[int, Any] = {id(value): value for value in task.module.parameters()}
    other = copy.copy(task)
    other.__dict__.pop("_slots", None)
    object.__setattr__(other, "module", copy.deepcopy(task.module, same))
    return other


class _Stream(TorchDispatchMode):
    """Operations draw from a stream of random numbers that begins at a seed and is no other thread's."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._state = torch.Generator().manual_seed(seed).get_state()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No compiler runs here, and to tell it to stand aside would load it first, which takes a second or two."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        shared = torch.default_generator
        with _default_generator:
            before = shared.get_state()
            shared.set_state(self._state)
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self._state = shared.get_state()
                shared.set_state(before)
