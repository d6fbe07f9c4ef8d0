"""Channel dropout: every client uploads some output channels of each layer (S3, algorithm 1)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice import rng
from fedslice.parts import CHECKED, Count, World
from fedslice.slice import Axis, Slice, Values
from fedslice.slices.base import Slices


@dataclass(config=CHECKED)
class ChannelDropout(Slices):
    """A share ``rate`` of each layer's output channels stays at home, chosen at random in every round.

    What went up comes down again, merged, at the client's next round; the rest of its model stays as it trained it
    (equation 5). Every ``full_every`` rounds the whole model comes down instead (equation 6).
    """

    label = "channel-dropout"
    stale = True
    remembers = True

    rate: Annotated[float, Field(ge=0, lt=1)] = 0.5
    full_every: Count = 5

    def setup(self, world: World) -> None:
        """Find the layers: parameters of one module share its output channels."""
        super().setup(world)
        self._seed = world.seed
        self._store = world.store
        self._layers: dict[str, list[str]] = {}
        for name in self._shapes:
            self._layers.setdefault(name.rpartition(".")[0], []).append(name)

    def down(self, t: int, clients: Tensor, hold: Slice) -> Slice:
        """The client's last mask, or everything: on full rounds and for who has not taken part yet."""
        if t % self.full_every == 0:
            return hold
        changes: dict[str, Axis | None] = {}
        for layer, names in self._layers.items():
            memory = self._store.get(f"mask/{layer}", clients)
            if memory is None:
                return hold
            mask, known = memory
            changes |= dict.fromkeys(names, Axis.from_mask(mask | ~known[:, None]))
        return hold.replace(changes)

    def up(self, t: int, clients: Tensor, hold: Slice, start: Values, end: Values) -> Slice:  # noqa: ARG002
        """n_up = N_l·(1 − D) random channels of each layer, at least one."""
        changes: dict[str, Axis | None] = {}
        for number, names in enumerate(self._layers.values()):
            channels = self._shapes[names[0]][0]
            sent = min(max(round(channels * (1 - self.rate)), 1), channels)
            who = clients.cpu().numpy()[:, None]
            keys = rng.bits(self._seed, rng.Purpose.SLICE, t, number, who, np.arange(channels)[None])
            chosen = np.argsort(keys, axis=1, kind="stable")[:, :sent]
            mask = np.zeros(keys.shape, dtype=np.bool_)
            np.put_along_axis(mask, chosen, True, axis=1)
            changes |= dict.fromkeys(names, Axis.from_mask(torch.from_numpy(mask).to(clients.device)))
        return hold.replace(changes)

    def sent(self, clients: Tensor, up: Slice, taken: Tensor) -> None:
        """Remember the mask; a client whose upload was refused has no merged channels to look forward to."""
        for layer, names in self._layers.items():
            axis, channels = up.axes[names[0]][0], self._shapes[names[0]][0]
            every = torch.arange(channels, device=clients.device).expand(len(clients), -1).contiguous()
            mask = torch.ones_like(every, dtype=torch.bool) if axis is None else axis.contains(every)
            self._store.put(f"mask/{layer}", clients[taken], mask[taken])

    def kept(self) -> frozenset[str]:
        """The whole local model."""
        return frozenset(self._shapes)
