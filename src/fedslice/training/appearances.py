"""Clients whose messages the server expects, and clients that it has answered.

Clients stay tensors here, and are listed one by one only when somebody asks for one of them: where messages are bytes.
In a simulation nobody asks, however many clients there are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedslice.core.slice import Slice

_Appearance = tuple[int, int]  # a client's number, and its draw


class Awaited:
    """Appearances of clients from whom a message is expected."""

    def __init__(self) -> None:
        self._listed: set[_Appearance] = set()
        self._unlisted: list[tuple[Tensor, Tensor, bool]] = []

    def ask(self, clients: Tensor, draws: Tensor) -> None:
        """Expect a message of each of these, and of nobody else."""
        self._listed.clear()
        self._unlisted = [(clients, draws, True)]

    def arrived(self, clients: Tensor, draws: Tensor) -> None:
        """Expect none of these any more."""
        self._unlisted.append((clients, draws, False))

    def __contains__(self, appearance: _Appearance) -> bool:
        for clients, draws, asked in self._unlisted:
            change = self._listed.update if asked else self._listed.difference_update
            change(_appearances(clients, draws))
        self._unlisted.clear()
        return appearance in self._listed


class Chunk(NamedTuple):
    """Clients that were answered together, and what they hold."""

    clients: Tensor
    draws: Tensor
    hold: Slice


class Answered:
    """Chunks of clients that were sent a download in a round."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._places: dict[_Appearance, tuple[int, int]] = {}  # number of the chunk, and place in it
        self._listed = 0  # how many chunks

    def hold(self, clients: Tensor, draws: Tensor) -> Slice | None:
        """Return what a chunk of clients holds, or else the first of these clients; ``None`` if it was not answered."""
        if self.chunks and self.chunks[-1].clients is clients:
            return self.chunks[-1].hold
        found = self._find((int(clients[0]), int(draws[0])))
        if found is None:
            return None
        chunk, place = self.chunks[found[0]], found[1]
        whole = torch.equal(chunk.clients, clients) and torch.equal(chunk.draws, draws)
        return chunk.hold if whole else chunk.hold.one(place)

    def __contains__(self, appearance: _Appearance) -> bool:
        return self._find(appearance) is not None

    def _find(self, appearance: _Appearance) -> tuple[int, int] | None:
        for number in range(self._listed, len(self.chunks)):
            chunk = self.chunks[number]
            own = _appearances(chunk.clients, chunk.draws)
            self._places |= {each: (number, place) for place, each in enumerate(own)}
        self._listed = len(self.chunks)
        return self._places.get(appearance)


def _appearances(clients: Tensor, draws: Tensor) -> list[_Appearance]:
    return list(zip(clients.tolist(), draws.tolist(), strict=True))
