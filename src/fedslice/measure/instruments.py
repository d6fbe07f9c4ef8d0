"""What a run can log at its evaluations besides scores, by name."""

from collections.abc import Callable

from fedslice.measure.gradients import gradient_norms
from fedslice.slice import Values
from fedslice.task import Task

Instrument = Callable[[Task, Values], dict[str, float]]

INSTRUMENTS: dict[str, Instrument] = {"gradient-norms": gradient_norms}

_MEASURED = ("train_", "test_", "gradient_", "elementwise_")


def is_measured(column: str) -> bool:
    """Does this column of a log tell something about the model, and not about the run?"""
    return column.startswith(_MEASURED)
