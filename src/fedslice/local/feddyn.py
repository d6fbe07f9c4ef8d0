"""FedDyn: every client's loss is bent until all have their minimum in one place.

Federated Learning Based on Dynamic Regularization
    Durmus Alp Emre Acar, Yue Zhao, Ramon Matas, Matthew Mattina, Paul Whatmough, Venkatesh Saligrama. ICLR 2021.

With SCAFFOLD's term beside it the method is FedDC, whose control variates contain the pull of the drift:

FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction
    Liang Gao, Huazhu Fu, Li Li, Yingwen Chen, Ming Xu, Cheng-Zhong Xu. CVPR 2022.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from fedslice.core.capabilities import Rule
from fedslice.core.message import Body
from fedslice.core.part import ClientRun, Positive
from fedslice.core.slice import Axis, Slice, Values
from fedslice.local.memory import ParameterMemory, exchanged, remembering
from fedslice.local.term import Term

if TYPE_CHECKING:
    from fedslice.training.work import Work

_DRIFT = "drift"


class FedDyn(Term):
    """Minimises F_i(x) − ⟨h_i, x⟩ + (α/2)·‖x − X‖², then h_i ← h_i − α·(x − X).

    So h_i = −α·d_i, where d_i, the client's drift, is the sum of all its updates; d_i is what it remembers, and
    ``server=drift`` remembers the clients' mean of it. Where the client's steps find a minimum, h_i is its gradient
    there. A row of a table that no batch ever named has neither a gradient nor a drift, and stays where it is. What
    the term adds is not clipped.

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
        yield from remembering(self.label)
        yield Rule(
            "server",
            "adds-drift",
            True,
            f"local={self.label} needs a server that adds the clients' mean drift, and server={{label}} does not; use "
            "server=drift.",
        )

    def client_memory(self, run: ClientRun, place: str) -> ParameterMemory:
        """Return the memory of d_i, which is zero at first."""
        return ParameterMemory(run, place)

    def moved_rows(self, memory: ParameterMemory, table: str, clients: Tensor) -> Axis | None:
        """Return where d_i is not zero."""
        return memory.remembered_rows(_DRIFT, table, clients)

    def constants(self, memory: ParameterMemory, clients: Tensor, layout: Slice, down: Slice, came: Body) -> Values:  # noqa: ARG002
        """Return −h_i = α·d_i, for the parameters that travel."""
        part = exchanged(layout, down)
        return {name: self.alpha * memory.recall(_DRIFT, name, clients, part)[0] for name in part.axes}

    def correct(self, gradient: Values, parameters: Values, work: Work) -> Values:
        """Return g − h_i + α·(x − X)."""
        own = {n: g + work.constants[n] for n, g in gradient.items() if n in work.constants}
        return gradient | {n: g.add_(parameters[n] - work.start[n], alpha=self.alpha) for n, g in own.items()}

    def update_memory(self, work: Work, end: Values) -> None:
        """d_i += x − X."""
        for name in work.constants:
            before, _ = work.memory.recall(_DRIFT, name, work.clients, work.layout)
            work.memory.remember(work, _DRIFT, name, before + (end[name] - work.start[name]))
