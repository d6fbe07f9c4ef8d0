"""Feature rows: a client's submodel of S0, section 2."""

from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.errors import UserError
from fedslice.parts import CHECKED, World
from fedslice.slice import Axis, Slice
from fedslice.slices.base import Slices
from fedslice.tables import IndexSets


@dataclass(config=CHECKED)
class FeatureRows(Slices):
    """Dense parameters in full, and of each table the rows of the client's own features, S(i)."""

    label = "feature-rows"

    def setup(self, world: World) -> None:
        """Refuse a task without tables: there would be no rows to choose from."""
        super().setup(world)
        if not world.task.index_sets:
            raise UserError(
                f"slices={self.label} needs a task with tables, and task {world.task.name!r} has none; name them in "
                "Task(tables=...), or use slices=whole."
            )
        self._index_sets: list[IndexSets] = world.task.index_sets

    def hold(self, t: int, clients: Tensor) -> Slice:
        """X_{S(i)} (algorithm 1, line 12)."""
        axes: dict[str, Axis | None] = {}
        for sets in self._index_sets:
            axes |= dict.fromkeys(sets.tables, sets.axis(clients))
        return super().hold(t, clients).replace(axes)
