"""Scores of outputs against labels."""

from functools import partial

import torch
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.metrics import Metric


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


@partial(Metric, lower_is_better=True)
def rmse(outputs: Tensor, labels: Tensor) -> float:
    """Root of the mean squared difference between outputs and labels, one of each per sample.

    >>> rmse(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 2.0])) ** 2
    4.5
    """
    return float(_differences("rmse", outputs, labels).square().mean().sqrt())


@partial(Metric, lower_is_better=True)
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
