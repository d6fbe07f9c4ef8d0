"""Metrics: numbers for outputs against labels, each with the direction in which it is better."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fedslice.core import trees
from fedslice.core.errors import UserError

Score = Callable[[Any, Tensor], Any]
Directions = Mapping[str, bool]
"""Columns of a log (or metrics by name), and whether less of each is better."""

_LOWER = frozenset({"loss", "rmse", "mse", "mae"})


class Metric:
    """A function of all outputs and labels, and whether less of it is better.

    Args:
        function: Called with outputs ``[samples, …]``, of a model with several outputs all of them as it returns them,
            and labels ``[samples, …]`` on the CPU. It returns one number, or ``None`` where it is undefined, as the AUC
            of samples that are all of one class.
        lower_is_better: Whether a smaller number is a better one. Targets, marks of the best method and the worst tenth
            of clients follow it.

    Example:
        >>> error = Metric(lambda outputs, labels: (outputs - labels).abs().max(), lower_is_better=True)
        >>> Task(..., metrics={"error": error})  # doctest: +SKIP
    """

    def __init__(self, function: Score, *, lower_is_better: bool = False) -> None:
        if not callable(function):
            raise UserError(f"Metric takes a function of outputs and labels, found {function!r:.60}.")
        functools.update_wrapper(self, function)
        self.function = function
        self.lower_is_better = lower_is_better

    def __call__(self, outputs: Any, labels: Tensor) -> Any:
        """Return what the function returns."""
        return self.function(outputs, labels)

    def __repr__(self) -> str:
        return f"Metric({called(self.function)}, lower_is_better={self.lower_is_better})"


def lower_is_better(name: str, declared: Directions | None = None) -> bool:
    """Return whether less of a column or metric is better: as declared.

    Where nothing is declared (a plain function, a run of an older version), it is so if the name has one of the words
    loss, rmse, mse or mae.

    >>> lower_is_better("test_auc"), lower_is_better("test_rmse"), lower_is_better("test_rmse", {"test_rmse": False})
    (False, True, False)
    """
    found = (declared or {}).get(name)
    return not _LOWER.isdisjoint(name.split("_")) if found is None else found


def directions(metrics: Mapping[str, Score]) -> dict[str, bool]:
    """Return whether less is better, by metric."""
    return {
        name: one.lower_is_better if isinstance(one, Metric) else lower_is_better(name) for name, one in metrics.items()
    }


def measured(name: str, metric: Score, outputs: Any, labels: Tensor) -> float:
    """Return the metric's value; NaN where it is undefined (``None``, NaN or infinity), which logs write as null."""
    try:
        found = metric(outputs, labels)
    except UserError as error:
        raise UserError(f"metric {name!r}: {error}") from None
    except Exception as error:
        raise UserError(
            f"metric {name!r} raised {told(error)} on outputs of shape {trees.shapes(outputs)} and labels of shape "
            f"{tuple(labels.shape)}; return None where it is undefined."
        ) from error
    number = found.item() if _single(found) else found
    if number is None:
        return math.nan
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise UserError(
            f"metric {name!r} gave {kind(found)} for {len(labels)} samples; it must give one number, or None where it "
            "is undefined."
        )
    return float(number) if abs(number) <= sys.float_info.max else math.nan


def called(function: object) -> str:
    """Return a function's or a module's name for a message.

    >>> called(math.sqrt)
    'sqrt'
    """
    return str(getattr(function, "__name__", type(function).__name__))


def kind(value: object) -> str:
    """Return what a value is, for a message: a tensor with its shape, else its type.

    >>> kind(np.zeros((2, 3))), kind({})
    ('an array of shape (2, 3)', 'a dict')
    """
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def told(error: Exception) -> str:
    """Return an error's type and the first line of its message.

    >>> told(ValueError("no"))
    "ValueError ('no')"
    """
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__} ({first!r:.120})"


def _single(found: object) -> bool:
    if isinstance(found, Tensor):
        return found.numel() == 1
    return isinstance(found, np.ndarray | np.generic) and found.size == 1
