"""What clients remember between rounds: private parameters, stale parts, masks.

In a simulation all clients' memories lie here, checkpointed with the run; on a real device each is the device's
own. A memory is a tensor per client under a name. All clients' tensors of one name have one shape, or each client
has some rows of a table, of its own number.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedslice.slice import Axis


class Store:
    """Tensors by name and client: in one growing array per name, or as rows of each client's own."""

    def __init__(self, clients: int, device: torch.device | None = None):
        self._clients = clients
        self.device = device or torch.device("cpu")
        self._slot: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}
        self._sparse: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}

    def put(self, name: str, clients: Tensor, values: Tensor) -> None:
        """Remember ``values`` [clients, …] for these clients, each of which appears once."""
        if name not in self._slot:
            self._slot[name] = torch.full((self._clients,), -1, dtype=torch.int64, device=self.device)
            self._rows[name] = values.new_empty(0, *values.shape[1:])
        slot, rows = self._slot[name], self._rows[name]
        fresh = clients[slot[clients] < 0]
        used = int((slot >= 0).sum())
        if used + len(fresh) > len(rows):
            room = min(max(2 * len(rows), used + len(fresh)), self._clients)
            grown = rows.new_zeros(room, *rows.shape[1:])
            grown[:used] = rows[:used]
            self._rows[name] = rows = grown
        slot[fresh] = torch.arange(used, used + len(fresh), device=self.device)
        rows[slot[clients]] = values.detach()

    def get(self, name: str, clients: Tensor) -> tuple[Tensor, Tensor] | None:
        """What these clients remember [clients, …] and who of them remembers anything; ``None`` if nobody does."""
        if name not in self._slot:
            return None
        slot = self._slot[name][clients]
        return self._rows[name][slot.clamp(min=0)], slot >= 0

    def put_rows(self, name: str, clients: Tensor, ids: Tensor, mine: Tensor, values: Tensor) -> None:
        """Remember ``values`` [clients, places, …] of the rows ``ids`` [clients, places] of a table, where ``mine``.

        They take the place of what these clients remembered before.
        """
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
        """Continue from saved memories."""
        for key, tensor in state.items():
            name, _, kind = key.rpartition("/")
            if kind == "clients":
                counts = state[f"{name}/counts"].tolist()
                ids, values = (state[f"{name}/{part}"].to(self.device).split(counts) for part in ("ids", "values"))
                self._sparse[name] = dict(zip(tensor.tolist(), zip(ids, values, strict=True), strict=True))
            elif kind in ("slot", "rows"):
                (self._slot if kind == "slot" else self._rows)[name] = tensor.to(self.device).clone()
