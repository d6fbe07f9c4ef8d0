"""SCAFFOLD: steps corrected by control variates (option II; FedSubAvg, appendix D.2).

SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
    Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich, Ananda Theertha Suresh.
    ICML 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedslice.core.capabilities import Rule
from fedslice.core.entries import OnSlice, View, per_client
from fedslice.core.fields import named, value_fields
from fedslice.core.message import Body, Fields
from fedslice.core.part import ClientRun, Round, ServerRun, State
from fedslice.core.slice import Axis, Slice, Values
from fedslice.core.spec import Spec
from fedslice.local.memory import ParameterMemory, exchanged, remembering
from fedslice.local.term import Term, needs_summed_gradients

if TYPE_CHECKING:
    from fedslice.training.work import Work

DOWN, UP = "c", "variate"  # fields: c, and c_i⁺ − c_i


class VariateState(State):
    """Σ w_i·c_i over all clients, from which c follows whoever enrols: a newcomer's c_i is zero.

    Args:
        run: The server's side of the run.
    """

    saved = ("sum", "ended")

    def __init__(self, run: ServerRun):
        super().__init__(run)
        dtypes = run.spec.dtypes
        self.sum = {n: torch.zeros(s, dtype=dtypes[n], device=run.device) for n, s in run.spec.shapes.items()}
        self._alike = run.spec.recipe.combine.weights == "uniform"
        self.ended = -1  # the last round that is over

    @property
    def weight(self) -> float:
        """W, the weights of all clients in the merge."""
        return float(self.run.enrolled.count if self._alike else self.run.enrolled.sum("samples"))

    def leave(self, clients: Tensor) -> None:
        """Keep c as it is, by taking every client that leaves to have had c as its own."""
        samples = None if self._alike else self.run.enrolled.facts("samples", clients)
        gone = len(clients) if samples is None else float(samples.double().sum())
        share = gone / (self.weight or 1)
        self.sum = {name: total * (1 - share) for name, total in self.sum.items()}  # views keep the old

    def view(self, t: int, part: Slice) -> View:
        """Return c = Σ w_i·c_i/W on a slice, for round ``t``; zero while nobody weighs anything."""
        return View(self.sum, part, 1 / (self.weight or 1), fresh=lambda: self.ended < t)


class Scaffold(Term):
    """Steps along g + (c − c_i): c on the server, c_i with every client.

    After its round c_i⁺ = c_i − c + (X − x)/Σγ, where Σγ is the sum of the client's step sizes, and
    c += Σ w_i·(c_i⁺ − c_i)/W on the server, with the weights w_i of the merge, of which W is the sum over all N
    clients: c = Σ w_i·c_i/W, which is their plain mean if all weigh alike.

    Here c_i⁺ is the mean of the client's gradients in its last round. So on a table it is zero outside the rows that
    its batches named then, and no more than those are remembered: control variates cost what batches do. A coordinate
    without a gradient and without c_i drifts by −Σγ·c, which the server adds for all who hold it at once. Beside other
    terms (FedDC: FedDyn and this one), and with momentum, every row is trained.
    """

    label = "scaffold"
    follows_gradient = True

    @property
    def provides(self) -> frozenset[str]:
        """Rows that batches do not name drift alike."""
        return super().provides | {"uniform-drift"}

    def rules(self) -> Iterable[Rule]:
        """c_i is the mean of gradients, and the server knows the model that they were taken from."""
        yield from remembering(self.label)
        yield needs_summed_gradients(self.label)

    # --- the server's side

    def server_state(self, run: ServerRun) -> VariateState:
        """Begin with c = 0."""
        return VariateState(run)

    def leave(self, state: VariateState, clients: Tensor, facts: Body) -> None:  # noqa: ARG002
        """Keep c as it is: nobody tells what c_i was."""
        state.leave(clients)

    def tell(self, state: VariateState, t: int, clients: Tensor, part: Slice) -> Body:  # noqa: ARG002
        """Return c, which comes down with the model."""
        return dict.fromkeys(self.down_fields(state.run.spec, part), state.view(t, part))

    def observe(self, state: VariateState, end: Round) -> None:
        """Σ w_i·c_i += Σ w_i·(c_i⁺ − c_i)."""
        for name, change in end.sums.get(UP, {}).items():
            change.add_to(state.sum[name])
        state.ended = end.number

    # --- the client's side

    def client_memory(self, run: ClientRun, place: str) -> ParameterMemory:
        """Return the memory of c_i, which is zero at first."""
        return ParameterMemory(run, place)

    def constants(self, memory: ParameterMemory, clients: Tensor, layout: Slice, down: Slice, came: Body) -> Values:
        """Return c − c_i, for the parameters that travel: what never leaves the client needs no correction."""
        part = exchanged(layout, down)
        variate = named(came, DOWN).at(part)
        return {name: c - memory.recall(UP, name, clients, part)[0] for name, c in variate.items()}

    def correct(self, gradient: Values, parameters: Values, work: Work) -> Values:  # noqa: ARG002
        """Return g + (c − c_i)."""
        return {n: g + work.constants[n] if n in work.constants else g for n, g in gradient.items()}

    def report(self, work: Work, end: Values) -> Mapping[str, Values | Tensor]:
        """Return c_i⁺ − c_i = (X − x)/Σγ − c."""
        variate = named(work.came, DOWN).at(work.layout.only(work.constants))
        return {UP: {name: _mean_gradient(work, end, name) - c for name, c in variate.items()}}

    def update_memory(self, work: Work, end: Values) -> None:
        """c_i⁺ = (X − x)/Σγ − (c − c_i)."""
        for name, difference in work.constants.items():
            variate = _mean_gradient(work, end, name) - difference
            work.memory.remember(work, UP, name, variate, _named_rows(work, name))

    def moved_rows(self, memory: ParameterMemory, table: str, clients: Tensor) -> Axis | None:
        """Return where c_i is not zero."""
        return memory.remembered_rows(UP, table, clients)

    def drift_direction(self, came: Body) -> View | OnSlice:
        """Return c."""
        return named(came, DOWN)

    # --- what both sides derive

    def down_fields(self, spec: Spec, part: Slice) -> Fields:
        """c, on the coordinates that come down."""
        return value_fields(spec, part, DOWN, about="the mean of all clients' control variates")

    def up_fields(self, spec: Spec, part: Slice) -> Fields:
        """c_i⁺ − c_i goes up with the update, on the same coordinates."""
        return value_fields(spec, part, UP, about="how its control variate has changed")


def _mean_gradient(work: Work, end: Values, name: str) -> Tensor:
    """Return (X − x)/Σγ."""
    change = work.start[name] - end[name]
    return change / per_client(work.step_size_sum.to(change), change)


def _named_rows(work: Work, name: str) -> Tensor | None:
    """Return which rows of a table's layout this round's batches named; ``None`` if others move by more than c."""
    axis, spec = work.layout.axes[name][0], work.memory.run.spec
    if axis is None or "follows-gradient" not in spec.recipe.local.provides:
        return None
    rows = torch.zeros_like(axis.ids, dtype=torch.bool)
    for feature in spec.tables[name].features:
        rows.scatter_(1, work.features[feature].flatten(1), True)
    return rows & axis.mask
