"""Control variates: what all clients' gradients have in common, and what is one client's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.core.entries import OnSlice, View, per_client
from fedslice.core.fields import named, value_fields
from fedslice.core.message import Body, Fields
from fedslice.core.part import CHECKED, Round, ServerRun, State
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.local.memory import Corrected

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


@dataclass(frozen=True, config=CHECKED)
class Variates(Corrected):
    """c on the server, c_i with every client, and steps along g + (c − c_i) (Karimireddy et al. 2020, option II).

    After its round c_i⁺ = c_i − c + (X − x)/(I·γ), and c += Σ w_i·(c_i⁺ − c_i)/W on the server, with the weights w_i of
    the merge, of which W is the sum over all N clients: c = Σ w_i·c_i/W, which is their plain mean if all weigh alike.
    """

    # --- the server's side

    def server_state(self, run: ServerRun) -> VariateState:
        """c = 0."""
        return VariateState(run)

    def leave(self, state: VariateState, clients: Tensor, facts: Body) -> None:  # noqa: ARG002
        """c stays as it is: nobody tells what c_i was."""
        state.leave(clients)

    def tell(self, state: VariateState, t: int, clients: Tensor, part: Slice) -> Body:  # noqa: ARG002
        """c comes down with the model."""
        return dict.fromkeys(self.down_fields(state.run.spec, part), state.view(t, part))

    def observe(self, state: VariateState, end: Round) -> None:
        """Σ w_i·c_i += Σ w_i·(c_i⁺ − c_i)."""
        for name, change in end.sums.get(UP, {}).items():
            change.add_to(state.sum[name])
        state.ended = end.number

    # --- the client's side

    def bring(self, memory: Any, clients: Tensor, layout: Slice, down: Slice, came: Body) -> Values:
        """c − c_i, for the parameters that travel: what never leaves the client needs no correction."""
        return self._difference(memory, clients, self.exchanged(layout, down), came)

    def _difference(self, memory: Any, clients: Tensor, exchanged: Slice, came: Body) -> Values:
        """c − c_i. Every c_i is zero at first."""
        variate = self.common(came).at(exchanged)
        return {name: c - self.recall(memory, UP, name, clients, exchanged)[0] for name, c in variate.items()}

    @staticmethod
    def common(came: Body) -> View | OnSlice:
        """Return c as it came down."""
        return named(came, DOWN)

    def report(self, work: Work, end: Values) -> Mapping[str, Values | Tensor]:
        """c_i⁺ − c_i = (X − x)/(I·γ) − c."""
        variate = self.common(work.came).at(work.layout.only(work.aside))
        return {UP: {name: _moved(work, end, name) - c for name, c in variate.items()}}

    def keep(self, work: Work, end: Values) -> None:
        """c_i⁺ = (X − x)/(I·γ) − (c − c_i)."""
        super().keep(work, end)
        exchanged = work.layout.only(work.aside)
        for name, difference in self._difference(work.memory, work.clients, exchanged, work.came).items():
            self.remember(work, UP, name, _moved(work, end, name) - difference)

    # --- what both sides derive

    def down_fields(self, spec: Spec, part: Slice) -> Fields:
        """c, on the coordinates that come down."""
        return value_fields(spec, part, DOWN, about="the mean of all clients' control variates")

    def up_fields(self, spec: Spec, part: Slice) -> Fields:
        """c_i⁺ − c_i goes up with the update, on the same coordinates."""
        return value_fields(spec, part, UP, about="how its control variate has changed")


def _moved(work: Work, end: Values, name: str) -> Tensor:
    """(X − x)/(I·γ)."""
    change = work.start[name] - end[name]
    return change / per_client(work.reach.to(change), change)
