"""The clients that the server knows, and what they told of themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from fedslice.core.memory import NEVER


class Enrolled:
    """A table of clients that grows: which numbers are in use, their facts, and the last upload taken of each."""

    def __init__(self) -> None:
        self.version = 0  # changes whenever somebody enrols or leaves
        self._here = torch.zeros(0, dtype=torch.bool)
        self._facts: dict[str, Tensor] = {}
        self._upload_round = torch.zeros(0, dtype=torch.int64)
        self._numbers: tuple[int, Tensor] | None = None
        self._sums: dict[str, Tensor] = {}
        self._clients_of: Counter[int] = Counter()  # how many have each round as their last one

    @property
    def count(self) -> int:
        """Number of enrolled clients."""
        return len(self.numbers())

    @property
    def next(self) -> int:
        """A number that no client has had."""
        return len(self._here)

    def numbers(self) -> Tensor:
        """Return the numbers of all enrolled clients, ascending."""
        if self._numbers is None or self._numbers[0] != self.version:
            self._numbers = self.version, self._here.nonzero()[:, 0]
        return self._numbers[1]

    def has(self, clients: Tensor) -> Tensor:
        """Return which of these clients are enrolled [clients]."""
        known = (clients >= 0) & (clients < len(self._here))
        return known & self._here[clients.where(known, 0)] if len(self._here) else known & False

    def facts(self, name: str, clients: Tensor) -> Tensor:
        """Return a fact of these clients [clients, ...]."""
        return self._facts[name][clients.cpu()]

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
        who = clients.cpu()
        known = who < len(self._upload_round)
        if bool(known.all()):
            return self._upload_round[who]
        rounds = torch.full_like(who, NEVER)
        rounds[known] = self._upload_round[who[known]]
        return rounds

    def oldest(self) -> int:
        """Return the first round in which some client was taken for the last time; 0 if none ever was."""
        return min((t for t, clients in self._clients_of.items() if clients and t != NEVER), default=0)

    def took(self, clients: Tensor, t: int) -> None:
        """Note that the uploads of round ``t`` were taken."""
        who = clients.cpu().unique()
        self._clients_of.subtract(self._upload_round[who].tolist())
        self._clients_of[t] += len(who)
        self._upload_round[who] = t

    def forget_rounds(self, clients: Tensor) -> None:
        """Note that nothing is known of these clients' rounds."""
        self.took(clients, NEVER)

    def add(self, clients: Tensor, facts: Mapping[str, Tensor]) -> None:
        """Enrol clients, or change the facts of enrolled ones."""
        self._grow(int(clients.max()) + 1)
        self._here[clients] = True
        for name, values in facts.items():
            known = self._facts.get(name, values.new_zeros(0, *values.shape[1:]))
            self._facts[name] = _longer(known, len(self._here))
            self._tell(name, clients, values.to(known.dtype))
        self.version += 1

    def remove(self, clients: Tensor) -> None:
        """Forget clients. Their numbers are not used again."""
        self._here[clients] = False
        for name, values in self._facts.items():
            self._tell(name, clients, torch.zeros_like(values[clients]))
        self.forget_rounds(clients)
        self.version += 1

    def _tell(self, name: str, clients: Tensor, values: Tensor) -> None:
        """Change a fact of some clients, each of which appears once, and its sum."""
        change = values.double().sum(0) - self._facts[name][clients].double().sum(0)
        self._sums[name] = self._sums.get(name, 0) + change
        self._facts[name][clients] = values

    def _grow(self, size: int) -> None:
        if size > len(self._here):
            self._here = _longer(self._here, size)
            rounds = torch.full((size,), NEVER, dtype=torch.int64)
            rounds[: len(self._upload_round)] = self._upload_round
            self._upload_round = rounds
        self._facts = {name: _longer(values, len(self._here)) for name, values in self._facts.items()}

    def facts_dict(self) -> dict[str, Tensor]:
        """Return the enrolled clients with all facts, as tensors."""
        return {"here": self._here} | {f"fact.{name}": values for name, values in self._facts.items()}

    def load_facts_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved clients."""
        self._here = state["here"].bool()
        self._facts = {k.removeprefix("fact."): v.clone() for k, v in state.items() if k.startswith("fact.")}
        self._sums = {name: values.double().sum(0) for name, values in self._facts.items()}
        self._upload_round = torch.full((len(self._here),), NEVER, dtype=torch.int64)
        self._clients_of.clear()
        self.version += 1

    def state_dict(self) -> dict[str, Tensor]:
        """The rounds of those whose upload was ever taken, as tensors."""
        seen = (self._upload_round != NEVER).nonzero()[:, 0]
        return {"seen": seen, "upload_round": self._upload_round[seen]}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved rounds."""
        self._upload_round.fill_(NEVER)
        self._upload_round[state["seen"]] = state["upload_round"]
        self._clients_of = Counter(state["upload_round"].tolist())


def _longer(values: Tensor, size: int) -> Tensor:
    """The values with zeros behind them, up to a size."""
    if len(values) >= size:
        return values
    return torch.cat([values, values.new_zeros(size - len(values), *values.shape[1:])])
