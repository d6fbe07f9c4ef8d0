"""Local methods whose clients remember values of the parameters that travel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.errors import UserError
from fedslice.local.sgd import SGD
from fedslice.parts import CHECKED, World
from fedslice.slice import Axis, Slice, Values

if TYPE_CHECKING:
    from fedslice.recipe import Recipe
    from fedslice.work import Work


@dataclass(config=CHECKED)
class Remembering(SGD):
    """A memory per client and parameter, of what it holds in full or of some rows of a table.

    What never leaves a client has no counterpart on the server, and is not remembered.
    """

    def check(self, recipe: Recipe) -> None:
        """Refuse slices whose values the server does not know, and cohorts that would write one memory twice."""
        if recipe.slices.stale:
            raise UserError(
                f"local={self.label} compares a client's end with the model that came down, but "
                f"slices={recipe.slices.label} starts from parts that only the client knows; use slices=whole or "
                "slices=feature-rows."
            )
        if recipe.slices.narrows:
            raise UserError(
                f"local={self.label} keeps memories of whole layers, which slices={recipe.slices.label} narrows; "
                "use slices=whole or slices=feature-rows."
            )
        self._once_a_round("local", recipe)

    def setup(self, world: World) -> None:
        """Nobody remembers anything."""
        self._store = world.store
        zero = torch.zeros((), dtype=world.dtype, device=world.device)
        self._nothing = {name: zero.expand(shape) for name, shape in world.task.shapes.items()}

    @staticmethod
    def exchanged(layout: Slice, down: Slice) -> Slice:
        """The parameters of a layout that travel."""
        return layout.only(name for name in layout.axes if name in down.axes)

    def recall(self, kind: str, name: str, clients: Tensor, layout: Slice) -> tuple[Tensor, Tensor]:
        """A parameter's remembered values on the layout, zero where there is none, and who remembers any (broadcasts).

        The layout holds every row that is remembered.
        """
        axis = layout.axes[name][0]
        out = layout.only([name]).gather(self._nothing)[name]
        known = torch.zeros(len(clients), dtype=torch.bool, device=out.device)
        if axis is None:
            memory = self._store.get(f"{kind}/{name}", clients)
            if memory is not None:
                known = memory[1]
                out = torch.where(_beside(known, out), memory[0], out)
        elif (rows := self._store.get_rows(f"{kind}/{name}", clients)) is not None:
            held, values = rows
            known = held.counts > 0
            place = axis.positions_of(held.ids)
            out = out.scatter_add(1, place.view(*place.shape, *[1] * (out.dim() - 2)).expand_as(values), values)
        return out, _beside(known, out)

    def remember(self, kind: str, name: str, work: Work, values: Tensor, fine: Tensor) -> None:
        """Put away a parameter's values on the layout, for the clients that are fine."""
        clients, axis = work.clients[fine], work.layout.axes[name][0]
        if axis is None:
            self._store.put(f"{kind}/{name}", clients, values[fine])
        else:
            mine = self.lasting(name, work, axis)
            self._store.put_rows(f"{kind}/{name}", clients, axis.ids[fine], mine[fine], values[fine])

    def lasting(self, name: str, work: Work, axis: Axis) -> Tensor:  # noqa: ARG002
        """Which rows of a table's layout are worth remembering [clients, places]: all."""
        return axis.mask


@dataclass(config=CHECKED)
class Corrected(Remembering):
    """Every step is corrected by what the client brings, which stays the same during a round.

    A clipped gradient is clipped before it is corrected.
    """

    def direction(self, gradient: Values, parameters: Values, start: Values, aside: Values) -> Values:
        """g + what was brought."""
        own = super().direction(gradient, parameters, start, aside)
        return {name: g + aside[name] if name in aside else g for name, g in own.items()}


def _beside(flags: Tensor, values: Tensor) -> Tensor:
    """A flag per client, shaped to broadcast over the clients' values."""
    return flags.view(-1, *[1] * (values.dim() - 1))
