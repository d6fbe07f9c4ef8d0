"""What comes down when the server's steps are compressed: those that a client has missed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedslice.parts import RoundEnd
from fedslice.slice import Values


class Missed:
    """How many bytes bring a client up to date.

    The server keeps the messages of past steps, and sends all those since the client last took part, or what the client
    holds of the model if that is smaller, as it is for a client's first time. Every step goes out whole, whatever part
    of it a client uses, and steps are sent one by one: their sum would never take more (Sattler et al. 2019, section V,
    cache partial sums). A client is taken to hold at its first time all that it will ever hold.
    """

    kinds = ("seen", "sent")  # of its state

    def __init__(self, clients: int):
        self._seen = torch.full((clients,), -1, dtype=torch.int64)  # the round that each client last took part in
        self._sent = torch.zeros(1, dtype=torch.int64)  # the bytes of all steps before each round

    def add(self, end: RoundEnd, size: int) -> None:
        """A round is over, and its step takes ``size`` bytes."""
        self._seen[end.clients.cpu()] = end.round
        self._sent = torch.cat([self._sent, self._sent[-1:] + size])

    def bytes(self, t: int, clients: Tensor, whole: Tensor) -> Tensor:
        """What comes down in round ``t``, given the bytes of what each client holds."""
        seen = self._seen[clients.cpu()]
        steps = self._sent[t] - self._sent[seen.clamp(min=0)]
        return torch.where(seen < 0, whole, steps.minimum(whole))

    def state_dict(self) -> Values:
        """Who has seen what, and what was sent."""
        return {"seen": self._seen, "sent": self._sent}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from there."""
        self._seen, self._sent = state["seen"].cpu(), state["sent"].cpu()
