"""FedNTD: what the received model says of the wrong classes is not forgotten (FLSS, appendix D).

Preservation of the Global Knowledge by Not-True Distillation in Federated Learning
    Gihun Lee, Minchan Jeong, Yongjin Shin, Sangmin Bae, Se-Young Yun. NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from fedslice.core.capabilities import Rule
from fedslice.core.memory import Memory
from fedslice.core.part import ClientRun, NonNegative, Positive
from fedslice.local.term import Step, Term
from fedslice.network.head import class_head

if TYPE_CHECKING:
    from fedslice.training.work import Work


class FedNTD(Term):
    """Adds β·τ²·KL(q_X ‖ q_x): q is the softmax, at temperature τ, over all classes but a sample's own.

    Args:
        beta: Weight of the distillation, β; 0 is FedAvg.
        tau: Temperature of the softmax, τ; larger values even out the classes.
    """

    label = "fedntd"

    beta: NonNegative = 0.001
    tau: Positive = 1.0

    def rules(self) -> Iterable[Rule]:
        """Refuse slices with which a client's start is not the model that came down."""
        yield Rule(
            "slices",
            "stale",
            False,
            "local=fedntd learns from the model that came down, but slices={label} starts from parts that only the "
            "client knows; use slices=whole.",
        )

    def client_memory(self, run: ClientRun, place: str) -> Memory:
        """Refuse tasks with two classes: there is one wrong one, and nothing to be said of it."""
        class_head(run.task, least=3, method=f"local={self.label}")
        return Memory(run, place)

    def loss(self, step: Step, work: Work) -> Tensor:
        """Return how far the wrong classes are from where the received model puts them."""
        batch = step.batch
        with step.network.evaluating():
            teacher = self._wrong(step.network(work.start, batch.features), batch.label)
        apart = F.kl_div(self._wrong(step.seen.output, batch.label), teacher, log_target=True, reduction="none").sum(-1)
        return self.beta * self.tau**2 * (apart * batch.share).sum(1)

    def _wrong(self, output: Tensor, label: Tensor) -> Tensor:
        """Return log q [clients, batch, classes − 1]."""
        places = torch.arange(output.shape[-1] - 1, device=output.device)
        others = places + (places >= label[..., None])
        return (output.gather(-1, others) / self.tau).log_softmax(-1)
