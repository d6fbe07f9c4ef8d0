"""What clients remember between rounds: private parameters, stale parts, masks.

In a simulation all clients' memories lie here, checkpointed with the run; on a real device each is the device's
own. A memory is a tensor per client under a name. All clients' tensors of one name have one shape, or each client
has some rows of a table, of its own number.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedslice.errors import UserError
from fedslice.slice import Axis

_IN_MEMORY = 2 << 30
_PARTS = (("slot", "rows"), ("clients", "counts", "ids", "values"))  # of a memory in one array, and by rows


class Store:
    """Tensors by name and client: in one growing array per name, or as rows of each client's own.

    An array of more than ``limit`` bytes lies in a file without a name in the directory for temporary files (TMPDIR),
    whose room the system takes back when the process ends, however it ends.
    """

    def __init__(self, clients: int, device: torch.device | None = None, limit: int = _IN_MEMORY):
        self._clients = clients
        self.device = device or torch.device("cpu")
        self._limit = limit
        self._slot: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}
        self._sparse: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}

    def put(self, name: str, clients: Tensor, values: Tensor) -> None:
        """Remember ``values`` [clients, …] for these clients, each of which appears once."""
        if not len(clients):
            return
        if name not in self._slot:
            self._slot[name] = torch.full((self._clients,), -1, dtype=torch.int64, device=self.device)
            self._rows[name] = values.new_empty(0, *values.shape[1:])
        slot, rows = self._slot[name], self._rows[name]
        fresh = clients[slot[clients] < 0]
        used = int((slot >= 0).sum())
        if used + len(fresh) > len(rows):
            room = min(max(2 * len(rows), used + len(fresh)), self._clients)
            grown = self._array(name, rows, room)
            grown[:used] = rows[:used]
            self._rows[name] = rows = grown
        slot[fresh] = torch.arange(used, used + len(fresh), device=self.device)
        rows[slot[clients].to(rows.device)] = values.detach().to(rows.device)

    def get(self, name: str, clients: Tensor) -> tuple[Tensor, Tensor] | None:
        """What these clients remember [clients, …] and who of them remembers anything; ``None`` if nobody does."""
        if name not in self._slot:
            return None
        slot, rows = self._slot[name][clients], self._rows[name]
        return rows[slot.clamp(min=0).to(rows.device)].to(self.device), slot >= 0

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
        out = {}
        for name, slot in self._slot.items():
            out[f"{name}/slot"] = slot
            out[f"{name}/rows"] = self._rows[name][: int((slot >= 0).sum())]
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
            elif kind == "slot":
                self._slot[name] = tensor.to(self.device).clone()
            elif kind == "rows":
                self._rows[name] = self._array(name, tensor, len(tensor)).copy_(tensor)


def _check(key: str, kind: str, name: str, tensor: Tensor, state: Mapping[str, Tensor], clients: int) -> None:
    """A memory has all of its parts, and they fit together."""
    siblings = next((parts for parts in _PARTS if kind in parts), ())
    if not siblings or any(f"{name}/{part}" not in state for part in siblings):
        raise ValueError(f"{key!r} is no part of a whole memory")
    if kind in ("slot", "clients", "counts", "ids") and (tensor.dtype != torch.int64 or tensor.dim() != 1):
        raise ValueError(f"{key!r} is {tensor.dtype} {list(tensor.shape)}, expected whole numbers in a row")
    if kind == "slot":
        used = tensor[tensor >= 0].sort().values
        places = torch.arange(len(state[f"{name}/rows"]), device=tensor.device)
        if len(tensor) != clients or not torch.equal(used, places):
            raise ValueError(f"{key!r} does not give each of {len(places)} rows to one of {clients} clients")
    elif kind == "clients":
        counts, lengths = state[f"{name}/counts"], {len(state[f"{name}/{part}"]) for part in ("ids", "values")}
        known = tensor.unique()
        if len(known) < len(tensor) or bool(((tensor < 0) | (tensor >= clients)).any()):
            raise ValueError(f"{key!r} does not name some of {clients} clients, each once")
        if len(counts) != len(tensor) or bool((counts < 0).any()) or lengths != {int(counts.sum())}:
            raise ValueError(f"'{name}/counts' does not say how many rows each client has")
    elif kind == "ids" and bool((tensor < 0).any()):
        raise ValueError(f"{key!r} has numbers below 0")
