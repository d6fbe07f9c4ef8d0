"""Independent pieces of a computation on PyTorch's threads, one piece per thread.

PyTorch shares out single operations, and its threads meet after each. Whole pieces need not meet before the end. It
pays most where a piece spends its time outside of Python, whose threads wait for each other's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def shared_out(run: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """``run`` of every piece, without gradients; the pieces must not write to the same place."""
    threads = min(torch.get_num_threads(), len(pieces))
    if threads < 2:
        return [run(piece) for piece in pieces]

    def alone(piece: Piece) -> Result:
        with torch.no_grad():  # each thread has a mode of its own
            return run(piece)

    return list(_pool(threads).map(alone, pieces))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads whose operations run on one thread each; this thread's own number stays as it is."""
    return ThreadPoolExecutor(threads, "fedslice", initializer=torch.set_num_threads, initargs=(1,))
