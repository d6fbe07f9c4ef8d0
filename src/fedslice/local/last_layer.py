"""The memory of a method that trains the last Linear layer in a way of its own."""

from __future__ import annotations

from fedslice.core.memory import Memory
from fedslice.core.part import ClientRun
from fedslice.network.head import head


class HeadMemory(Memory):
    """Knows which parameters are those of the last Linear layer.

    Args:
        run: The client's side of the run.
        place: The part's place in the recipe.
        method: The part's name in an error.
    """

    def __init__(self, run: ClientRun, place: str, method: str):
        super().__init__(run, place)
        self.head = frozenset(head(run.spec, method).parameters(run.spec))
