"""Metrics: numbers for outputs against labels, each with the direction in which it is better."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fedslice.core import trees
from fedslice.core.errors import UserError
from fedslice.schema import Column, Unit, named_lower

Score = Callable[[Any, Tensor], Any]
Directions = Mapping[str, bool]
"""Metrics by name, and whether less of each is better."""


class Metric:
    """A function of all outputs and labels, and what its column is called and means.

    Args:
        function: Called with outputs ``[samples, …]``, of a model with several outputs all of them as it returns them,
            and labels ``[samples, …]`` on the CPU. It returns one number, or ``None`` where it is undefined, as the AUC
            of samples that are all of one class.
        lower_is_better: Whether a smaller number is a better one. Targets, marks of the best method and the worst tenth
            of clients follow it.
        unit: ``"%"`` for a share of one that is shown in percent, ``"s"``, ``"B"``, or nothing.
        heading: Words for tables and charts; the metric's name by default.

    Example:
        >>> error = Metric(lambda outputs, labels: (outputs - labels).abs().max(), lower_is_better=True)
        >>> Task(..., metrics={"error": error})  # doctest: +SKIP
    """

    def __init__(self, function: Score, *, lower_is_better: bool = False, unit: Unit = "", heading: str = "") -> None:
        if not callable(function):
            raise UserError(f"Metric takes a function of outputs and labels, found {function!r:.60}.")
        if unit not in get_args(Unit):
            raise UserError(f"Metric: unit={unit!r:.20}, expected one of {', '.join(map(repr, get_args(Unit)))}.")
        functools.update_wrapper(self, function)
        self.function = function
        self.lower_is_better = lower_is_better
        self.unit = unit
        self.heading = heading

    def __call__(self, outputs: Any, labels: Tensor) -> Any:
        """Return what the function returns."""
        return self.function(outputs, labels)

    def __repr__(self) -> str:
        more = "".join(
            f", {name}={found!r}" for name, found in (("unit", self.unit), ("heading", self.heading)) if found
        )
        return f"Metric({called(self.function)}, lower_is_better={self.lower_is_better}{more})"


def column(name: str, metric: Score, prefix: str = "test", suffix: str = "") -> Column:
    """Return the column of a metric's values: as it declares itself, or for a plain function by its name."""
    if not isinstance(metric, Metric):
        return Column(f"{prefix}_{name}{suffix}", "score", lower_is_better=named_lower(name))
    words = f"{prefix} {metric.heading}{suffix.replace('_', ' ')}" if metric.heading else ""
    return Column(f"{prefix}_{name}{suffix}", "score", metric.unit, metric.lower_is_better, words)


def directions(metrics: Mapping[str, Score]) -> dict[str, bool]:
    """Return whether less is better, by metric."""
    return {name: bool(column(name, one).lower_is_better) for name, one in metrics.items()}


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


def margins(outputs: Tensor) -> Tensor:
    """One score per sample, larger for the positive class: a logit, or the difference of two class logits."""
    if outputs.dim() == 2 and outputs.shape[1] == 2:
        return outputs[:, 1] - outputs[:, 0]
    return outputs.flatten()


def auc(outputs: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve by ranks, ties counted half; NaN when one class is missing. Labels are 0 and 1.

    >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    scores = margins(outputs)
    _check_two_classes("auc", scores, labels)
    positive = labels > 0.5
    values, place = torch.unique(scores, return_inverse=True)
    counts = torch.bincount(place, minlength=len(values)).to(torch.float64)
    ranks = counts.cumsum(0) - (counts - 1) / 2
    hits, total = int(positive.sum()), len(labels)
    if hits in (0, total):
        return float("nan")
    above = float(ranks[place[positive]].sum()) - hits * (hits + 1) / 2
    return above / (hits * (total - hits))


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Share of samples whose most likely class is the label; a single logit is thresholded at zero.

    >>> accuracy(torch.tensor([-1.0, 2.0]), torch.tensor([0, 0]))
    0.5
    """
    if outputs.dim() == 2 and outputs.shape[1] > 1:
        _check_classes(outputs, labels)
        return float((outputs.argmax(1) == labels).double().mean())
    scores = outputs.flatten()
    _check_two_classes("accuracy", scores, labels)
    return float(((scores > 0) == (labels > 0.5)).double().mean())


@functools.partial(Metric, lower_is_better=True)
def rmse(outputs: Tensor, labels: Tensor) -> float:
    """Root of the mean squared difference between outputs and labels, one of each per sample.

    >>> rmse(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 2.0])) ** 2
    4.5
    """
    return float(_differences("rmse", outputs, labels).square().mean().sqrt())


@functools.partial(Metric, lower_is_better=True)
def mae(outputs: Tensor, labels: Tensor) -> float:
    """Mean absolute difference between outputs and labels, one of each per sample.

    >>> mae(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 2.0]))
    1.5
    """
    return float(_differences("mae", outputs, labels).abs().mean())


def _differences(name: str, outputs: Tensor, labels: Tensor) -> Tensor:
    """Outputs of shape [n, 1] beside labels of shape [n] would be compared each with each."""
    if outputs.numel() != labels.numel():
        raise UserError(
            f"{name} compares one output with one label, found {outputs.numel()} outputs for {labels.numel()} labels; "
            "use a metric of classes, for example accuracy."
        )
    return outputs.double().flatten() - labels.double().flatten()


def _check_two_classes(name: str, scores: Tensor, labels: Tensor) -> None:
    """One output per sample, and labels that are not the values of a regression."""
    if scores.shape != labels.shape:
        raise UserError(
            f"{name} needs one label per sample and one output (or two, one per class), found {scores.numel()} outputs "
            f"for labels of shape {tuple(labels.shape)}."
        )
    if ((labels == 0) | (labels == 1)).all():
        return
    values = labels.unique()
    if len(values) > 2 or (len(values) == 2 and bool((values > 0.5).all() | (values <= 0.5).all())):
        raise UserError(
            f"{name} of one output per sample needs labels 0 and 1, found {len(values)} different labels from "
            f"{float(values[0]):g} to {float(values[-1]):g}; use rmse or mae for a regression, or one output per class."
        )


def _check_classes(outputs: Tensor, labels: Tensor) -> None:
    classes = outputs.shape[1]
    if labels.shape != outputs.shape[:1] or (labels.is_floating_point() and bool((labels != labels.round()).any())):
        raise UserError(
            f"accuracy with {classes} outputs per sample needs one whole class number per sample, found labels of "
            f"shape {tuple(labels.shape)} and type {str(labels.dtype).removeprefix('torch.')}; use another metric."
        )
