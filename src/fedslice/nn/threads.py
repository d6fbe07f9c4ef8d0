"""Independent pieces of a computation on threads of their own, whose operations run on one thread each.

PyTorch shares out single operations, and its threads meet after each. Whole pieces need not meet before the end. That
pays where a piece spends its time outside of Python, whose threads wait for each other's lock; and it spares a process
that shares its cores with others the waits of threads that are running for those that are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def shared_out(run: Callable[[Piece], Result], pieces: Sequence[Piece], most: int | None = None) -> list[Result]:
    """``run`` of every piece, with gradients if the caller has them; the pieces must not write to the same place.

    At most so many run at once, by default as many as PyTorch has threads here. A thread that is done with a piece
    takes the next one, so that which thread runs a piece is left to chance, and results must not depend on it.
    """
    before = torch.get_num_threads()
    count = min(before if most is None else most, len(pieces))
    if count < 2:
        return [run(piece) for piece in pieces]
    gradients = torch.is_grad_enabled()  # each thread has a mode of its own

    def alone(piece: Piece) -> Result:
        with torch.set_grad_enabled(gradients):
            return run(piece)

    torch.set_num_threads(1)  # which is also what PyTorch gives to threads that it has not seen yet
    try:
        return list(_pool(count).map(alone, pieces))
    finally:
        torch.set_num_threads(before)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that keep to one thread each: PyTorch fixes the number for a thread when it is first asked for."""
    return ThreadPoolExecutor(threads, "fedslice", initializer=torch.get_num_threads)
