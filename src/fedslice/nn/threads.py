"""Independent pieces of a computation on PyTorch's threads, one piece per thread.

PyTorch shares out single operations. Where these are many and small, as in a loop over time, its threads mostly wait
for each other; whole pieces need not meet before the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def shared_out(run: Callable[[int, Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """``run(number, piece)`` for every piece, without gradients; the pieces must not write to the same place."""
    threads = min(torch.get_num_threads(), len(pieces))
    if threads < 2:
        return [run(number, piece) for number, piece in enumerate(pieces)]

    def alone(number: int, piece: Piece) -> Result:
        with torch.no_grad():  # each thread has a mode of its own
            return run(number, piece)

    return list(_pool(threads).map(alone, range(len(pieces)), pieces))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads whose operations run on one thread each; this thread's own number stays as it is."""
    return ThreadPoolExecutor(threads, "fedslice", initializer=torch.set_num_threads, initargs=(1,))
