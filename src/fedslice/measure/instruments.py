"""What a run can log at its evaluations besides scores, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from fedslice.core.errors import unknown
from fedslice.core.part import Round
from fedslice.core.slice import Values
from fedslice.measure import clients
from fedslice.measure.base import Instrument, Moment, Scene, Snapshot
from fedslice.measure.classes import check_classes, class_accuracy
from fedslice.measure.gradients import gradient_norms
from fedslice.measure.personal import Personal, Stale, Tuned
from fedslice.measure.trajectory import Trajectory
from fedslice.metrics import directions
from fedslice.panel import Panel
from fedslice.task import Task
from fedslice.training.events import Taken, Trained

INSTRUMENTS: dict[str, Callable[[], Instrument]] = {
    "gradient-norms": lambda: Snapshot(gradient_norms),
    "class-accuracy": lambda: Snapshot(class_accuracy, check_classes),
    "trajectory": Trajectory,
    "personal": Personal,
    "stale": Stale,
    "tuned": Tuned,
}

OF_CLIENTS = tuple(kind.label for kind in (Personal, Stale, Tuned))  # those that test clients one by one
_SCORES = ("train_", "test_", *(f"{name}_" for name in OF_CLIENTS))
_MEASURED = (*_SCORES, "gradient_", "elementwise_", "trajectory_")


def score_columns(task: Task, measure: Sequence[str] = ()) -> dict[str, bool]:
    """Return the scores that a run of this task logs, and whether less of each is better.

    Scores of clients one by one are among them if ``measure`` names an instrument that tests those.
    """
    tested = {f"test_{name}": lower for name, lower in directions(task.metrics).items()}
    of_clients = [clients.score_columns(label, task) for label in measure if label in OF_CLIENTS]
    return {"train_loss": True, "test_loss": True, **tested, **{k: v for own in of_clients for k, v in own.items()}}


def is_measured(column: str) -> bool:
    """Does this column of a log tell something about the model, and not about the run?"""
    return column.startswith(_MEASURED)


def is_score(column: str) -> bool:
    """Does it tell how good the model is, so that one method can be better by it than another?"""
    return column.startswith(_SCORES)


class Instruments(Instrument):
    """Those of one run, as one."""

    def __init__(self, names: Sequence[str]):
        for name in names:
            if name not in INSTRUMENTS:
                raise unknown("instrument", name, INSTRUMENTS)
        self._by_name = {name: INSTRUMENTS[name]() for name in names}

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
        """To each its own."""
        own: dict[str, Values] = {name: {} for name in self._by_name}
        for key, value in state.items():
            name, _, rest = key.partition(".")
            own[name][rest] = value
        for name, one in self._by_name.items():
            one.load_state_dict(own[name])
