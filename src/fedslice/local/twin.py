"""Two models in one round: the one that travels, and a client's own beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.errors import UserError
from fedslice.local.sgd import SGD
from fedslice.parts import CHECKED, World
from fedslice.slice import Slice, Values

if TYPE_CHECKING:
    from fedslice.recipe import Recipe
    from fedslice.work import Work

OWN = "own/"  # what a parameter of the client's own model is called beside those of the one that travels


@dataclass(config=CHECKED)
class Twin(SGD):
    """A client trains v beside w, in the same steps and on the same batches; v is remembered and never sent.

    At first v is the initial model. Gradients are clipped for each model alone, so that w goes its way as if v were
    not there.
    """

    follows_gradient = False  # a row of v that no batch names may follow w, and w is not what it was a round ago

    def check(self, recipe: Recipe) -> None:
        """Refuse slices with which there is no one model for both, and cohorts that would write one memory twice."""
        if recipe.slices.remembers or recipe.slices.narrows:
            raise UserError(
                f"local={self.label} gives every client a whole model of its own beside the one that travels, but with "
                f"slices={recipe.slices.label} clients have layers of their own already; use slices=whole or "
                "slices=feature-rows."
            )
        self._once_a_round("local", recipe)

    def setup(self, world: World) -> None:
        """Where everyone begins."""
        self._store, self._slices = world.store, world.recipe.slices
        self._first = {name: value.to(world.device) for name, value in world.task.initial(world.seed).items()}

    def bring(self, clients: Tensor, layout: Slice, down: Slice) -> Values:  # noqa: ARG002
        """v."""
        aside = layout.gather(self._first)
        for name, first in aside.items():
            if (found := self._remembered(name, clients, layout)) is not None:
                aside[name] = torch.where(found[1], found[0], first)
        return aside

    def _remembered(self, name: str, clients: Tensor, layout: Slice) -> tuple[Tensor, Tensor] | None:
        """A parameter of v on the layout, and where v is known (broadcasts); ``None`` if nobody's is."""
        memory, part = self._store.get(f"{OWN}{name}", clients), layout.only([name])
        if memory is not None:
            whole = Slice.whole(len(clients), layout.shapes, [name])
            last = part.pick({name: memory[0]}, whole)[name]
            return last, memory[1].view(-1, *[1] * (last.dim() - 1))
        rows = self._store.get_rows(f"{OWN}{name}", clients)
        if rows is None or not rows[1].shape[1]:
            return None
        own = part.replace({name: rows[0]})
        all_rows = layout.axes[name][0] is None
        last = own.spread(name, rows[1]) if all_rows else part.pick({name: rows[1]}, own)[name]
        return last, own.inside(part, name).to(last.device)

    def beside(self, work: Work) -> Values:
        """v, to be trained."""
        return {f"{OWN}{name}": value for name, value in work.aside.items()}

    @staticmethod
    def models(values: Values) -> tuple[Values, Values]:
        """w and v, both under the names that parameters have in the network."""
        own = {name.removeprefix(OWN): value for name, value in values.items() if name.startswith(OWN)}
        return {name: values[name] for name in own}, own

    def direction(self, gradient: Values, parameters: Values, start: Values, aside: Values) -> Values:
        """Each model's own step."""
        (w, v), (at, own) = self.models(gradient), self.models(parameters)
        steps = super().direction(w, at, start, aside)
        return steps | {f"{OWN}{n}": g for n, g in self.own_direction(v, own, start).items()}

    def own_direction(self, gradient: Values, own: Values, start: Values) -> Values:
        """The step of v, given its gradient and the model that came down."""
        return super().direction(gradient, own, start, {})

    def keep(self, work: Work, end: Values, fine: Tensor) -> None:
        """v; of a table the client's own rows, where it does not hold them all."""
        clients = work.clients[fine]
        for name in work.aside:
            axis, own = work.layout.axes[name][0], end[f"{OWN}{name}"][fine]
            if axis is None:
                self._store.put(f"{OWN}{name}", clients, own)
            else:
                self._store.put_rows(f"{OWN}{name}", clients, axis.ids[fine], axis.mask[fine], own)

    def personal(self, clients: Tensor, layout: Slice, start: Values) -> Values:
        """v, where the client holds it."""
        hold, own = self._slices.hold(0, clients), self.bring(clients, layout, layout)
        return {n: torch.where(hold.inside(layout, n).to(w.device), own[n], w) for n, w in start.items()}

    def tuner(self) -> SGD:
        """The client's own model alone is fitted."""
        return self.plain()
