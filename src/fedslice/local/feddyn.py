"""FedDyn: every client's loss is bent until all have their minimum in one place (Acar et al. 2021; S4, appendix D)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.errors import UserError
from fedslice.local.memory import Corrected
from fedslice.parts import CHECKED, Positive
from fedslice.server.drift import Drift
from fedslice.slice import Axis, Slice, Values

if TYPE_CHECKING:
    from fedslice.recipe import Recipe
    from fedslice.work import Work


@dataclass(config=CHECKED)
class FedDyn(Corrected):
    """Minimises F_i(x) − ⟨h_i, x⟩ + (α/2)·‖x − X‖², then h_i ← h_i − α·(x − X).

    So h_i = −α·d_i, where d_i, the client's drift, is the sum of all its updates; d_i is what it remembers, and
    ``server=drift`` remembers the clients' mean of it. Where the client's steps find a minimum, h_i is its gradient
    there. A row of a table that no batch ever named has neither a gradient nor a drift, and stays where it is.
    """

    label = "feddyn"
    accumulates = True

    alpha: Positive = 0.5

    def check(self, recipe: Recipe) -> None:
        """The server has to know the clients' mean drift."""
        super().check(recipe)
        if not isinstance(recipe.server, Drift):
            raise UserError(
                f"local={self.label} needs a server that adds the clients' mean drift, and server="
                f"{recipe.server.label} does not; use server=drift."
            )

    def rows(self, table: str, clients: Tensor) -> Axis | None:
        """Where d_i is not zero."""
        memory = self._store.get_rows(f"drift/{table}", clients)
        return None if memory is None else memory[0]

    def bring(self, clients: Tensor, layout: Slice, down: Slice) -> Values:
        """−h_i = α·d_i, on top of what else corrects the steps."""
        aside, exchanged = super().bring(clients, layout, down), self.exchanged(layout, down)
        for name in exchanged.axes:
            pull = self.alpha * self.recall("drift", name, clients, exchanged)[0]
            aside[name] = aside[name] + pull if name in aside else pull
        return aside

    def direction(self, gradient: Values, parameters: Values, start: Values, aside: Values) -> Values:
        """g − h_i + α·(x − X)."""
        own = super().direction(gradient, parameters, start, aside)
        return {n: g.add(parameters[n] - start[n], alpha=self.alpha) if n in aside else g for n, g in own.items()}

    def keep(self, work: Work, end: Values, fine: Tensor) -> None:
        """d_i += x − X."""
        super().keep(work, end, fine)
        for name in work.aside:
            before, _ = self.recall("drift", name, work.clients, work.layout)
            self.remember("drift", name, work, before + (end[name] - work.start[name]), fine)
