"""FedNTD: what the received model says of the wrong classes is not forgotten (Lee et al. 2022; S4, appendix D)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from fedslice.errors import UserError
from fedslice.local.head import class_head
from fedslice.local.sgd import SGD, Forward, mean_loss
from fedslice.parts import CHECKED, NonNegative, Positive, World
from fedslice.slice import Values
from fedslice.task import Loss

if TYPE_CHECKING:
    from fedslice.recipe import Recipe
    from fedslice.work import Batch, Work


@dataclass(config=CHECKED)
class FedNTD(SGD):
    """Adds β·τ²·KL(q_X ‖ q_x): q is the softmax, at temperature τ, over all classes but a sample's own."""

    label = "fedntd"

    beta: NonNegative = 0.001
    tau: Positive = 1.0

    def check(self, recipe: Recipe) -> None:
        """Refuse slices with which a client's start is not the model that came down."""
        if recipe.slices.stale:
            raise UserError(
                "local=fedntd learns from the model that came down, but "
                f"slices={recipe.slices.label} starts from parts that only the client knows; use slices=whole."
            )

    def setup(self, world: World) -> None:
        """With two classes there is one wrong one, and nothing to be said of it."""
        class_head(world.task, least=3, method=f"local={self.label}")

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
        """log q: [clients, batch, classes − 1]."""
        places = torch.arange(output.shape[-1] - 1, device=output.device)
        others = places + (places >= label[..., None])
        return (output.gather(-1, others) / self.tau).log_softmax(-1)
