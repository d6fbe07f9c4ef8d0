"""Memories of parameters that travel: values in full, or of some rows of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedslice.core.capabilities import Rule, once_a_round
from fedslice.core.entries import per_client
from fedslice.core.memory import Memory
from fedslice.core.slice import Axis, Slice

if TYPE_CHECKING:
    from fedslice.training.work import Work


class ParameterMemory(Memory):
    """A memory per client and parameter.

    What never leaves a client has no counterpart on the server, and is not remembered.
    """

    def recall(self, kind: str, name: str, clients: Tensor, layout: Slice) -> tuple[Tensor, Tensor]:
        """Return a parameter's remembered values on the layout, zero where there is none, and who remembers any.

        The second broadcasts over the first. The layout holds every row that is remembered.
        """
        run, axis = self.run, layout.axes[name][0]
        zero = torch.zeros((), dtype=run.spec.dtypes[name], device=run.device)
        out = zero.expand(len(clients), *layout.sizes(name))
        known = torch.zeros(len(clients), dtype=torch.bool, device=run.device)
        if axis is None:
            found = self.get(f"{kind}/{name}", clients)
            if found is not None:
                known = found[1]
                out = torch.where(per_client(known, out), found[0], out)
        elif (rows := self.get_rows(f"{kind}/{name}", clients)) is not None:
            held, values = rows
            known = held.counts > 0
            place = axis.positions_of(held.ids)
            out = out.scatter_add(1, place.view(*place.shape, *[1] * (out.dim() - 2)).expand_as(values), values)
        return out, per_client(known, out)

    def remember(self, work: Work, kind: str, name: str, values: Tensor, rows: Tensor | None = None) -> None:
        """Write a parameter's values, which sit on the layout.

        Args:
            work: The clients.
            kind: The name of the memory.
            name: The parameter.
            values: Its values [clients, ...].
            rows: Of a table, which rows of the layout are worth remembering [clients, places]; all by default.
        """
        axis = work.layout.axes[name][0]
        if axis is None:
            self.put(f"{kind}/{name}", work.clients, values)
        else:
            self.put_rows(f"{kind}/{name}", work.clients, axis.ids, axis.mask if rows is None else rows, values)

    def remembered_rows(self, kind: str, table: str, clients: Tensor) -> Axis | None:
        """Return the rows of a table of which these clients remember anything."""
        found = self.get_rows(f"{kind}/{table}", clients)
        return None if found is None else found[0]


def exchanged(layout: Slice, down: Slice) -> Slice:
    """Return the parameters of a layout that travel."""
    return layout.only(name for name in layout.axes if name in down.axes)


def remembering(label: str) -> Iterable[Rule]:
    """Return the rules of a term with a :class:`ParameterMemory`.

    Slices whose values the server does not know are refused, and cohorts that would write one memory twice.
    """
    yield Rule(
        "slices",
        "stale",
        False,
        f"local={label} compares a client's end with the model that came down, but slices={{label}} starts "
        "from parts that only the client knows; use slices=whole or slices=feature-rows.",
    )
    yield Rule(
        "slices",
        "narrows",
        False,
        f"local={label} keeps memories of whole layers, which slices={{label}} narrows; use slices=whole or "
        "slices=feature-rows.",
    )
    yield once_a_round("local", label)
