"""Tensors that clients remember between rounds: private parameters, stale parts, masks.

In a simulation all clients' memories lie here, checkpointed with the run; on a real device each is the device's
own. A memory is a tensor per client under a name. All clients' tensors of one name have one shape, or each client
has some rows of a table, of its own number.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedslice.core.errors import UserError
from fedslice.core.slice import Axis

_IN_MEMORY = 2 << 30
# Of the places of a kind, of a memory in one array, and of one by rows.
_PARTS = (("places",), ("known", "rows"), ("clients", "counts", "ids", "values"))


class Store:
    """Tensors by name and client: in one growing array per name, or as rows of each client's own.

    Clients get a place in these arrays when something of them is remembered for the first time, so that memory and
    checkpoints grow with the clients that took part, however many others there are. Names of one kind, which is what
    stands before their first ``/``, share these places.

    An array of more than ``limit`` bytes lies in a file without a name in the directory for temporary files (TMPDIR),
    whose room the system takes back when the process ends, however it ends.
    """

    def __init__(self, clients: int | None, device: torch.device | None = None, limit: int = _IN_MEMORY):
        self._clients = sys.maxsize if clients is None else clients  # a server does not know how many there will be
        self.device = device or torch.device("cpu")
        self._limit = limit
        self._place: dict[str, dict[int, int]] = {}  # of each client with a memory, in the arrays of each kind
        self._rows: dict[str, Tensor] = {}
        self._known: dict[str, Tensor] = {}  # who has a memory of this name, by place
        self._sparse: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}

    def put(self, name: str, clients: Tensor, values: Tensor) -> None:
        """Remember ``values`` [clients, …] for these clients, each of which appears once."""
        if not len(clients):
            return
        known = self._place.setdefault(_kind(name), {})
        place = torch.tensor([known.setdefault(client, len(known)) for client in clients.tolist()])
        rows = self._rows.get(name, values.new_empty(0, *values.shape[1:]))
        if len(rows) <= int(place.max()):
            room = min(max(2 * len(rows), len(known)), self._clients)
            rows, old = self._array(name, rows, room), rows
            rows[: len(old)] = old
            self._known[name] = _longer(self._known.get(name), room)
            self._rows[name] = rows
        rows[place.to(rows.device)] = values.detach().to(rows.device)
        self._known[name][place] = True

    def get(self, name: str, clients: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return what these clients remember [clients, …] and who of them does; ``None`` if nobody does."""
        if name not in self._rows:
            return None
        rows, known = self._rows[name], self._place[_kind(name)]
        place = torch.tensor([known.get(client, -1) for client in clients.tolist()], dtype=torch.int64)
        there = (place >= 0) & (place < len(rows))
        place = place.where(there, 0)
        there &= self._known[name][place]
        return rows[place.to(rows.device)].to(self.device), there.to(self.device)

    def forget(self, prefix: str, clients: Tensor) -> None:
        """Forget what these clients remember under names that are ``prefix``, or begin with it and a slash."""
        gone = clients.tolist()
        for name in _under(prefix, self._known):
            places, known = self._place[_kind(name)], self._known[name]
            for client in gone:
                if places.get(client, len(known)) < len(known):
                    known[places[client]] = False
            if not bool(known.any()):
                del self._known[name], self._rows[name]
        for name in _under(prefix, self._sparse):
            for client in gone:
                self._sparse[name].pop(client, None)
            if not self._sparse[name]:
                del self._sparse[name]

    def _array(self, name: str, like: Tensor, room: int) -> Tensor:
        """Zeros for this many clients' tensors of one name, in memory or on disk."""
        size = room * prod(like.shape[1:]) * like.element_size()
        if size <= self._limit:
            return torch.zeros(room, *like.shape[1:], dtype=like.dtype, device=self.device)
        with tempfile.TemporaryFile() as file:  # what is mapped stays after the file is closed
            try:
                if hasattr(os, "posix_fallocate"):  # a disk that fills up later would end the process
                    os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise UserError(
                    f"what clients remember as {name!r} takes {size / 2**30:,.1f} GiB, which {tempfile.gettempdir()} "
                    f"has no room for ({error.strerror}); let TMPDIR name a directory on a larger disk."
                ) from None
            mapped = np.memmap(file, np.uint8, "r+", shape=(size,))
        return torch.from_numpy(mapped).view(like.dtype).view(room, *like.shape[1:])

    def put_rows(self, name: str, clients: Tensor, ids: Tensor, mine: Tensor, values: Tensor) -> None:
        """Remember ``values`` [clients, places, …] of the rows ``ids`` [clients, places] of a table, where ``mine``.

        They take the place of what these clients remembered before.
        """
        if not len(clients):
            return
        memory = self._sparse.setdefault(name, {})
        for client, own, rows, part in zip(clients.tolist(), mine, ids, values.detach(), strict=True):
            memory[client] = rows[own], part[own]

    def get_rows(self, name: str, clients: Tensor) -> tuple[Axis, Tensor] | None:
        """The rows that each of these clients remembers, and the values, zero on padding; ``None`` if nobody does."""
        memory = self._sparse.get(name)
        if memory is None:
            return None
        empty = tuple(part[:0] for part in next(iter(memory.values())))
        ids, values = zip(*(memory.get(client, empty) for client in clients.tolist()), strict=True)
        counts = torch.tensor([len(one) for one in ids], device=self.device)
        return Axis.from_flat(torch.cat(ids), counts), pad_sequence(list(values), batch_first=True)

    def state_dict(self) -> dict[str, Tensor]:
        """All memories, as tensors for a checkpoint."""
        out = {f"{kind}/places": torch.tensor(list(known)) for kind, known in self._place.items()}
        for name, known in self._known.items():
            used = int(known.nonzero().max()) + 1
            out[f"{name}/known"], out[f"{name}/rows"] = known[:used], self._rows[name][:used]
        for name, memory in self._sparse.items():
            ids, values = zip(*memory.values(), strict=True)
            out[f"{name}/clients"] = torch.tensor(list(memory))
            out[f"{name}/counts"] = torch.tensor([len(one) for one in ids])
            out[f"{name}/ids"], out[f"{name}/values"] = torch.cat(ids), torch.cat(values)
        return out

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved memories; places and numbers that point to no client or row are a ValueError."""
        for key, tensor in state.items():
            name, _, kind = key.rpartition("/")
            _check(key, kind, name, tensor, state, self._clients)
            if kind == "clients":
                counts = state[f"{name}/counts"].tolist()
                ids, values = (state[f"{name}/{part}"].to(self.device).split(counts) for part in ("ids", "values"))
                self._sparse[name] = dict(zip(tensor.tolist(), zip(ids, values, strict=True), strict=True))
            elif kind == "places":
                self._place[name] = {client: place for place, client in enumerate(tensor.tolist())}
            elif kind == "known":
                self._known[name] = tensor.cpu().clone()
            elif kind == "rows":
                self._rows[name] = self._array(name, tensor, len(tensor)).copy_(tensor)


def _kind(name: str) -> str:
    return name.partition("/")[0]


def _under(prefix: str, names: Iterable[str]) -> list[str]:
    """The names that are ``prefix``, or begin with it and a slash."""
    return [name for name in names if f"{name}/".startswith(f"{prefix}/")]


def _longer(flags: Tensor | None, size: int) -> Tensor:
    """Return the flags, filled up with false ones to a size."""
    out = torch.zeros(size, dtype=torch.bool)
    if flags is not None:
        out[: len(flags)] = flags
    return out


def _check(key: str, part: str, name: str, tensor: Tensor, state: Mapping[str, Tensor], clients: int) -> None:
    """A memory has all of its parts, and they fit together."""
    siblings = next((parts for parts in _PARTS if part in parts), ())
    if not siblings or any(f"{name}/{one}" not in state for one in siblings):
        raise ValueError(f"{key!r} is no part of a whole memory")
    if part in ("places", "clients", "counts", "ids") and (tensor.dtype != torch.int64 or tensor.dim() != 1):
        raise ValueError(f"{key!r} is {tensor.dtype} {list(tensor.shape)}, expected whole numbers in a row")
    if part in ("places", "clients"):
        known = tensor.unique()
        if len(known) < len(tensor) or bool(((tensor < 0) | (tensor >= clients)).any()):
            raise ValueError(f"{key!r} does not name some of {clients} clients, each once")
    if part == "known":
        places = state.get(f"{_kind(name)}/places", tensor[:0])
        fits = len(tensor) == len(state[f"{name}/rows"]) <= len(places)
        if tensor.dtype != torch.bool or tensor.dim() != 1 or not fits or not bool(tensor.any()):
            raise ValueError(f"{key!r} does not say which of {len(places)} clients remember a row")
    elif part == "clients":
        counts, lengths = state[f"{name}/counts"], {len(state[f"{name}/{one}"]) for one in ("ids", "values")}
        if len(counts) != len(tensor) or bool((counts < 0).any()) or lengths != {int(counts.sum())}:
            raise ValueError(f"'{name}/counts' does not say how many rows each client has")
    elif part == "ids" and bool((tensor < 0).any()):
        raise ValueError(f"{key!r} has numbers below 0")
