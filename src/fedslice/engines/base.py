"""The loop of local training, the only one: engines differ in how they run a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fedslice.local.head import deep, head
from fedslice.local.sgd import SGD
from fedslice.slice import Values
from fedslice.task import Task, evaluating
from fedslice.work import Work

Pass = Callable[[Values, dict[str, Tensor]], Any]  # parameters and features to one tensor or several


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


class Network:
    """A task's network for a chunk of clients; ``lift`` is the engine's way from one client's pass to the chunk's."""

    def __init__(self, task: Task, lift: Callable[[Pass], Pass]):
        self._task = task
        self._lift = lift
        self._plain = lift(task.forward)

    def __call__(self, parameters: Values, features: dict[str, Tensor]) -> Tensor:
        """Outputs."""
        out: Tensor = self._plain(parameters, features)
        return out

    def deep(self, parameters: Values, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs, and what entered the last Linear layer on the way to them."""
        out: tuple[Tensor, Tensor] = self._deep(parameters, features)
        return out

    @cached_property
    def _deep(self) -> Pass:
        return self._lift(partial(deep, self._task, head(self._task).name))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """No gradient, no dropout."""
        with torch.no_grad(), evaluating(self._task.module):
            yield


def descend(lift: Callable[[Pass], Pass], task: Task, local: SGD, work: Work) -> Trained:
    """x ← x − γ·∇F(x; ξ) for every step (S0, algorithm 1, lines 15-17), for all clients of ``work`` at once.

    Clients are independent, so the gradient of the summed losses is every client's own gradient. A client whose steps
    are used up stands still.
    """
    forward, rate = Network(task, lift), local.rate(work.round)
    names, now = list(work.start), list(work.start.values())
    active = work.real.any(2)
    uneven = not bool(active.all())
    history: list[Tensor] = []
    for s, batch in enumerate(work.steps()):
        now = [value.detach().requires_grad_() for value in now]
        parameters = dict(zip(names, now, strict=True))
        losses = local.objective(forward, task.loss, parameters, batch, work, s)
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
