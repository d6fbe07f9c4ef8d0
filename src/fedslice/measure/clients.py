"""Every client's own model on the client's own test samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedslice.metrics import Directions, Metric, column
from fedslice.panel import Panel, histogram
from fedslice.schema import Column
from fedslice.task import Task
from fedslice.training.engines.choose import Choice
from fedslice.training.evaluate import LOSS, Models, client_metrics, client_scores


def scores(task: Task, engine: Choice, models: Models) -> dict[str, Tensor]:
    """Metrics of the task, or the loss if it has none, by client: [clients] in float64, NaN without test samples."""
    sizes = task.federation.test.sizes.cpu()
    out = {name: torch.full((len(sizes),), math.nan, dtype=torch.float64) for name in client_metrics(task)}
    order = sizes.argsort(stable=True)  # clients with similar numbers of samples go together: less is filled up
    for some in order[sizes[order] > 0].split(engine.chunk):
        found = client_scores(task, engine, some.to(task.federation.test.offsets.device), models)
        for name, values in found.items():
            out[name][some] = values
    return out


_KINDS = ("", "_weighted", "_worst")


def score_columns(prefix: str, task: Task) -> list[Column]:
    """Return the columns of a task's scores by client: mean, mean by test samples, mean of the worst tenth."""
    scored = task.metrics or {LOSS: Metric(task.loss, lower_is_better=True)}
    return [column(name, one, prefix, kind) for name, one in scored.items() for kind in _KINDS]


def columns(prefix: str, found: dict[str, Tensor], weights: Tensor, lower: Directions) -> dict[str, float]:
    """Return a run's columns of scores by client: their mean, that by test samples, and that of the worst tenth.

    ``lower`` says of which metrics less is better.
    """
    out: dict[str, float] = {}
    for name, values in found.items():
        counted = _counted(name, values, weights)
        own, weight = values[counted].double(), weights[counted].double()
        worst = own.sort(descending=lower.get(name, name == LOSS)).values[: max(1, len(own) // 10)]
        means = (own.mean(), weight @ own / weight.sum(), worst.mean())
        out |= {f"{prefix}_{name}{kind}": float(mean) for kind, mean in zip(_KINDS, means, strict=True)}
    return out


def panels(title: str, found: dict[str, Tensor], weights: Tensor) -> list[Panel]:
    """Return histograms of the clients' scores."""
    out = []
    for name, values in found.items():
        own = values[_counted(name, values, weights) & values.isfinite()]
        if len(own):
            note = (
                f"{len(own):,} clients counted, of {int((weights > 0).sum()):,} that have test samples: from "
                f"{float(own.min()):.4g} to {float(own.max()):.4g}, {float(own.mean()):.4g} on average."
            )
            out.append(histogram(f"{title}: {name} by client", own, name, note=note))
    return out


def _counted(name: str, values: Tensor, weights: Tensor) -> Tensor:
    """Flags of the clients that count: those with test samples that leave the metric defined (not AUC of one class).

    A loss is always defined: one that is NaN comes from a broken model, and is not left out.
    """
    tested = weights > 0
    return tested if name == LOSS else tested & ~values.isnan()
