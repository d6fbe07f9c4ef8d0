"""Scores of outputs against labels."""

import torch
from torch import Tensor


def margins(outputs: Tensor) -> Tensor:
    """One score per sample, larger for the positive class: a logit, or the difference of two class logits."""
    if outputs.dim() == 2 and outputs.shape[1] == 2:
        return outputs[:, 1] - outputs[:, 0]
    return outputs.flatten()


def auc(outputs: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve by ranks, ties counted half; NaN when one class is missing.

    >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    scores, positive = margins(outputs), labels > 0.5
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
        return float((outputs.argmax(1) == labels).double().mean())
    return float(((outputs.flatten() > 0) == (labels > 0.5)).double().mean())
