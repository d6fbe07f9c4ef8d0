"""MOON: a client's features stay nearer to the received model's than to its own last ones.

Model-Contrastive Federated Learning
    Qinbin Li, Bingsheng He, Dawn Song. CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from fedslice.core.capabilities import Rule
from fedslice.core.message import Body
from fedslice.core.part import ClientRun, NonNegative, Positive
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.local.memory import ParameterMemory, exchanged, remembering
from fedslice.local.term import Pass, Step, Term
from fedslice.network.head import head

if TYPE_CHECKING:
    from fedslice.training.work import Work

_LAST = "last"


class Moon(Term):
    """Adds μ·mean[−log(e^a/(e^a + e^b))], a = cos(z, z_X)/τ, b = cos(z, z_last)/τ (Li et al. 2021, equation 3).

    z are the features that enter the last Linear layer: of the model in training, of the one received, and of the one
    with which the client ended its last round, at first the initial model. Neither a projection head nor more than one
    past model is used. A past model has values for every coordinate the client holds, so all of them are kept.

    Args:
        mu: Weight of the contrastive term, μ; 0 is FedAvg.
        tau: Temperature of the similarities, τ; smaller values sharpen the contrast.
    """

    label = "moon"
    head_inputs = True
    follows_gradient = False  # a row that did not move is remembered as it was then, not as it comes down next time

    mu: NonNegative = 0.01
    tau: Positive = 1.0

    def rules(self) -> Iterable[Rule]:
        """Refuse slices and cohorts that do not go with a memory of the model."""
        return remembering(self.label)

    def client_memory(self, run: ClientRun, place: str) -> ParameterMemory:
        """Refuse a network without a last Linear layer."""
        head(run.task, f"local={self.label}")
        return ParameterMemory(run, place)

    def initial(self, spec: Spec) -> frozenset[str]:
        """All parameters: a client's last model is at first the initial one."""
        return frozenset(spec.shapes)

    def constants(self, memory: ParameterMemory, clients: Tensor, layout: Slice, down: Slice, came: Body) -> Values:
        """Return the client's last model."""
        part, own = exchanged(layout, down), {}
        for name, first in came["first"].at(part).items():
            last, known = memory.recall(_LAST, name, clients, part)
            own[name] = torch.where(known, last, first)
        return own

    def loss(self, step: Step, work: Work) -> Tensor:
        """Return the contrast between the received and the last model's features."""
        last = {name: work.constants.get(name, value) for name, value in work.start.items()}
        with step.network.evaluating():
            past = [step.network.watch(model, step.batch.features, head_inputs=True) for model in (work.start, last)]
        nearer, farther = (_cosine(step.seen, other) for other in past)
        return self.mu * (F.softplus((farther - nearer) / self.tau) * step.batch.share).sum(1)

    def update_memory(self, work: Work, end: Values) -> None:
        """Remember the model with which this round ended."""
        for name in work.constants:
            work.memory.remember(work, _LAST, name, end[name])


def _cosine(one: Pass, other: Pass) -> Tensor:
    """Return the cosine of the features of every sample [clients, batch]."""
    assert one.head_inputs is not None
    assert other.head_inputs is not None
    return F.cosine_similarity(one.head_inputs.flatten(2), other.head_inputs.flatten(2), dim=-1)
