"""SCAFFOLD: steps corrected by control variates (option II; FedSubAvg, appendix D.2).

SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
    Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich, Ananda Theertha Suresh.
    ICML 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.core.entries import OnSlice, View
from fedslice.core.message import Body
from fedslice.core.part import CHECKED
from fedslice.core.slice import Axis
from fedslice.local.memory import remembered_rows
from fedslice.local.variates import UP, Variates

if TYPE_CHECKING:
    from fedslice.training.work import Work


@dataclass(frozen=True, config=CHECKED)
class Scaffold(Variates):
    """x ← x − γ·(g − c_i + c), with the control variates of :class:`Variates`.

    Here c_i⁺ is the mean of the client's gradients in its last round. So on a table it is zero outside the rows that
    its batches named then, and no more than those are remembered: control variates cost what batches do. A coordinate
    without a gradient and without c_i drifts by −I·γ·c, which the server adds for all who hold it at once.
    """

    label = "scaffold"
    follows_gradient = True

    @property
    def provides(self) -> frozenset[str]:
        """Whether rows that batches do not name drift alike. With momentum they would drift faster and faster."""
        known = super().provides
        if self.momentum:
            return known - {"follows-gradient"}
        return known | {"uniform-drift"} if "follows-gradient" in known else known

    def drift(self, came: Body) -> View | OnSlice:
        """c."""
        return self.common(came)

    def rows(self, memory: Any, table: str, clients: Tensor) -> Axis | None:
        """Return where c_i is not zero."""
        return remembered_rows(memory, UP, table, clients)

    def lasting(self, name: str, work: Work, axis: Axis) -> Tensor:
        """Return the rows that this round's batches named; all, where others move by more than the drift."""
        if "follows-gradient" not in self.provides:
            return axis.mask
        rows = torch.zeros_like(axis.ids, dtype=torch.bool)
        for feature in work.memory.run.spec.tables[name].features:
            rows.scatter_(1, work.features[feature].flatten(1), True)
        return rows & axis.mask
