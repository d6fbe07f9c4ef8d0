"""Every client's own model on the client's own test samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedslice.engines import Vectorized
from fedslice.engines.choose import Choice
from fedslice.metrics import Directions, Score, directions, lower_is_better, measured
from fedslice.panel import Panel, histogram
from fedslice.slice import Axis, Slice, Values
from fedslice.tables import IndexSets
from fedslice.task import Task, evaluating

LOSS = "loss"


class Own(NamedTuple):
    """The models of a chunk of clients: values on a layout."""

    layout: Slice
    values: Values


Models = Callable[[Tensor, Mapping[str, Axis]], Own]
"""Clients, and for every table the rows that their test samples name, to their models with these rows."""


def scores(task: Task, engine: Choice, models: Models) -> dict[str, Tensor]:
    """Metrics of the task, or the loss if it has none, by client: [clients] in float64, NaN without test samples.

    Where a broken model (NaN, infinity) leaves a metric without a value, the score is infinitely bad: the client
    counts.

    A metric is a function of all of a client's outputs and labels; the network runs for a chunk of clients at once, as
    in training. A model that compares the samples of a batch sees those of the client, the last of them more than once
    where others have more.
    """
    test = task.federation.test
    sizes = test.sizes.cpu()
    rows = [IndexSets(test, sets.features, sets.tables, sets.rows) for sets in task.index_sets]
    metrics: Mapping[str, Score] = task.metrics or {LOSS: lambda *both: float(task.loss(*both).double().mean())}
    worst = {name: math.inf if lower else -math.inf for name, lower in directions(metrics).items()}
    out = {name: torch.full((len(sizes),), math.nan, dtype=torch.float64) for name in metrics}
    order = sizes.argsort(stable=True)  # clients with similar numbers of samples go together: less is filled up
    for some in order[sizes[order] > 0].split(engine.chunk):
        clients = some.to(test.offsets.device)
        named = [(sets, Axis.from_flat(*sets.of(clients))) for sets in rows]
        layout = models(clients, {name: axis for sets, axis in named for name in sets.tables})
        found = list(_answers(task, engine, clients, named, layout))
        outputs, labels = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
        for place, client in enumerate(some.tolist()):
            size = int(sizes[client])
            own, label = outputs[place, :size], labels[place, :size]
            broken = not bool(own.isfinite().all())
            for name, metric in metrics.items():
                score = measured(name, metric, own, label)
                out[name][client] = worst[name] if broken and math.isnan(score) else score
    return out


def _answers(
    task: Task, engine: Choice, clients: Tensor, named: list[tuple[IndexSets, Axis]], own: Own
) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs and labels [clients, some of their samples, …], about ``eval_batch`` of them at a time."""
    test, together = task.federation.test, isinstance(engine.engine, Vectorized)
    offsets, sizes = test.offsets[clients][:, None], test.sizes_of(clients)[:, None]
    places = torch.arange(int(sizes.max()), device=clients.device)
    at_once = vmap(task.forward, randomness="different")
    with torch.no_grad(), evaluating(task.module):
        for part in places.split(max(1, task.eval_batch // (len(clients) if together else 1))):
            features, label = test.batch(offsets + torch.minimum(part, sizes - 1))
            for sets, axis in named:
                sets.relabel(features, axis)
            outputs = at_once(own.values, features) if together else _in_turn(task, own, features)
            yield outputs.cpu(), label.cpu()


def _in_turn(task: Task, own: Own, features: dict[str, Tensor]) -> Tensor:
    """One client after the other, each with a network of its own width."""
    return torch.stack(
        [
            task.forward(
                {name: value[client][own.layout.own(name, client)] for name, value in own.values.items()},
                {name: column[client] for name, column in features.items()},
            )
            for client in range(own.layout.clients)
        ]
    )


def score_columns(prefix: str, task: Task) -> dict[str, bool]:
    """Return the columns of a task's scores by client, and whether less of each is better."""
    scored = directions(task.metrics) or {LOSS: True}
    return {f"{prefix}_{name}{kind}": lower for name, lower in scored.items() for kind in ("", "_weighted", "_worst")}


def columns(
    prefix: str, found: dict[str, Tensor], weights: Tensor, declared: Directions | None = None
) -> dict[str, float]:
    """Return a run's columns of scores by client: their mean, that by test samples, and that of the worst tenth.

    ``declared`` says of which metrics less is better.
    """
    out = {}
    for name, values in found.items():
        counted = _counted(name, values, weights)
        own, weight = values[counted].double(), weights[counted].double()
        worst = own.sort(descending=lower_is_better(name, declared)).values[: max(1, len(own) // 10)]
        out[f"{prefix}_{name}"] = float(own.mean())
        out[f"{prefix}_{name}_weighted"] = float(weight @ own / weight.sum())
        out[f"{prefix}_{name}_worst"] = float(worst.mean())
    return out


def panels(title: str, found: dict[str, Tensor], weights: Tensor) -> list[Panel]:
    """How the clients' scores are spread."""
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
    """Who counts: all who have test samples, but for those whose samples leave a metric undefined (AUC of one class).

    A loss is always defined: one that is NaN comes from a broken model, and is not left out.
    """
    tested = weights > 0
    return tested if name == LOSS else tested & ~values.isnan()
