"""Accuracy class by class: what a mean over all classes hides where some are rare (FedDD, section 6.7)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.core.slice import Values
from fedslice.schema import Column
from fedslice.task import Task, evaluating

COLUMN = "test_accuracy_class_{}"


def class_columns(task: Task) -> list[Column]:
    """Return the columns of :func:`class_accuracy`, one per output."""
    return [Column(COLUMN.format(place), "score", lower_is_better=False) for place in range(_outputs(task))]


def class_accuracy(task: Task, model: Values) -> dict[str, float]:
    """``test_accuracy_class_0``, …: of each class's test samples, the share that is told right; NaN if it has none."""
    test = task.federation.test
    labels, right, classes = [], [], 0
    with torch.no_grad(), evaluating(task.module):
        for index in torch.arange(len(test), device=test.offsets.device).split(task.eval_batch):
            features, label = test.batch(index)
            outputs = task.forward(model, features)
            classes = outputs.shape[1]
            labels.append(label.long().cpu())
            right.append((outputs.argmax(1) == label).double().cpu())
    of_class = torch.cat(labels)
    hits = torch.bincount(of_class, torch.cat(right), minlength=classes)
    shares = hits / torch.bincount(of_class, minlength=classes)
    return {COLUMN.format(place): share for place, share in enumerate(shares.tolist())}


def check_classes(task: Task) -> None:
    """Refuse a task whose outputs and labels do not speak of classes."""
    test = task.federation.test
    if not len(test):
        raise UserError(f"task {task.name!r} has no test samples, which class-accuracy counts; leave it out.")
    if task.several:
        raise UserError(f"task {task.name!r} has several outputs; class-accuracy needs one, of classes: leave it out.")
    shape, label = _shape(task), test.label
    if label.is_floating_point() or label.dim() != 1 or len(shape) != 2 or shape[1] < 2:
        raise UserError(
            f"task {task.name!r} has labels of type {str(label.dtype).removeprefix('torch.')} and outputs of shape "
            f"{tuple(shape[1:])} for each sample; class-accuracy needs whole class numbers and an output per class: "
            "leave it out."
        )
    if int(label.min()) < 0 or int(label.max()) >= shape[1]:
        raise UserError(
            f"task {task.name!r} has labels from {int(label.min())} to {int(label.max())} and {shape[1]} "
            "outputs; class-accuracy needs an output for every class: leave it out."
        )


def _shape(task: Task) -> torch.Size:
    """The shape of the outputs for one sample."""
    test = task.federation.test
    with torch.no_grad(), evaluating(task.module):
        one = torch.zeros(1, dtype=torch.int64, device=test.offsets.device)
        model = {name: value.to(one.device) for name, value in task.initial(0).items()}
        output = task.forward(model, test.batch(one)[0])
    return output.shape if isinstance(output, Tensor) else torch.Size()


def _outputs(task: Task) -> int:
    """Classes of a task; none of one that :func:`check_classes` refuses."""
    shape = _shape(task) if len(task.federation.test) else ()
    return int(shape[1]) if len(shape) == 2 else 0
