"""Local methods whose clients remember values of the parameters that travel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.core.capabilities import Rule, once_a_round
from fedslice.core.entries import per_client
from fedslice.core.memory import Memory
from fedslice.core.part import CHECKED
from fedslice.core.slice import Axis, Slice, Values
from fedslice.local.sgd import SGD

if TYPE_CHECKING:
    from fedslice.training.work import Work


@dataclass(frozen=True, config=CHECKED)
class Remembering(SGD):
    """A memory per client and parameter, of what it holds in full or of some rows of a table.

    What never leaves a client has no counterpart on the server, and is not remembered.
    """

    def rules(self) -> Iterable[Rule]:
        """Refuse slices whose values the server does not know, and cohorts that would write one memory twice."""
        yield from super().rules()
        yield Rule(
            "slices",
            "stale",
            False,
            f"local={self.label} compares a client's end with the model that came down, but slices={{label}} starts "
            "from parts that only the client knows; use slices=whole or slices=feature-rows.",
        )
        yield Rule(
            "slices",
            "narrows",
            False,
            f"local={self.label} keeps memories of whole layers, which slices={{label}} narrows; use slices=whole or "
            "slices=feature-rows.",
        )
        yield once_a_round("local", self.label)

    @staticmethod
    def exchanged(layout: Slice, down: Slice) -> Slice:
        """Return the parameters of a layout that travel."""
        return layout.only(name for name in layout.axes if name in down.axes)

    @staticmethod
    def recall(memory: Memory, kind: str, name: str, clients: Tensor, layout: Slice) -> tuple[Tensor, Tensor]:
        """Return a parameter's remembered values on the layout, zero where there is none, and who remembers any.

        The second broadcasts over the first. The layout holds every row that is remembered.
        """
        run, axis = memory.run, layout.axes[name][0]
        zero = torch.zeros((), dtype=run.spec.dtypes[name], device=run.device)
        out = zero.expand(len(clients), *layout.sizes(name))
        known = torch.zeros(len(clients), dtype=torch.bool, device=run.device)
        if axis is None:
            found = memory.get(f"{kind}/{name}", clients)
            if found is not None:
                known = found[1]
                out = torch.where(per_client(known, out), found[0], out)
        elif (rows := memory.get_rows(f"{kind}/{name}", clients)) is not None:
            held, values = rows
            known = held.counts > 0
            place = axis.positions_of(held.ids)
            out = out.scatter_add(1, place.view(*place.shape, *[1] * (out.dim() - 2)).expand_as(values), values)
        return out, per_client(known, out)

    def remember(self, work: Work, kind: str, name: str, values: Tensor) -> None:
        """Write a parameter's values, which sit on the layout, into the clients' memories."""
        axis = work.layout.axes[name][0]
        if axis is None:
            work.memory.put(f"{kind}/{name}", work.clients, values)
        else:
            mine = self.lasting(name, work, axis)
            work.memory.put_rows(f"{kind}/{name}", work.clients, axis.ids, mine, values)

    def lasting(self, name: str, work: Work, axis: Axis) -> Tensor:  # noqa: ARG002
        """Return which rows of a table's layout are worth remembering [clients, places]: all."""
        return axis.mask


@dataclass(frozen=True, config=CHECKED)
class Corrected(Remembering):
    """Every step is corrected by what the client brings, which stays the same during a round.

    A clipped gradient is clipped before it is corrected.
    """

    def direction(self, gradient: Values, parameters: Values, work: Work) -> Values:
        """g + what was brought."""
        own = super().direction(gradient, parameters, work)
        return {name: g + work.aside[name] if name in work.aside else g for name, g in own.items()}


def remembered_rows(memory: Any, kind: str, table: str, clients: Tensor) -> Axis | None:
    """Return the rows of a table of which these clients remember anything."""
    found = memory.get_rows(f"{kind}/{table}", clients)
    return None if found is None else found[0]
