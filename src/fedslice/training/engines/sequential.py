"""The sequential engine: one client at a time, with plain PyTorch."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedslice.core import trees
from fedslice.core.slice import Values
from fedslice.local.base import Local
from fedslice.task import Task
from fedslice.training.engines.base import Forward, Trained, train_chunk
from fedslice.training.engines.workers import Workers
from fedslice.training.work import Work


class Sequential:
    """Faster where one client's batch fills the machine (large convolutions), and for models vmap cannot carry.

    Nothing is padded: each client trains a network of its own width, for as many steps as it has.
    """

    label: ClassVar[str] = "sequential"

    def __init__(self, workers: Workers | None = None):
        self._workers = workers or Workers()

    def train(self, task: Task, local: Local, work: Work) -> Trained:
        """Each client in turn; with several workers, as many clients at once."""
        clients = [_alone(work, c) for c in range(len(work.clients))]
        done = self._workers.train(lambda own, part: train_chunk(_lift, own, local, part), task, clients)
        end = {name: _joined([each.end[name] for each in done]) for name in done[0].end}
        return Trained.joined(done, end)


def _lift(function: Forward) -> Forward:
    """For a chunk of one, whose axis is squeezed out: the way back then costs nothing, where an index takes a copy."""

    def forward(parameters: Values, features: dict[str, Tensor]) -> Any:
        one = {name: value.squeeze(0) for name, value in parameters.items()}
        out = function(one, {name: value.squeeze(0) for name, value in features.items()})
        return trees.each(lambda part: part[None], out)

    return forward


def _alone(work: Work, client: int) -> Work:
    """One client's work, its values and its steps without padding."""
    part = work.part(slice(client, client + 1))
    part = part.first(int(part.real.any(2).sum()))
    own = {name: (slice(None), *work.layout.own(name, client)) for name in work.start}
    return replace(
        part,
        start={name: value[own[name]] for name, value in part.start.items()},
        terms={label: {name: value[own[name]] for name, value in mine.items()} for label, mine in part.terms.items()},
    )


def _joined(values: list[Tensor]) -> Tensor:
    """One chunk again; who has fewer values than others is filled up."""
    if all(value.shape == values[0].shape for value in values):
        return torch.cat(values)
    sizes = [max(extents) for extents in zip(*(value.shape[1:] for value in values), strict=True)]
    out = values[0].new_zeros(len(values), *sizes)
    for place, value in zip(out, values, strict=True):
        place[tuple(slice(size) for size in value.shape[1:])] = value[0]
    return out
