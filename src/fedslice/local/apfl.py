"""APFL: a client's model is a mixture of its own and the global one (Deng et al. 2020, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.core.entries import per_client
from fedslice.core.memory import Memory
from fedslice.core.message import Body
from fedslice.core.part import CHECKED
from fedslice.core.slice import Slice, Values
from fedslice.local.sgd import Forward
from fedslice.local.twin import Twin
from fedslice.task import Loss

if TYPE_CHECKING:
    from fedslice.training.work import Batch, Work

SHARE = "mixture"  # α, beside the parameters


@dataclass(frozen=True, config=CHECKED)
class APFL(Twin):
    """v follows the gradient of F_i(α·v + (1 − α)·w) by v, while w is trained as in FedAvg.

    With ``adaptive`` every client has an α of its own, ``alpha`` at first: in the first step of a round it follows its
    own gradient ⟨v − w, ∇F_i(α·v + (1 − α)·w)⟩ at the rate of the parameters, and stays between 0 and 1.

    Args:
        alpha: Share of a client's own model in its mixture, α.
        adaptive: Whether every client learns an α of its own, from this value on.
    """

    label = "apfl"

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    adaptive: bool = False

    def beside(self, work: Work) -> Values:
        """v, and the client's α if it is to be learned."""
        own = super().beside(work)
        return own | {SHARE: self._share(work.memory, work.clients)} if self.adaptive else own

    def still(self, work: Work, s: int) -> Mapping[str, Tensor]:
        """α, after the first step."""
        return {SHARE: torch.ones_like(work.clients, dtype=torch.bool)} if self.adaptive and s else {}

    def objective(self, forward: Forward, loss: Loss, parameters: Values, batch: Batch, work: Work, s: int) -> Tensor:
        """The loss of w, and that of the mixture, of which w is a given part."""
        w, v = self.models(parameters)
        share = parameters[SHARE].clamp(0, 1) if self.adaptive else self._share(work.memory, work.clients)
        mixture = _mixed(share, v, {name: value.detach() for name, value in w.items()})
        shared, own = (super(APFL, self).objective(forward, loss, model, batch, work, s) for model in (w, mixture))
        return shared + own

    def direction(self, gradient: Values, parameters: Values, work: Work) -> Values:
        """α's gradient is its step."""
        steps = super().direction(gradient, parameters, work)
        return steps | {SHARE: gradient[SHARE]} if SHARE in gradient else steps

    def keep(self, work: Work, end: Values) -> None:
        """v and α."""
        super().keep(work, end)
        if self.adaptive:
            work.memory.put(SHARE, work.clients, end[SHARE].clamp(0, 1))

    def personal(self, memory: Memory, clients: Tensor, layout: Slice, start: Values, came: Body) -> Values:
        """The mixture of v with the model that comes down."""
        return _mixed(self._share(memory, clients), super().personal(memory, clients, layout, start, came), start)

    def _share(self, memory: Memory, clients: Tensor) -> Tensor:
        """Each client's α."""
        run = memory.run
        first = torch.full((len(clients),), self.alpha, dtype=run.spec.dtype, device=run.device)
        found = memory.get(SHARE, clients)
        return first if found is None else torch.where(found[1], found[0], first)


def _mixed(share: Tensor, own: Values, other: Values) -> Values:
    """α·v + (1 − α)·w; exactly w at α = 0, and v at α = 1."""
    shares = {name: per_client(share, value) for name, value in own.items()}
    return {name: shares[name] * value + (1 - shares[name]) * other[name] for name, value in own.items()}
