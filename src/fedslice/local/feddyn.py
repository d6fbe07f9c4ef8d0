"""FedDyn: every client's loss is bent until all have their minimum in one place.

Federated Learning Based on Dynamic Regularization
    Durmus Alp Emre Acar, Yue Zhao, Ramon Matas, Matthew Mattina, Paul Whatmough, Venkatesh Saligrama. ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.core.capabilities import Rule
from fedslice.core.message import Body
from fedslice.core.part import CHECKED, Positive
from fedslice.core.slice import Axis, Slice, Values
from fedslice.local.memory import Corrected, remembered_rows

if TYPE_CHECKING:
    from fedslice.training.work import Work

_DRIFT = "drift"


@dataclass(frozen=True, config=CHECKED)
class FedDyn(Corrected):
    """Minimises F_i(x) − ⟨h_i, x⟩ + (α/2)·‖x − X‖², then h_i ← h_i − α·(x − X).

    So h_i = −α·d_i, where d_i, the client's drift, is the sum of all its updates; d_i is what it remembers, and
    ``server=drift`` remembers the clients' mean of it. Where the client's steps find a minimum, h_i is its gradient
    there. A row of a table that no batch ever named has neither a gradient nor a drift, and stays where it is.

    Args:
        alpha: Weight of the pull to the server's model, α.
    """

    label = "feddyn"
    follows_gradient = True

    alpha: Positive = 0.5

    @property
    def provides(self) -> frozenset[str]:
        """Clients add up their updates."""
        return super().provides | {"accumulates"}

    def rules(self) -> Iterable[Rule]:
        """The server has to know the clients' mean drift."""
        yield from super().rules()
        yield Rule(
            "server",
            "adds-drift",
            True,
            f"local={self.label} needs a server that adds the clients' mean drift, and server={{label}} does not; use "
            "server=drift.",
        )

    def rows(self, memory: Any, table: str, clients: Tensor) -> Axis | None:
        """Return where d_i is not zero."""
        return remembered_rows(memory, _DRIFT, table, clients)

    def bring(self, memory: Any, clients: Tensor, layout: Slice, down: Slice, came: Body) -> Values:
        """−h_i = α·d_i, on top of what else corrects the steps."""
        aside, exchanged = super().bring(memory, clients, layout, down, came), self.exchanged(layout, down)
        for name in exchanged.axes:
            pull = self.alpha * self.recall(memory, _DRIFT, name, clients, exchanged)[0]
            aside[name] = aside[name] + pull if name in aside else pull
        return aside

    def direction(self, gradient: Values, parameters: Values, work: Work) -> Values:
        """g − h_i + α·(x − X)."""
        own, start = super().direction(gradient, parameters, work), work.start
        return {n: g.add(parameters[n] - start[n], alpha=self.alpha) if n in work.aside else g for n, g in own.items()}

    def keep(self, work: Work, end: Values) -> None:
        """d_i += x − X."""
        super().keep(work, end)
        for name in work.aside:
            before, _ = self.recall(work.memory, _DRIFT, name, work.clients, work.layout)
            self.remember(work, _DRIFT, name, before + (end[name] - work.start[name]))
