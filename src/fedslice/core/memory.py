"""Memories of clients between rounds; they become certain only when the server has taken the upload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedslice.core.slice import Axis
from fedslice.core.store import Store

if TYPE_CHECKING:
    from fedslice.core.part import ClientRun

NEVER = -1


class _Write(NamedTuple):
    """Values that some clients want to remember under a name: whole tensors, or rows of a table."""

    name: str
    clients: Tensor
    values: Tensor
    ids: Tensor | None = None
    mask: Tensor | None = None


class ClientMemories:
    """The memories of a population of clients, on the client's side.

    A client writes while it trains, and cannot know whether the server will take its upload. What it writes is pending,
    under the round's number, until :meth:`settle` is told which round the server took last: then it is committed, or
    dropped. Reading gives committed values. A client whose rounds the server does not know forgets what is paired.

    Args:
        store: Committed values.
        clients: Size of the population.
    """

    def __init__(self, store: Store, clients: int):
        self.store = store
        self.model_round = torch.full((clients,), NEVER, dtype=torch.int64)  # the last download that was kept
        self.committed = torch.full((clients,), NEVER, dtype=torch.int64)  # the last upload known to be taken
        self.pending_round = torch.full((clients,), NEVER, dtype=torch.int64)
        self.looking = False  # whether what comes down is only looked at
        self._pending: list[_Write] = []
        self._paired: list[str] = []

    def pair(self, prefixes: Iterable[str]) -> None:
        """Declare names of memories, by their beginnings, that are worthless without the server's half."""
        self._paired += prefixes

    def write(self, name: str, clients: Tensor, values: Tensor) -> None:
        """Remember ``values`` [clients, ...] if this round's upload is taken."""
        self._pending.append(_Write(name, clients, values.detach()))

    def write_rows(self, name: str, clients: Tensor, ids: Tensor, mask: Tensor, values: Tensor) -> None:
        """Remember rows ``ids`` [clients, places] of a table, where ``mask``, if this round's upload is taken."""
        self._pending.append(_Write(name, clients, values.detach(), ids, mask))

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Let clients remember nothing of what comes down meanwhile, because it is part of no round."""
        self.looking = True
        try:
            yield
        finally:
            self.looking = False

    def end_round(self, t: int, clients: Tensor) -> None:
        """Note that what these clients have written belongs to round ``t``."""
        self.pending_round.index_fill_(0, clients.cpu(), t)

    def settle(self, clients: Tensor, taken: Tensor) -> None:
        """Commit, drop or forget what is pending of these clients, of whom the server took round ``taken`` last.

        A server that went back to an older state knows another past than some clients, whose copies of the model are of
        no use to it.
        """
        who = clients.cpu()
        pending, committed = self.pending_round.index_select(0, who), self.committed.index_select(0, who)
        if not len(who) or (torch.equal(taken, committed) and int(pending.max()) == NEVER):
            return
        if not self._pending and torch.equal(taken, pending) and int(pending.min()) != NEVER:
            self.committed.index_copy_(0, who, pending)  # nothing is written, and everybody was taken
            self.pending_round.index_fill_(0, who, NEVER)
            return
        commit = (pending != NEVER) & (pending == taken)
        strange = ~commit & (taken != committed)
        if self._pending:
            self._commit(who[commit])
            self._drop(who)
        if bool(strange.any()):
            for prefix in self._paired:
                self.store.forget(prefix, who[strange])
            self.model_round[who[strange]] = NEVER
        self.committed[who] = torch.where(commit, pending, torch.where(strange, NEVER, committed))
        self.pending_round[who] = NEVER

    def _commit(self, clients: Tensor) -> None:
        for write in self._pending:
            chosen = torch.isin(write.clients.cpu(), clients)
            if not bool(chosen.any()):
                continue
            some = slice(None) if bool(chosen.all()) else chosen.to(write.values.device)
            who = write.clients[chosen.to(write.clients.device)]
            if write.ids is None or write.mask is None:
                self.store.put(write.name, who, write.values[some])
            else:
                self.store.put_rows(write.name, who, write.ids[some], write.mask[some], write.values[some])

    def _drop(self, clients: Tensor) -> None:
        left: list[_Write] = []
        for write in self._pending:
            keep = ~torch.isin(write.clients.cpu(), clients)
            if bool(keep.any()):
                some = keep.to(write.values.device)
                ids = None if write.ids is None else write.ids[some]
                mask = None if write.mask is None else write.mask[some]
                left.append(_Write(write.name, write.clients[some], write.values[some], ids, mask))
        self._pending = left

    def state_dict(self, pending: bool = False) -> dict[str, Tensor]:
        """All memories as tensors; with ``pending`` also what is not settled, as a device must keep it."""
        state = {f"store.{name}": value for name, value in self.store.state_dict().items()}
        seen = ((self.model_round != NEVER) | (self.committed != NEVER)).nonzero()[:, 0]
        state |= {
            "rounds.clients": seen,
            "rounds.model": self.model_round[seen],
            "rounds.committed": self.committed[seen],
        }
        if pending:
            waiting = (self.pending_round != NEVER).nonzero()[:, 0]
            state |= {"pending.clients": waiting, "pending.round": self.pending_round[waiting]}
            for number, write in enumerate(self._pending):
                parts = {"who": write.clients, "values": write.values, "ids": write.ids, "mask": write.mask}
                state |= {
                    f"pending.{number}.{part}.{write.name}": value for part, value in parts.items() if value is not None
                }
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved memories."""
        self.store.load_state_dict({k.removeprefix("store."): v for k, v in state.items() if k.startswith("store.")})
        seen = state["rounds.clients"]
        self.model_round.fill_(NEVER)
        self.committed.fill_(NEVER)
        self.pending_round.fill_(NEVER)
        self.model_round[seen] = state["rounds.model"]
        self.committed[seen] = state["rounds.committed"]
        if "pending.clients" in state:
            self.pending_round[state["pending.clients"]] = state["pending.round"]
        found: dict[int, dict[str, Tensor]] = {}
        names: dict[int, str] = {}
        for key, value in state.items():
            kind, _, rest = key.partition(".")
            if kind == "pending" and rest not in ("clients", "round"):
                number, part, name = rest.split(".", 2)
                found.setdefault(int(number), {})[part] = value
                names[int(number)] = name
        self._pending = [
            _Write(names[n], own["who"], own["values"], own.get("ids"), own.get("mask"))
            for n, own in sorted(found.items())
        ]


