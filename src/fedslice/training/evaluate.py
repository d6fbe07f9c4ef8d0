"""Scores: of one model on a whole task, and of clients' own models on their own test samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedslice.core import rng, trees
from fedslice.core.slice import Axis, Slice, Values
from fedslice.data.index_sets import IndexSets
from fedslice.data.samples import Samples
from fedslice.metrics import Score, directions, measured
from fedslice.task import Task, evaluating
from fedslice.training.engines import Vectorized
from fedslice.training.engines.choose import Choice
from fedslice.training.engines.vectorized import attention

LOSS = "loss"


class Own(NamedTuple):
    """The models of a chunk of clients: values on a layout."""

    layout: Slice
    values: Values


Models = Callable[[Tensor, Mapping[str, Axis]], Own]
"""Clients, and for every table the rows that their test samples name, to their models with these rows."""


def client_metrics(task: Task) -> Mapping[str, Score]:
    """Return the metrics of the task, or the mean loss if it has none."""
    return task.metrics or {LOSS: lambda *both: float(task.loss(*both).double().mean())}


def client_scores(task: Task, engine: Choice, clients: Tensor, models: Models) -> dict[str, Tensor]:
    """Return metrics by client [clients] in float64, NaN without test samples.

    Where a broken model (NaN, infinity) leaves a metric without a value, the score is infinitely bad: the client
    counts.

    A metric is a function of all of a client's outputs and labels; the network runs for a chunk of clients at once, as
    in training. A model that compares the samples of a batch sees those of the client, the last of them more than once
    where others have more.
    """
    test, metrics = task.federation.test, client_metrics(task)
    out = {name: torch.full((len(clients),), math.nan, dtype=torch.float64) for name in metrics}
    sizes = test.sizes_of(clients).cpu()
    tested = (sizes > 0).nonzero()[:, 0]
    if not len(tested):
        return out
    if len(tested) < len(clients):
        raise ValueError("clients without test samples stand among others; score them apart")
    rows = [sets.over(test) for sets in task.index_sets]
    worst = {name: math.inf if lower else -math.inf for name, lower in directions(metrics).items()}
    named = [(sets, Axis.from_flat(*sets.of(clients))) for sets in rows]
    own_models = models(clients, {name: axis for sets, axis in named for name in sets.tables})
    found = list(_answers(task, engine, clients, named, own_models))
    outputs, labels = trees.joined([output for output, _ in found], 1), torch.cat([label for _, label in found], 1)
    for place, size in enumerate(sizes.tolist()):
        own, label = trees.each(partial(_first, place, size), outputs), labels[place, :size]
        broken = not all(bool(part.isfinite().all()) for part in trees.floating(own))
        for name, metric in metrics.items():
            score = measured(name, metric, own, label)
            out[name][place] = worst[name] if broken and math.isnan(score) else score
    return out


def _first(place: int, size: int, part: Tensor) -> Tensor:
    return part[place, :size]


def _answers(
    task: Task, engine: Choice, clients: Tensor, named: list[tuple[IndexSets, Axis]], own: Own
) -> Iterator[tuple[Any, Tensor]]:
    """Outputs and labels [clients, some of their samples, …], about ``eval_batch`` of them at a time."""
    test, together = task.federation.test, isinstance(engine.engine, Vectorized)
    offsets, sizes = test.offsets[clients][:, None], test.sizes_of(clients)[:, None]
    places = torch.arange(int(sizes.max()), device=clients.device)
    at_once = vmap(task.forward, randomness="different")
    with torch.no_grad(), evaluating(task.module), attention(clients.device):
        for part in places.split(max(1, task.eval_batch // (len(clients) if together else 1))):
            features, label = test.batch(offsets + torch.minimum(part, sizes - 1))
            for sets, axis in named:
                sets.relabel(features, axis)
            outputs = at_once(own.values, features) if together else _in_turn(task, own, features)
            yield trees.each(Tensor.cpu, outputs), label.cpu()


def _in_turn(task: Task, own: Own, features: dict[str, Tensor]) -> Any:
    """One client after the other, each with a network of its own width."""
    return trees.stacked(
        [
            task.forward(
                {
                    name: value[client][own.layout.own(name, client)] if name in own.layout.axes else value[client]
                    for name, value in own.values.items()
                },
                {name: column[client] for name, column in features.items()},
            )
            for client in range(own.layout.clients)
        ]
    )


def evaluate(task: Task, model: Values, seed: int) -> dict[str, float]:
    """``train_loss``, ``test_loss`` and one ``test_<metric>`` per metric of the task; NaN where one is undefined."""
    train, test = task.federation.train, task.federation.test
    loss, _, _ = _scores(task, model, train, _sample(train, task.train_sample, seed))
    out = {"train_loss": loss}
    if len(test):
        loss, outputs, labels = _scores(task, model, test, torch.arange(len(test), device=test.offsets.device))
        out["test_loss"] = loss
        out |= {f"test_{name}": measured(name, metric, outputs, labels) for name, metric in task.metrics.items()}
    return out


def _sample(samples: Samples, count: int, seed: int) -> Tensor:
    """The same random samples at every evaluation, in ascending order."""
    if count >= len(samples):
        return torch.arange(len(samples), device=samples.offsets.device)
    chosen = rng.generator(seed, rng.Purpose.EVALUATION).choice(len(samples), count, replace=False)
    chosen.sort()
    return torch.from_numpy(chosen).to(samples.offsets.device)


def _scores(task: Task, model: Values, samples: Samples, index: Tensor) -> tuple[float, Any, Tensor]:
    """Mean loss, and all outputs and labels, brought to where float64 is to be had."""
    total, outputs, labels = 0.0, [], []
    with torch.no_grad(), evaluating(task.module):
        for part in index.split(task.eval_batch):
            features, label = samples.batch(part)
            out = task.forward(model, features)
            total += float(task.loss(out, label).cpu().double().sum())
            outputs.append(trees.each(Tensor.cpu, out))
            labels.append(label.cpu())
    return total / len(index), trees.joined(outputs), torch.cat(labels)
