"""SCAFFOLD: steps corrected by control variates (Karimireddy et al. 2020, option II; S0, appendix D.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.errors import UserError
from fedslice.local.sgd import SGD
from fedslice.parts import CHECKED, RoundEnd, World
from fedslice.slice import Axis, Slice, Values

if TYPE_CHECKING:
    from fedslice.recipe import Recipe
    from fedslice.work import Work


@dataclass(config=CHECKED)
class Scaffold(SGD):
    """x ← x − γ·(g − c_i + c), then c_i⁺ = c_i − c + (X − x)/(I·γ), and c += Σ (c_i⁺ − c_i)/N on the server.

    By the second formula c_i⁺ is the mean of the client's gradients in its last round. So on a table it is zero outside
    the rows that its batches named then, and no more than those are remembered: control variates cost what batches do.
    A coordinate without a gradient and without c_i drifts by −I·γ·c, which the server adds for all who hold it at once.
    A clipped gradient is clipped before it is corrected.
    """

    label = "scaffold"
    drifts = True

    def check(self, recipe: Recipe) -> None:
        """Refuse slices whose values the server does not know, and cohorts that would write one memory twice."""
        if recipe.slices.stale:
            raise UserError(
                "local=scaffold compares a client's end with the model that came down, but "
                f"slices={recipe.slices.label} starts from parts that only the client knows; use slices=whole or "
                "slices=feature-rows."
            )
        if recipe.slices.narrows:
            raise UserError(
                f"local=scaffold keeps control variates of whole layers, which slices={recipe.slices.label} narrows; "
                "use slices=whole or slices=feature-rows."
            )
        if recipe.select.repeats():
            raise UserError(
                f"local=scaffold keeps a control variate per client, and select={recipe.select.label} with replacement "
                "may draw a client twice in one round; draw without replacement."
            )

    def setup(self, world: World) -> None:
        """c = 0, and every c_i = 0."""
        self._store = world.store
        self._sets = {table: sets for sets in world.task.index_sets for table in sets.tables}
        self._clients = len(world.task.federation)
        shapes, dtype = world.task.shapes, world.dtype
        self._variate = {name: torch.zeros(s, dtype=dtype, device=world.device) for name, s in shapes.items()}

    def field(self) -> Values:
        """c."""
        return self._variate

    def rows(self, table: str, clients: Tensor) -> Axis | None:
        """Where c_i is not zero."""
        memory = self._store.get_rows(f"variate/{table}", clients)
        return None if memory is None else memory[0]

    def bring(self, clients: Tensor, layout: Slice, down: Slice) -> Values:
        """c − c_i, for the parameters that travel: what never leaves the client needs no correction."""
        exchanged = layout.only(name for name in layout.axes if name in down.axes)
        aside = exchanged.gather(self._variate)
        for name, axes in exchanged.axes.items():
            if axes[0] is None:
                memory = self._store.get(f"variate/{name}", clients)
                if memory is not None:
                    values, known = memory
                    aside[name] = aside[name] - values * known.view(-1, *[1] * (values.dim() - 1))
            elif (sparse := self._store.get_rows(f"variate/{name}", clients)) is not None:
                axis, values = sparse
                place = axes[0].positions_of(axis.ids).view(*axis.ids.shape, *[1] * (values.dim() - 2))
                aside[name] = aside[name].scatter_add(1, place.expand_as(values), -values)
        return aside

    def direction(self, gradient: Values, parameters: Values, start: Values, aside: Values) -> Values:
        """g + (c − c_i)."""
        own = super().direction(gradient, parameters, start, aside)
        return {name: g + aside[name] if name in aside else g for name, g in own.items()}

    def report(self, work: Work, end: Values) -> Values:
        """c_i⁺ − c_i = (X − x)/(I·γ) − c."""
        now = work.layout.only(work.aside).gather(self._variate)
        return {name: self._moved(work, end, name) - variate for name, variate in now.items()}

    def keep(self, work: Work, end: Values, fine: Tensor) -> None:
        """c_i⁺ = (X − x)/(I·γ) − (c − c_i)."""
        clients = work.clients[fine]
        for name in work.aside:
            variate = (self._moved(work, end, name) - work.aside[name])[fine]
            axis = work.layout.axes[name][0]
            if axis is None:
                self._store.put(f"variate/{name}", clients, variate)
            else:
                named = torch.zeros_like(axis.ids, dtype=torch.bool)
                for feature in self._sets[name].features:
                    named.scatter_(1, work.features[feature].flatten(1), True)
                self._store.put_rows(f"variate/{name}", clients, axis.ids[fine], (named & axis.mask)[fine], variate)

    @staticmethod
    def _moved(work: Work, end: Values, name: str) -> Tensor:
        change = work.start[name] - end[name]
        return change / work.reach.to(change).view(-1, *[1] * (change.dim() - 1))

    def observe(self, end: RoundEnd) -> None:
        """c += Σ (c_i⁺ − c_i)/N."""
        for name, (rows, values) in end.report.items():
            if rows is None:
                self._variate[name].add_(values, alpha=1 / self._clients)
            else:
                self._variate[name].index_add_(0, rows, values, alpha=1 / self._clients)

    def down_bytes(self, down: Slice, itemsize: int) -> Tensor:
        """c comes down with the model."""
        return down.numbers() * itemsize

    def up_bytes(self, up: Slice, itemsize: int) -> Tensor:
        """c_i⁺ − c_i goes up with the update, on the same coordinates."""
        return up.numbers() * itemsize

    def state_dict(self) -> Values:
        """c; the clients' own are in the store."""
        return {f"variate.{name}": value for name, value in self._variate.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved c."""
        self._variate = {k.removeprefix("variate."): v for k, v in self._own(state, ("variate",)).items()}
