"""MOON: a client's features stay nearer to the received model's than to its own last ones.

Model-Contrastive Federated Learning
    Qinbin Li, Bingsheng He, Dawn Song. CVPR 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from fedslice.core.memory import Memory
from fedslice.core.message import Body
from fedslice.core.part import CHECKED, ClientRun, NonNegative, Positive
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.local.memory import Remembering
from fedslice.local.sgd import Forward, mean_loss
from fedslice.network.head import head
from fedslice.task import Loss

if TYPE_CHECKING:
    from fedslice.training.work import Batch, Work

_LAST = "last"


@dataclass(frozen=True, config=CHECKED)
class Moon(Remembering):
    """Adds μ·mean[−log(e^a/(e^a + e^b))], a = cos(z, z_X)/τ, b = cos(z, z_last)/τ (Li et al. 2021, equation 3).

    z are the features that enter the last Linear layer: of the model in training, of the one received, and of the one
    with which the client ended its last round, at first the initial model. Neither a projection head nor more than one
    past model is used. A past model has values for every coordinate the client holds, so all of them are kept.

    Args:
        mu: Weight of the contrastive term, μ; 0 is FedAvg.
        tau: Temperature of the similarities, τ; smaller values sharpen the contrast.
    """

    label = "moon"
    follows_gradient = False  # a row that did not move is remembered as it was then, not as it comes down next time

    mu: NonNegative = 0.01
    tau: Positive = 1.0

    def client_memory(self, run: ClientRun, place: str) -> Memory:
        """Refuse a network without a last Linear layer."""
        head(run.task, f"local={self.label}")
        return Memory(run, place)

    def initial(self, spec: Spec) -> frozenset[str]:
        """All parameters: a client's last model is at first the initial one."""
        return frozenset(spec.shapes)

    def bring(self, memory: Any, clients: Tensor, layout: Slice, down: Slice, came: Body) -> Values:
        """Return the client's last model."""
        exchanged = self.exchanged(layout, down)
        aside: Values = {}
        for name, first in came["first"].at(exchanged).items():
            last, known = self.recall(memory, _LAST, name, clients, exchanged)
            aside[name] = torch.where(known, last, first)
        return aside

    def objective(
        self,
        forward: Forward,
        loss: Loss,
        parameters: Values,
        batch: Batch,
        work: Work,
        s: int,  # noqa: ARG002
    ) -> Tensor:
        """The loss, and the contrast between the received and the last model's features."""
        output, features = forward.deep(parameters, batch.features)
        last = {name: work.aside.get(name, value) for name, value in work.start.items()}
        with forward.frozen():
            _, received = forward.deep(work.start, batch.features)
            _, own = forward.deep(last, batch.features)
        nearer, farther = (F.cosine_similarity(features.flatten(2), z.flatten(2), dim=-1) for z in (received, own))
        contrast = F.softplus((farther - nearer) / self.tau)
        return mean_loss(loss, output, batch) + self.mu * (contrast * batch.share).sum(1)

    def keep(self, work: Work, end: Values) -> None:
        """The model with which this round ended."""
        for name in work.aside:
            self.remember(work, _LAST, name, end[name])
