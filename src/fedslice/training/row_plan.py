"""Training only the table rows that can move: which rows those are, and how the rest of a client's model is known.

A row of a table whose gradient is zero in all steps ends where it began, or, with control variates, at a known distance
from there. If nothing else can move it either, a client trains only the rows that its batches name: the same result at
the cost of the batches, whatever the size of the table. No other file knows about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedslice.core.entries import View, per_client
from fedslice.core.memory import Memory
from fedslice.core.message import Body
from fedslice.core.slice import Axis, Slice, Values
from fedslice.core.update import Uniform, Update

if TYPE_CHECKING:
    from fedslice.recipe import Recipe
    from fedslice.task import Task
    from fedslice.training.work import Work


@dataclass(frozen=True)
class RowPlan:
    """Whether rows that no batch names are left out of training, and how they end.

    Args:
        active: Whether they are left out. A part that declares no capability turns this off.
        drifts: Whether they drift: the end is the start less an amount per client times a direction.
    """

    active: bool
    drifts: bool

    @classmethod
    def of(cls, recipe: Recipe) -> RowPlan:
        """Return the plan that the capabilities of a recipe's parts allow."""
        local, codec, slices = (getattr(recipe, place).provides for place in ("local", "codec", "slices"))
        drifts = "uniform-drift" in local
        known = "follows-gradient" in local
        arrives = ("exact" if drifts else "keeps-zeros") in codec
        plain = "sends-all" in slices and "remembers" not in slices
        active = known and arrives and plain
        return cls(active, active and drifts)

    def layout(
        self, task: Task, recipe: Recipe, memory: Memory, clients: Tensor, hold: Slice, features: dict[str, Tensor]
    ) -> Slice:
        """Return what is trained, and replace row ids in ``features`` by places in the clients' own tables."""
        axes: dict[str, Axis | None] = {}
        for sets in task.index_sets:
            axis = hold.axes[sets.tables[0]][0] if sets.tables[0] in hold.axes else None
            if self.active:
                axis = sets.relabel(features, also=recipe.local.moved_rows(memory, sets.tables[0], clients))
            elif axis is not None:
                sets.relabel(features, axis)
            axes |= dict.fromkeys(sets.tables, axis)
        return hold.replace(axes)

    def update(self, recipe: Recipe, work: Work, up: Slice, end: Values) -> Update:
        """Return how the clients' models changed on what goes up; with stale slices, where they ended."""
        if not self.active:
            values = up.pick(end, work.hold)
            if "stale" not in recipe.slices.provides:
                start = up.pick(work.start, work.hold)
                values = {name: value - start[name] for name, value in values.items()}
            return Update(up, up, {name: up.clear(name, value) for name, value in values.items()})
        values = {name: end[name] - work.start[name] for name in work.layout.axes}
        direction = recipe.local.drift_direction(work.came) if self.drifts else None
        if direction is None:
            return Update(up, work.layout, values)
        sent = Update(up, work.layout, values, Uniform(work.step_size_sum, direction))
        for name, drift in direction.at(work.layout.only(sent.beyond())).items():
            total = per_client(work.step_size_sum.to(drift), drift)
            values[name] = values[name] + total * drift  # what is left when the drift, which all share, is taken out
        return sent

    def report(self, work: Work, up: Slice, values: Values) -> Update:
        """Return values that a local method reports on the layout as what goes up of them."""
        part = up.only(values)
        if self.active:
            return Update(part, work.layout.only(values), values)
        return Update(part, part, part.pick(values, work.hold))

    def finished(self, recipe: Recipe, work: Work, end: Values, layout: Slice, start: Values, name: str) -> Tensor:
        """Return a parameter's values after training on a layout that has other table rows than were trained."""
        if layout.axes[name] == work.layout.axes[name]:
            return end[name]
        trained = layout.only([name]).pick(end, work.layout)[name]
        rest = self.untrained(recipe, work, layout, start[name], name)
        there, own = (part.inside(layout, name).to(rest.device) for part in (work.layout, work.hold))
        return torch.where(there, trained, torch.where(own, rest, start[name]))

    def untrained(self, recipe: Recipe, work: Work, layout: Slice, start: Tensor, name: str) -> Tensor:
        """Return where coordinates end that are not trained because their gradient is zero."""
        direction = recipe.local.drift_direction(work.came) if self.drifts else None
        if direction is None:
            return start
        everywhere = direction.on(layout) if isinstance(direction, View) else direction
        drift = everywhere.at(layout.only([name]))[name]
        return start - per_client(work.step_size_sum.to(drift), drift) * drift


def uses_views(body: Body | Mapping[str, object]) -> bool:
    """Return whether a download is read from the server's own tensors, as in a simulation."""
    return any(isinstance(entries, View) for entries in body.values())
