"""FedBABU: the body is trained, the head stays as it was drawn (Oh et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.core.part import CHECKED, ClientRun
from fedslice.local.last_layer import HeadMemory
from fedslice.local.sgd import SGD

if TYPE_CHECKING:
    from fedslice.training.work import Work


@dataclass(frozen=True, config=CHECKED)
class FedBABU(SGD):
    """Every client's last Linear layer is the initial one, until the model is fine-tuned, head and all, for its own."""

    label = "fedbabu"

    def client_memory(self, run: ClientRun, place: str) -> HeadMemory:
        """Find the head."""
        return HeadMemory(run, place, f"local={self.label}")

    def still(self, work: Work, s: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return the head of everyone."""
        assert isinstance(work.memory, HeadMemory)
        return dict.fromkeys(work.memory.head, torch.ones_like(work.clients, dtype=torch.bool))

    def tuner(self) -> SGD:
        """Return plain SGD, for the whole model."""
        return self.plain()
