"""FedBABU: the body is trained, the head stays as it was drawn.

FedBABU: Toward Enhanced Representation for Federated Image Classification
    Jaehoon Oh, SangMook Kim, Se-Young Yun. ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedslice.core.part import ClientRun
from fedslice.local.last_layer import HeadMemory
from fedslice.local.term import Term

if TYPE_CHECKING:
    from fedslice.training.work import Work


class FedBABU(Term):
    """Every client's last Linear layer is the initial one, until the model is fine-tuned, head and all, for its own."""

    label = "fedbabu"

    def client_memory(self, run: ClientRun, place: str) -> HeadMemory:
        """Find the head."""
        return HeadMemory(run, place, f"local={self.label}")

    def frozen(self, work: Work, s: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return the head, for everyone."""
        return dict.fromkeys(work.memory.head, torch.ones_like(work.clients, dtype=torch.bool))

    def tuning(self) -> tuple[Term, ...]:
        """Return nothing: the whole model is tuned."""
        return ()
