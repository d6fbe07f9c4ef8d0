"""FedNTD: what the received model says of the wrong classes is not forgotten (Lee et al. 2022; FLSS, appendix D)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from fedslice.core.capabilities import Rule
from fedslice.core.memory import Memory
from fedslice.core.part import CHECKED, ClientRun, NonNegative, Positive
from fedslice.core.slice import Values
from fedslice.local.sgd import SGD, Forward, mean_loss
from fedslice.network.head import class_head
from fedslice.task import Loss

if TYPE_CHECKING:
    from fedslice.training.work import Batch, Work


@dataclass(frozen=True, config=CHECKED)
class FedNTD(SGD):
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
        yield from super().rules()
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

    def objective(
        self,
        forward: Forward,
        loss: Loss,
        parameters: Values,
        batch: Batch,
        work: Work,
        s: int,  # noqa: ARG002
    ) -> Tensor:
        """The loss, and how far the wrong classes are from where the received model puts them."""
        output = forward(parameters, batch.features)
        with forward.frozen():
            teacher = self._wrong(forward(work.start, batch.features), batch.label)
        apart = F.kl_div(self._wrong(output, batch.label), teacher, log_target=True, reduction="none").sum(-1)
        return mean_loss(loss, output, batch) + self.beta * self.tau**2 * (apart * batch.share).sum(1)

    def _wrong(self, output: Tensor, label: Tensor) -> Tensor:
        """Return log q [clients, batch, classes − 1]."""
        places = torch.arange(output.shape[-1] - 1, device=output.device)
        others = places + (places >= label[..., None])
        return (output.gather(-1, others) / self.tau).log_softmax(-1)
