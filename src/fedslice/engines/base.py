"""The loop of local training, the only one: engines differ in how they run a forward pass."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fedslice.local.sgd import SGD, Forward
from fedslice.slice import Values
from fedslice.task import Task
from fedslice.work import Work


class Trained(NamedTuple):
    """The end of local training: values on the layout, and each client's mean loss over its steps."""

    end: Values
    losses: Tensor


class Engine(Protocol):
    """Trains a chunk of clients."""

    label: ClassVar[str]

    def train(self, task: Task, local: SGD, work: Work) -> Trained:
        """Run every client's local steps."""
        ...


def descend(forward: Forward, task: Task, local: SGD, work: Work) -> Trained:
    """x ← x − γ·∇F(x; ξ) for every step (S0, algorithm 1, lines 15-17), for all clients of ``work`` at once.

    Clients are independent, so the gradient of the summed losses is every client's own gradient. A client whose steps
    are used up stands still.
    """
    rate = local.rate(work.round)
    names, now = list(work.start), list(work.start.values())
    active = work.real.any(2)
    uneven = not bool(active.all())
    history: list[Tensor] = []
    for s, batch in enumerate(work.steps()):
        now = [value.detach().requires_grad_() for value in now]
        parameters = dict(zip(names, now, strict=True))
        losses = local.objective(forward, task.loss, parameters, batch.features, batch.label, batch.share)
        gradient = torch.autograd.grad(losses, now, torch.ones_like(losses), allow_unused=True, materialize_grads=True)
        history.append(losses.detach())
        with torch.no_grad():
            direction = local.direction(dict(zip(names, gradient, strict=True)), parameters, work.start, work.aside)
            if s and not uneven:  # in place: from the second step on the values are nobody else's
                for name, value in parameters.items():
                    value.add_(direction[name], alpha=-rate)
                continue
            after = [value.add(direction[name], alpha=-rate) for name, value in parameters.items()]
            if uneven:
                after = [
                    torch.where(active[:, s].view(-1, *[1] * (new.dim() - 1)), new, old)
                    for new, old in zip(after, now, strict=True)
                ]
            now = after
    end = {name: value.detach() for name, value in zip(names, now, strict=True)}
    return Trained(end, (torch.stack(history, 1) * active).sum(1) / active.sum(1))
