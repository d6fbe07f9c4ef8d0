"""Instruments by name: values that a run can log at its evaluations besides scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from fedslice.core.errors import unknown
from fedslice.core.part import Round
from fedslice.core.slice import Values
from fedslice.measure.base import Instrument, Moment, Scene, Snapshot
from fedslice.measure.classes import check_classes, class_accuracy, class_columns
from fedslice.measure.gradients import gradient_norms, norm_columns
from fedslice.measure.personal import Personal, Stale, Tuned
from fedslice.measure.trajectory import Trajectory
from fedslice.metrics import column
from fedslice.panel import Panel
from fedslice.schema import KNOWN, Column
from fedslice.task import Task
from fedslice.training.events import Taken, Trained

INSTRUMENTS: dict[str, Callable[[], Instrument]] = {
    "gradient-norms": lambda: Snapshot(gradient_norms, norm_columns),
    "class-accuracy": lambda: Snapshot(class_accuracy, class_columns, check_classes),
    "trajectory": Trajectory,
    "personal": Personal,
    "stale": Stale,
    "tuned": Tuned,
}


def run_columns(task: Task, measure: Sequence[str] = ()) -> dict[str, Column]:
    """Return the columns that a run of this task logs, by name."""
    scores = [KNOWN["train_loss"], KNOWN["test_loss"], *(column(name, one) for name, one in task.metrics.items())]
    rest = [one for name, one in KNOWN.items() if one.kind in ("cost", "count") and name != "t2a"]
    found = [KNOWN["round"], *scores, *Instruments(measure).columns(task), *rest]
    return {one.name: one for one in found}


class Instruments(Instrument):
    """Those of one run, as one."""

    def __init__(self, names: Sequence[str]):
        for name in names:
            if name not in INSTRUMENTS:
                raise unknown("instrument", name, INSTRUMENTS)
        self._by_name = {name: INSTRUMENTS[name]() for name in names}

    def columns(self, task: Task) -> list[Column]:
        """The columns of all."""
        return [column for one in self._by_name.values() for column in one.columns(task)]

    def setup(self, scene: Scene) -> None:
        """Call ``setup`` of every instrument."""
        for one in self._by_name.values():
            one.setup(scene)

    def trained(self, event: Trained) -> None:
        """Call ``trained`` of every instrument."""
        for one in self._by_name.values():
            one.trained(event)

    def taken(self, event: Taken) -> None:
        """Call ``taken`` of every instrument."""
        for one in self._by_name.values():
            one.taken(event)

    def observe(self, end: Round) -> None:
        """Call ``observe`` of every instrument."""
        for one in self._by_name.values():
            one.observe(end)

    def measure(self, now: Moment) -> dict[str, float]:
        """The columns of all."""
        return {column: value for one in self._by_name.values() for column, value in one.measure(now).items()}

    def panels(self) -> list[Panel]:
        """The panels of all."""
        return [panel for one in self._by_name.values() for panel in one.panels()]

    def clients(self) -> dict[str, Tensor]:
        """The columns of all."""
        return {column: values for one in self._by_name.values() for column, values in one.clients().items()}

    def state_dict(self) -> Values:
        """The memories of all, by name."""
        return {f"{name}.{key}": v for name, one in self._by_name.items() for key, v in one.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved memories, each instrument from its own."""
        own: dict[str, Values] = {name: {} for name in self._by_name}
        for key, value in state.items():
            name, _, rest = key.partition(".")
            own[name][rest] = value
        for name, one in self._by_name.items():
            one.load_state_dict(own[name])
