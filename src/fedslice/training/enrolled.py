"""The clients that the server knows, and what they told of themselves."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedslice.core.memory import NEVER


class Enrolled:
    """A table of clients that grows: which numbers are in use, their facts, and the last messages from and to each."""

    def __init__(self) -> None:
        self.version = 0  # changes whenever somebody enrols or leaves
        self.count = 0  # number of enrolled clients
        self.next = 0  # a number that no client has had
        self._here = torch.zeros(0, dtype=torch.bool)  # by number, as the others; with room for more
        self._gone = torch.zeros(0, dtype=torch.bool)  # who has been here, and left
        self._facts: dict[str, Tensor] = {}
        self._upload_round = torch.zeros(0, dtype=torch.int64)
        self._model_round = torch.zeros(0, dtype=torch.int64)
        self._numbers: tuple[int, Tensor] | None = None
        self._sums: dict[str, Tensor] = {}
        # How many clients have each round as their last one, in order; None after a restart until somebody asks.
        self._clients_of: dict[int, int] | None = {}

    def numbers(self) -> Tensor:
        """Return the numbers of all enrolled clients, ascending."""
        if self._numbers is None or self._numbers[0] != self.version:
            self._numbers = self.version, self._here.nonzero()[:, 0]
        return self._numbers[1]

    def has(self, clients: Tensor) -> Tensor:
        """Return which of these clients are enrolled [clients]."""
        return self._flag(self._here, clients)

    def gone(self, clients: Tensor) -> Tensor:
        """Return which of these clients have left [clients]."""
        return self._flag(self._gone, clients)

    def _flag(self, flags: Tensor, clients: Tensor) -> Tensor:
        known = (clients >= 0) & (clients < self.next)
        return known & flags[clients.where(known, 0)] if self.next else known & False

    def facts(self, name: str, clients: Tensor) -> Tensor:
        """Return a fact of these clients [clients, ...]."""
        return self._facts[name].index_select(0, clients.cpu())

    def all_facts(self, name: str) -> Tensor:
        """Return a fact of all enrolled clients, in the order of :meth:`numbers`."""
        return self._facts[name][self.numbers()]

    def sum(self, name: str) -> float:
        """Return the sum of a fact over all enrolled clients."""
        return float(self.sums(name).sum())

    def sums(self, name: str) -> Tensor:
        """Return the sum of a fact over all enrolled clients, entry by entry, in float64: exact for whole numbers."""
        return self._sums[name]

    def upload_round(self, clients: Tensor) -> Tensor:
        """Return the last round of which the upload was taken [clients], -1 for none and for unknown clients."""
        return self._of(self._upload_round, clients)

    def model_round(self, clients: Tensor) -> Tensor:
        """Return the last round whose download each client was sent [clients], -1 for none and for unknown clients."""
        return self._of(self._model_round, clients)

    def _of(self, rounds: Tensor, clients: Tensor) -> Tensor:
        who = clients.cpu()
        try:
            return rounds.index_select(0, who)  # beyond the last client all are NEVER
        except IndexError:
            known = who < len(rounds)
            out = torch.full_like(who, NEVER)
            out[known] = rounds[who[known]]
            return out

    def oldest(self) -> int:
        """Return the first round in which some client was taken for the last time; 0 if none ever was."""
        if self._clients_of is None:
            rounds, clients = self._upload_round[self._upload_round != NEVER].unique(return_counts=True)
            self._clients_of = dict(zip(rounds.tolist(), clients.tolist(), strict=True))
        return next(iter(self._clients_of), 0)

    def took(self, clients: Tensor, t: int) -> None:
        """Note that the uploads of round ``t``, which is not before any other, were taken."""
        self._last(clients, t)

    def sent(self, clients: Tensor, t: int) -> None:
        """Note that these clients were sent the download of round ``t``."""
        self._model_round.index_fill_(0, clients.cpu(), t)

    def forget_rounds(self, clients: Tensor) -> None:
        """Note that nothing is known of these clients' rounds."""
        self._last(clients, NEVER)

    def _last(self, clients: Tensor, t: int) -> None:
        who = clients.cpu()
        if self._clients_of is not None:
            who = who.unique()
            for before in self._upload_round[who].tolist():
                if before != NEVER:
                    self._clients_of[before] -= 1
                    if not self._clients_of[before]:
                        del self._clients_of[before]
            if t != NEVER and len(who):
                self._clients_of[t] = self._clients_of.get(t, 0) + len(who)
        self._upload_round.index_fill_(0, who, t)

    def add(self, clients: Tensor, facts: Mapping[str, Tensor]) -> None:
        """Enrol clients, or change the facts of enrolled ones."""
        self._grow(int(clients.max()) + 1)
        self.count += int((~self._here[clients]).sum())
        self._here[clients] = True
        self._gone[clients] = False
        for name, values in facts.items():
            if name not in self._facts:
                self._facts[name] = values.new_zeros(len(self._here), *values.shape[1:])
            self._tell(name, clients, values.to(self._facts[name].dtype))
        self.version += 1

    def remove(self, clients: Tensor) -> None:
        """Forget clients. Their numbers are not used again."""
        self.count -= int(self._here[clients].sum())
        self._gone[clients] = self._here[clients]
        self._here[clients] = False
        for name, values in self._facts.items():
            self._tell(name, clients, torch.zeros_like(values[clients]))
        self.forget_rounds(clients)
        self.sent(clients, NEVER)
        self.version += 1

    def _tell(self, name: str, clients: Tensor, values: Tensor) -> None:
        """Change a fact of some clients, each of which appears once, and its sum."""
        change = values.double().sum(0) - self._facts[name][clients].double().sum(0)
        self._sums[name] = self._sums.get(name, 0) + change
        self._facts[name][clients] = values

    def _grow(self, size: int) -> None:
        self.next = max(size, self.next)
        if size > len(self._here):
            room = max(size, 2 * len(self._here))
            self._here = _longer(self._here, room, 0)
            self._gone = _longer(self._gone, room, 0)
            self._upload_round = _longer(self._upload_round, room, NEVER)
            self._model_round = _longer(self._model_round, room, NEVER)
            self._facts = {name: _longer(values, room, 0) for name, values in self._facts.items()}

    def facts_dict(self) -> dict[str, Tensor]:
        """Return the enrolled clients with all facts, as tensors."""
        facts = {f"fact.{name}": values[: self.next] for name, values in self._facts.items()}
        return {"here": self._here[: self.next], "gone": self._gone[: self.next]} | facts

    def load_facts_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved clients."""
        self._here, self._gone = state["here"].bool().clone(), state["gone"].bool().clone()
        self.next, self.count = len(self._here), int(self._here.sum())
        self._facts = {k.removeprefix("fact."): v.clone() for k, v in state.items() if k.startswith("fact.")}
        self._sums = {name: values.double().sum(0) for name, values in self._facts.items()}
        self._upload_round = torch.full((len(self._here),), NEVER, dtype=torch.int64)
        self._model_round = self._upload_round.clone()
        self._clients_of = None
        self.version += 1

    def state_dict(self) -> dict[str, Tensor]:
        """Return the rounds of clients that have any, as tensors."""
        seen = ((self._model_round != NEVER) | (self._upload_round != NEVER)).nonzero()[:, 0]
        return {"seen": seen, "upload_round": self._upload_round[seen], "model_round": self._model_round[seen]}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved rounds."""
        for name, rounds in (("upload_round", self._upload_round), ("model_round", self._model_round)):
            rounds.fill_(NEVER)
            rounds[state["seen"]] = state[name]
        self._clients_of = None


def _longer(values: Tensor, size: int, rest: int) -> Tensor:
    """The values, and ``rest`` behind them up to a size."""
    return torch.cat([values, values.new_full((size - len(values), *values.shape[1:]), rest)])
