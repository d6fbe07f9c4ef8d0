"""APFL: a client's model is a mixture of its own and the global one (Deng et al. 2020, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.local.sgd import Forward
from fedslice.local.twin import Twin
from fedslice.parts import CHECKED
from fedslice.slice import Slice, Values
from fedslice.task import Loss

if TYPE_CHECKING:
    from fedslice.work import Batch, Work

SHARE = "mixture"  # α, beside the parameters


@dataclass(config=CHECKED)
class APFL(Twin):
    """v follows the gradient of F_i(α·v + (1 − α)·w) by v, while w is trained as in FedAvg.

    With ``adaptive`` every client has an α of its own, ``alpha`` at first: in the first step of a round it follows its
    own gradient ⟨v − w, ∇F_i(α·v + (1 − α)·w)⟩ at the rate of the parameters, and stays between 0 and 1.
    """

    label = "apfl"

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    adaptive: bool = False

    def beside(self, work: Work) -> Values:
        """v, and the client's α if it is to be learned."""
        own = super().beside(work)
        return own | {SHARE: self._share(work.clients)} if self.adaptive else own

    def still(self, work: Work, s: int) -> Mapping[str, Tensor]:
        """α, after the first step."""
        return {SHARE: torch.ones_like(work.clients, dtype=torch.bool)} if self.adaptive and s else {}

    def objective(self, forward: Forward, loss: Loss, parameters: Values, batch: Batch, work: Work, s: int) -> Tensor:
        """The loss of w, and that of the mixture, of which w is a given part."""
        w, v = self.models(parameters)
        share = parameters[SHARE].clamp(0, 1) if self.adaptive else self._share(work.clients)
        mixture = _mixed(share, v, {name: value.detach() for name, value in w.items()})
        shared, own = (super(APFL, self).objective(forward, loss, model, batch, work, s) for model in (w, mixture))
        return shared + own

    def direction(self, gradient: Values, parameters: Values, start: Values, aside: Values) -> Values:
        """α's gradient is its step."""
        steps = super().direction(gradient, parameters, start, aside)
        return steps | {SHARE: gradient[SHARE]} if SHARE in gradient else steps

    def keep(self, work: Work, end: Values, fine: Tensor) -> None:
        """v and α."""
        super().keep(work, end, fine)
        if self.adaptive:
            self._store.put(SHARE, work.clients[fine], end[SHARE].clamp(0, 1)[fine])

    def personal(self, clients: Tensor, layout: Slice, start: Values) -> Values:
        """The mixture of v with the model that comes down."""
        return _mixed(self._share(clients), super().personal(clients, layout, start), start)

    def _share(self, clients: Tensor) -> Tensor:
        """Each client's α."""
        first = next(iter(self._first.values())).new_full((len(clients),), self.alpha)
        memory = self._store.get(SHARE, clients)
        return first if memory is None else torch.where(memory[1], memory[0], first)


def _mixed(share: Tensor, own: Values, other: Values) -> Values:
    """α·v + (1 − α)·w; exactly w at α = 0, and v at α = 1."""
    shares = {name: share.view(-1, *[1] * (value.dim() - 1)) for name, value in own.items()}
    return {name: shares[name] * value + (1 - shares[name]) * other[name] for name, value in own.items()}
