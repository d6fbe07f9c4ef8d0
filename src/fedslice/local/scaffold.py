"""SCAFFOLD: steps corrected by control variates (Karimireddy et al. 2020, option II; S0, appendix D.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.local.variates import Variates
from fedslice.parts import CHECKED, World
from fedslice.slice import Axis, Values

if TYPE_CHECKING:
    from fedslice.work import Work


@dataclass(config=CHECKED)
class Scaffold(Variates):
    """x ← x − γ·(g − c_i + c), with the control variates of :class:`Variates`.

    Here c_i⁺ is the mean of the client's gradients in its last round. So on a table it is zero outside the rows that
    its batches named then, and no more than those are remembered: control variates cost what batches do. A coordinate
    without a gradient and without c_i drifts by −I·γ·c, which the server adds for all who hold it at once.
    """

    label = "scaffold"
    drifts = True

    def setup(self, world: World) -> None:
        """Learn which features name the rows of which table."""
        super().setup(world)
        self._sets = {table: sets for sets in world.task.index_sets for table in sets.tables}

    def field(self) -> Values:
        """c."""
        return self._variate

    def rows(self, table: str, clients: Tensor) -> Axis | None:
        """Where c_i is not zero."""
        memory = self._store.get_rows(f"variate/{table}", clients)
        return None if memory is None else memory[0]

    def lasting(self, name: str, work: Work, axis: Axis) -> Tensor:
        """The rows that this round's batches named; all, where others move by more than the drift."""
        if not self.follows_gradient:
            return axis.mask
        named = torch.zeros_like(axis.ids, dtype=torch.bool)
        for feature in self._sets[name].features:
            named.scatter_(1, work.features[feature].flatten(1), True)
        return named & axis.mask
