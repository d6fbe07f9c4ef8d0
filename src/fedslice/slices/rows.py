"""Feature rows: a client's submodel in FedSubAvg.

Federated Submodel Optimization for Hot and Cold Data Features
    Yucheng Ding, Chaoyue Niu, Fan Wu, Shaojie Tang, Chengfei Lv, Yanghe Feng, Guihai Chen. NeurIPS 2022.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.core.facts import row_fields, row_name
from fedslice.core.message import Body, Fields
from fedslice.core.part import ServerRun, State
from fedslice.core.slice import Axis, Slice
from fedslice.core.spec import Spec
from fedslice.slices.base import Slices


class FeatureRows(Slices):
    """Send dense parameters in full, and of each table the rows of the client's own features, S(i).

    A client names its rows in every request, once for all tables that the same features index.
    """

    label = "feature-rows"

    @property
    def provides(self) -> frozenset[str]:
        """All that is held goes up."""
        return frozenset({"sends-all"})

    def server_state(self, run: ServerRun) -> State:
        """Refuse a task without tables: there would be no rows to choose from."""
        if not run.spec.groups:
            raise UserError(
                f"slices={self.label} needs a task with tables, and task {run.spec.name!r} has none; name them in "
                "Task(tables=...), or use slices=whole."
            )
        return State(run)

    def hold(self, memory: Any, t: int, clients: Tensor) -> Slice:  # noqa: ARG002
        """X_{S(i)} (algorithm 1, line 12)."""
        axes: dict[str, Axis | None] = {}
        for sets in memory.run.task.index_sets:
            axes |= dict.fromkeys(sets.tables, sets.axis(clients))
        return Slice.whole(len(clients), memory.run.spec.shapes).replace(axes)

    def request(self, memory: Any, t: int, clients: Tensor, hold: Slice) -> Body:  # noqa: ARG002
        """The rows of each group."""
        return {row_name(group.name): hold.axes[group.name][0] for group in memory.run.spec.groups}

    def requested(self, state: Any, t: int, clients: Tensor, request: Body) -> Slice:  # noqa: ARG002
        """The rows that were named, and everything else."""
        axes: dict[str, Axis | None] = {}
        for group in state.run.spec.groups:
            axes |= dict.fromkeys(group.tables, request[row_name(group.name)])
        return Slice.whole(len(clients), state.run.spec.shapes).replace(axes)

    def request_fields(self, spec: Spec) -> Fields:
        """A field of row numbers per group of tables."""
        return row_fields(spec)
