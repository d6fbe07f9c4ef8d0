"""APFL: a client's model is a mixture of its own and the global one (algorithm 1).

Adaptive Personalized Federated Learning
    Yuyang Deng, Mohammad Mahdi Kamani, Mehrdad Mahdavi. 2020, arXiv:2003.13461.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedslice.core.entries import per_client
from fedslice.core.memory import Memory
from fedslice.core.message import Body
from fedslice.core.slice import Slice, Values
from fedslice.local.own_model import OwnModel
from fedslice.local.term import Step

if TYPE_CHECKING:
    from fedslice.training.work import Work

SHARE = "mixture"  # the memory of α
TRAINED = "/mixture"  # α among the values that are trained


class APFL(OwnModel):
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

    def extra_parameters(self, work: Work) -> Values:
        """Return v, and the client's α if it is to be learned."""
        own = super().extra_parameters(work)
        return own | {TRAINED: self._share(work.memory, work.clients)} if self.adaptive else own

    def frozen(self, work: Work, s: int) -> Mapping[str, Tensor]:
        """Return α, after the first step."""
        return {TRAINED: torch.ones_like(work.clients, dtype=torch.bool)} if self.adaptive and s else {}

    def loss(self, step: Step, work: Work) -> Tensor:
        """Return the loss of the mixture, of which w is a given part."""
        share = step.extra[TRAINED].clamp(0, 1) if self.adaptive else self._share(work.memory, work.clients)
        w = {name: value.detach() for name, value in step.parameters.items()}
        return step.mean_loss(_mixed(share, self.own(step.extra), w))

    def update_memory(self, work: Work, end: Values) -> None:
        """Remember v and α."""
        super().update_memory(work, end)
        if self.adaptive:
            work.memory.put(SHARE, work.clients, end[TRAINED].clamp(0, 1))

    def personal(self, memory: Memory, clients: Tensor, layout: Slice, start: Values, came: Body) -> Values:
        """Return the mixture of v with the model that comes down."""
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
