"""The books of a run: bytes by direction and field, words, and the simulated clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


class Ledger:
    """Sums over all clients and rounds so far.

    Attributes:
        up: Uploaded bytes by field.
        down: Downloaded bytes by field.
        words: Uploaded 32-bit words, as FLSS's paper counts them.
        clock: Seconds that the rounds would have taken on the simulated devices.
    """

    def __init__(self) -> None:
        self.up: dict[str, int] = {}
        self.down: dict[str, int] = {}
        self.words = 0.0
        self.clock = 0.0

    def sent(self, sizes: Mapping[str, Tensor], words: Tensor) -> None:
        """Enter the uploads of a chunk: [clients] bytes by field."""
        _enter(self.up, sizes)
        self.words += float(words.sum())

    def received(self, sizes: Mapping[str, Tensor]) -> None:
        """Enter the downloads of a chunk."""
        _enter(self.down, sizes)

    @property
    def up_bytes(self) -> int:
        """Uploaded bytes of all fields."""
        return sum(self.up.values())

    @property
    def down_bytes(self) -> int:
        """Downloaded bytes of all fields."""
        return sum(self.down.values())

    def state_dict(self) -> dict[str, Any]:
        """The books, for a checkpoint."""
        return {"up": dict(self.up), "down": dict(self.down), "words": self.words, "clock": self.clock}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with saved books."""
        self.up, self.down = dict(state["up"]), dict(state["down"])
        self.words, self.clock = state["words"], state["clock"]


def _enter(books: dict[str, int], sizes: Mapping[str, Tensor]) -> None:
    for name, size in sizes.items():
        books[name] = books.get(name, 0) + int(size.sum())