class Memory:
    """A part's view of what clients remember, and of what it found out about the client's side when the run began.

    Names are the part's own: two parts never share a memory. Subclasses add what a part derives from the network or
    from the clients' data, which never changes during a run.

    Args:
        run: The client's side of the run.
        place: The part's place in the recipe, as ``codec`` or ``codec.inner``.
    """

    def __init__(self, run: ClientRun, place: str):
        self.run = run
        self.place = place

    def get(self, name: str, clients: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return what these clients remember [clients, ...] and who of them does [clients]; ``None`` if nobody does."""
        return self.run.memories.store.get(self._full(name), clients)

    def put(self, name: str, clients: Tensor, values: Tensor) -> None:
        """Remember ``values`` [clients, ...] if this round's upload is taken."""
        self.run.memories.write(self._full(name), clients, values)

    def get_rows(self, name: str, clients: Tensor) -> tuple[Axis, Tensor] | None:
        """Return the rows that each of these clients remembers, and their values, zero on padding."""
        return self.run.memories.store.get_rows(self._full(name), clients)

    def put_rows(self, name: str, clients: Tensor, ids: Tensor, mask: Tensor, values: Tensor) -> None:
        """Remember rows ``ids`` [clients, places] of a table, where ``mask``, in place of what was remembered."""
        self.run.memories.write_rows(self._full(name), clients, ids, mask, values)

    def keep(self, name: str, clients: Tensor, values: Tensor) -> None:
        """Remember at once, whatever becomes of the upload: for what was downloaded."""
        if not self.run.memories.looking:
            self.run.memories.store.put(self._full(name), clients, values)

    def keep_rows(self, name: str, clients: Tensor, ids: Tensor, mask: Tensor, values: Tensor) -> None:
        """Remember rows at once, in place of what was remembered, whatever becomes of the upload."""
        if not self.run.memories.looking:
            self.run.memories.store.put_rows(self._full(name), clients, ids, mask, values)

    def pair(self, *names: str) -> None:
        """Declare memories that are forgotten if the server does not know this client's rounds."""
        self.run.memories.pair(self._full(name) for name in names)

    def _full(self, name: str) -> str:
        return f"{self.place}.{name}"
