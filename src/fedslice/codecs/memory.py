"""What a codec remembers of each client: one value per coordinate of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedslice.errors import UserError
from fedslice.parts import World
from fedslice.slice import Slice

if TYPE_CHECKING:
    from fedslice.codecs.base import Codec

_MOST = 8 * 2**30  # bytes that all clients' memories may take


class Memory:
    """Zero where nothing was put; a client whose slice changes keeps what it remembers outside of the new one."""

    def __init__(self, codec: Codec, kind: str, world: World):
        self._key = f"{codec.label}/{kind}"
        self._store = world.store
        clients = world.recipe.select.seen(world.rounds, len(world.task.federation))
        size = clients * world.task.itemsize * sum(shape.numel() for shape in world.task.shapes.values())
        if size > _MOST:
            raise UserError(
                f"codec={codec.label} remembers a whole model for each of {clients:,} clients, {size / 2**30:,.1f} GiB "
                f"where {_MOST / 2**30:g} are allowed; take fewer clients or rounds, or a codec without memory "
                "(quantize, fetchsgd, or topk with error_feedback=false)."
            )

    def recall(self, clients: Tensor, part: Slice, name: str, like: Tensor) -> Tensor:
        """A parameter's remembered values on a slice, whose values are ``like``."""
        whole = self._whole(clients, part, name)
        if whole is None:
            return torch.zeros_like(like)
        return part.only([name]).pick({name: whole}, _everywhere(part, name))[name]

    def keep(self, clients: Tensor, part: Slice, name: str, values: Tensor, which: Tensor) -> None:
        """Remember a parameter's values on a slice, for those clients only that ``which`` says."""
        new, old = part.spread(name, values), self._whole(clients, part, name)
        if old is not None:
            new = torch.where(part.inside(_everywhere(part, name), name).to(new.device), new, old)
        which = which.to(clients.device)
        self._store.put(f"{self._key}/{name}", clients[which], new[which])

    def _whole(self, clients: Tensor, part: Slice, name: str) -> Tensor | None:
        memory = self._store.get(f"{self._key}/{name}", clients)
        if memory is None:
            return None
        values, known = memory
        return values.masked_fill(~known.view(-1, *[1] * len(part.shapes[name])), 0)


def _everywhere(part: Slice, name: str) -> Slice:
    return Slice.whole(part.clients, part.shapes, [name])
