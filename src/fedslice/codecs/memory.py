"""Memories of a codec about each client: one value per coordinate of the model, on either side of the wire."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedslice.core.entries import per_client
from fedslice.core.errors import UserError
from fedslice.core.slice import Slice
from fedslice.core.spec import Spec

_MOST = 8 * 2**30  # bytes that all clients' memories may take


class Shelf(Protocol):
    """A place for memories: a part's :class:`~fedslice.core.memory.Memory`, or a store of the server's."""

    def get(self, name: str, clients: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return what these clients remember, and who of them does."""
        ...

    def put(self, name: str, clients: Tensor, values: Tensor) -> None:
        """Remember values of these clients."""
        ...


def check_size(spec: Spec, label: str, clients: int, copies: int = 1) -> None:
    """Refuse memories that no machine holds.

    Args:
        spec: What both sides know.
        label: The codec's name.
        clients: How many clients there are.
        copies: How often this machine remembers each client's model.

    Raises:
        UserError: If those of them that can take part have too much to remember.
    """
    clients = spec.recipe.select.seen(spec.rounds, clients)
    size = copies * clients * sum(shape.numel() * spec.dtypes[name].itemsize for name, shape in spec.shapes.items())
    if size > _MOST:
        raise UserError(
            f"codec={label} remembers a whole model for each of {clients:,} clients, {size / 2**30:,.1f} GiB "
            f"where {_MOST / 2**30:g} are allowed; take fewer clients or rounds, or a codec without memory "
            "(quantize, fetchsgd, or topk with error_feedback=false)."
        )


def recall(shelf: Shelf, kind: str, clients: Tensor, part: Slice, name: str, like: Tensor) -> Tensor:
    """Return a parameter's remembered values on a slice, whose values are ``like``; zero where nothing was put."""
    whole = _whole(shelf, kind, clients, name)
    if whole is None:
        return torch.zeros_like(like)
    return part.only([name]).pick({name: whole}, _everywhere(part, name))[name]


def remember(
    shelf: Shelf, kind: str, clients: Tensor, part: Slice, name: str, values: Tensor, which: Tensor | None = None
) -> None:
    """Remember a parameter's values on a slice, of all clients or of those that ``which`` [clients] says.

    A client whose slice changes keeps what it remembers outside of the new one.
    """
    new, old = part.spread(name, values), _whole(shelf, kind, clients, name)
    if old is not None:
        new = torch.where(part.inside(_everywhere(part, name), name).to(new.device), new, old)
    if which is not None:
        clients, new = clients[which.to(clients.device)], new[which.to(new.device)]
    shelf.put(f"{kind}/{name}", clients, new)


def _whole(shelf: Shelf, kind: str, clients: Tensor, name: str) -> Tensor | None:
    memory = shelf.get(f"{kind}/{name}", clients)
    if memory is None:
        return None
    values, known = memory
    return values.masked_fill(~per_client(known, values), 0)


def _everywhere(part: Slice, name: str) -> Slice:
    return Slice.whole(part.clients, part.shapes, [name])
