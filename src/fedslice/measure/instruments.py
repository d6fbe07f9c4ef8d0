"""What a run can log at its evaluations besides scores, by name."""

from collections.abc import Callable
from typing import NamedTuple

from fedslice.measure.classes import check_classes, class_accuracy
from fedslice.measure.gradients import gradient_norms
from fedslice.slice import Values
from fedslice.task import Task


class Instrument(NamedTuple):
    """Columns of a model on a task; ``check`` refuses a task that has no such thing, before the first round."""

    measure: Callable[[Task, Values], dict[str, float]]
    check: Callable[[Task], None] = lambda _: None


INSTRUMENTS = {
    "gradient-norms": Instrument(gradient_norms),
    "class-accuracy": Instrument(class_accuracy, check_classes),
}

_MEASURED = ("train_", "test_", "gradient_", "elementwise_")


def is_measured(column: str) -> bool:
    """Does this column of a log tell something about the model, and not about the run?"""
    return column.startswith(_MEASURED)
