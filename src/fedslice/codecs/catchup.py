"""What brings an absent client up to date when updates travel in a subspace that everyone must know."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedslice.parts import RoundEnd
from fedslice.slice import Values

_NEVER = -1


class CatchUp:
    """Words that come down, per client: the steps it has missed, or the model with the basis if they are fewer.

    A step of a full round is as large as what the client holds, any other as large as the basis has directions. Who
    joined after the first round lacks updates from which the first basis is made, and is sent that basis when the
    warm-up is over. S4 does not count any of this.
    """

    def __init__(self, clients: int, warmup: int):
        self._warmup = warmup
        self._joined = torch.full((clients,), _NEVER, dtype=torch.int64)
        self._seen = torch.full((clients,), _NEVER, dtype=torch.int64)
        # Of all rounds before each: how many were full, and how many coefficients the others had.
        self._full = torch.zeros(1, dtype=torch.int64)
        self._coefficients = torch.zeros(1, dtype=torch.int64)

    def add(self, end: RoundEnd, coefficients: int | None) -> None:
        """A round is over; its step was full, or so many coefficients."""
        clients = end.clients.cpu()
        self._joined[clients[self._joined[clients] == _NEVER]] = end.round
        self._seen[clients] = end.round
        self._full = torch.cat([self._full, self._full[-1:] + (coefficients is None)])
        self._coefficients = torch.cat([self._coefficients, self._coefficients[-1:] + (coefficients or 0)])

    def words(self, t: int, clients: Tensor, held: Tensor, rank: int) -> Tensor:
        """What comes down in round ``t`` to clients that hold so many values, of a basis of this rank."""
        seen, joined = self._seen[clients.cpu()], self._joined[clients.cpu()]
        since = seen.clamp(min=0)
        basis = held * rank + rank
        late = (joined > 0) & (seen < self._warmup) & (t >= self._warmup)
        steps = (self._full[t] - self._full[since]) * held + self._coefficients[t] - self._coefficients[since]
        afresh = held + basis * (t >= self._warmup)
        return torch.where(seen == _NEVER, afresh, (steps + late * basis).minimum(afresh))

    def state_dict(self) -> Values:
        """Who has seen what, and how large the steps were."""
        return {
            "joined": self._joined,
            "seen": self._seen,
            "full": self._full,
            "coefficients": self._coefficients,
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from there."""
        self._joined, self._seen = state["joined"].cpu(), state["seen"].cpu()
        self._full, self._coefficients = state["full"].cpu(), state["coefficients"].cpu()
