"""FedBABU: the body is trained, the head stays as it was drawn (Oh et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.local.head import head
from fedslice.local.sgd import SGD
from fedslice.parts import CHECKED, World

if TYPE_CHECKING:
    from fedslice.work import Work


@dataclass(config=CHECKED)
class FedBABU(SGD):
    """Every client's last Linear layer is the initial one, until the model is fine-tuned, head and all, for its own."""

    label = "fedbabu"

    def setup(self, world: World) -> None:
        """Find the head."""
        self._head = head(world.task, f"local={self.label}").parameters(world.task)

    def still(self, work: Work, s: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """The head of everyone."""
        return dict.fromkeys(self._head, torch.ones_like(work.clients, dtype=torch.bool))

    def tuner(self) -> SGD:
        """Plain SGD, for the whole model."""
        return self.plain()
