"""What clients remember between rounds: private parameters, stale parts, masks.

In a simulation all clients' memories lie here, checkpointed with the run; on a real device each is the device's
own. A memory is a tensor per client under a name; all clients' tensors of one name have one shape.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Store:
    """Tensors by name and client, in one growing array per name."""

    def __init__(self, clients: int, device: torch.device | None = None):
        self._clients = clients
        self.device = device or torch.device("cpu")
        self._slot: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}

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

    def state_dict(self) -> dict[str, Tensor]:
        """All memories, as tensors for a checkpoint."""
        out = {}
        for name, slot in self._slot.items():
            out[f"{name}/slot"] = slot
            out[f"{name}/rows"] = self._rows[name][: int((slot >= 0).sum())]
        return out

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved memories."""
        for key, tensor in state.items():
            name, _, kind = key.rpartition("/")
            (self._slot if kind == "slot" else self._rows)[name] = tensor.to(self.device).clone()
