"""Control variates: what all clients' gradients have in common, and what is one client's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.core.encodings import Floats
from fedslice.core.message import Field, Fields
from fedslice.local.memory import Corrected
from fedslice.parts import CHECKED, RoundEnd, World
from fedslice.slice import Slice, Values

if TYPE_CHECKING:
    from fedslice.work import Work


@dataclass(config=CHECKED)
class Variates(Corrected):
    """c on the server, c_i with every client, and steps along g + (c − c_i) (Karimireddy et al. 2020, option II).

    After its round c_i⁺ = c_i − c + (X − x)/(I·γ), and c += Σ w_i·(c_i⁺ − c_i)/W on the server, with the weights w_i of
    the merge, of which W is the sum over all N clients: c = Σ w_i·c_i/W, which is their plain mean if all weigh alike.
    """

    def setup(self, world: World) -> None:
        """c = 0, and every c_i = 0."""
        super().setup(world)
        self._clients = len(world.task.federation)
        self._combine = world.recipe.combine
        shapes, self._dtype = world.task.shapes, world.dtype
        self._variate = {name: torch.zeros(s, dtype=self._dtype, device=world.device) for name, s in shapes.items()}

    def bring(self, clients: Tensor, layout: Slice, down: Slice) -> Values:
        """c − c_i, for the parameters that travel: what never leaves the client needs no correction."""
        return self._difference(clients, self.exchanged(layout, down))

    def _difference(self, clients: Tensor, exchanged: Slice) -> Values:
        """c − c_i."""
        variate = exchanged.gather(self._variate)
        return {name: c - self.recall("variate", name, clients, exchanged)[0] for name, c in variate.items()}

    def report(self, work: Work, end: Values) -> Values:
        """N·w_i/W times c_i⁺ − c_i = (X − x)/(I·γ) − c."""
        now = work.layout.only(work.aside).gather(self._variate)
        share = self._clients * self._combine.weigh(work.clients) / self._combine.population_weight
        return {
            name: (_moved(work, end, name) - variate) * share.to(variate).view(-1, *[1] * (variate.dim() - 1))
            for name, variate in now.items()
        }

    def keep(self, work: Work, end: Values, fine: Tensor) -> None:
        """c_i⁺ = (X − x)/(I·γ) − (c − c_i)."""
        super().keep(work, end, fine)
        for name, difference in self._difference(work.clients, work.layout.only(work.aside)).items():
            self.remember("variate", name, work, _moved(work, end, name) - difference, fine)

    def observe(self, end: RoundEnd) -> None:
        """c += Σ (N·w_i/W)·(c_i⁺ − c_i)/N."""
        for name, (rows, values) in end.report.items():
            if rows is None:
                self._variate[name].add_(values, alpha=1 / self._clients)
            else:
                self._variate[name].index_add_(0, rows, values, alpha=1 / self._clients)

    def report_fields(self, part: Slice) -> Fields:
        """c_i⁺ − c_i goes up with the update, on the same coordinates."""
        return {"variate": Field(Floats(self._dtype), on=part)}

    def down_bytes(self, down: Slice, itemsize: int) -> Mapping[str, Tensor]:
        """c comes down with the model."""
        return {"variate": down.numbers() * itemsize}

    def state_dict(self) -> Values:
        """c; the clients' own are in the store."""
        return {f"variate.{name}": value for name, value in self._variate.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved c."""
        self._variate = {k.removeprefix("variate."): v for k, v in self._own(state, ("variate",)).items()}


def _moved(work: Work, end: Values, name: str) -> Tensor:
    """(X − x)/(I·γ)."""
    change = work.start[name] - end[name]
    return change / work.reach.to(change).view(-1, *[1] * (change.dim() - 1))
