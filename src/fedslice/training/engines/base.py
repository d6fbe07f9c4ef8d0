"""The loop of local training, the only one: engines differ in how they run a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fedslice.core.errors import UserError
from fedslice.core.slice import Values
from fedslice.local.sgd import SGD
from fedslice.network.head import deep, head
from fedslice.task import Loss, Task, evaluating
from fedslice.training.work import Work

Pass = Callable[[Values, dict[str, Tensor]], Any]  # parameters and features to one tensor or several


class Trained(NamedTuple):
    """The end of local training: values on the layout, and each client's mean loss over its steps.

    Beside the model are the values that the local method trains besides (``SGD.beside``), under names of their own.
    ``squares`` is the mean squared loss of the samples that a client trained on, if the work asks for it.
    """

    end: Values
    losses: Tensor
    squares: Tensor | None = None


def joined_squares(done: Sequence[Trained]) -> Tensor | None:
    """The mean squared losses of all clients of these parts, if the work asks for them."""
    squares = [each.squares for each in done if each.squares is not None]
    return torch.cat(squares) if squares else None


class Engine(Protocol):
    """Trains a chunk of clients."""

    label: ClassVar[str]

    def train(self, task: Task, local: SGD, work: Work) -> Trained:
        """Run every client's local steps."""
        ...


class _Noted:
    """The task's loss, with the losses of the samples that it was first asked for: the step's own batch."""

    def __init__(self, loss: Loss):
        self._loss = loss
        self.first: Tensor | None = None

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        each = self._loss(output, label)
        if self.first is None:
            self.first = each.detach()
        return each

    def squared(self, real: Tensor) -> Tensor:
        """The sum over each client's samples [clients], of which those are ``real`` [clients, batch]."""
        assert self.first is not None, "a local method trains on its batch"
        return self.first.view(real.shape).square().masked_fill(~real, 0).sum(1)


class Network:
    """A task's network for a chunk of clients; ``lift`` is the engine's way from one client's pass to the chunk's."""

    def __init__(self, task: Task, lift: Callable[[Pass], Pass]):
        self._task = task
        self._lift = lift
        self._plain = lift(task.forward)
        self._seen: dict[tuple[str, ...], Pass] = {}

    def __call__(self, parameters: Values, features: dict[str, Tensor]) -> Tensor:
        """Outputs."""
        out: Tensor = self._plain(parameters, features)
        return out

    def deep(self, parameters: Values, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the outputs, and the input of the last Linear layer."""
        out: tuple[Tensor, Tensor] = self._deep(parameters, features)
        return out

    @cached_property
    def _deep(self) -> Pass:
        return self._lift(partial(deep, self._task, head(self._task).name))

    def seen(
        self, names: tuple[str, ...], parameters: Values, features: dict[str, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the outputs, and those of the named submodules."""
        if names not in self._seen:
            self._seen[names] = self._lift(partial(_watched, self._task, names))
        output, *inner = self._seen[names](parameters, features)
        return output, tuple(inner)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """No gradient, no dropout."""
        with torch.no_grad(), evaluating(self._task.module):
            yield


def descend(lift: Callable[[Pass], Pass], task: Task, local: SGD, work: Work) -> Trained:
    """x ← x − γ·∇F(x; ξ) for every step (FedSubAvg, algorithm 1, lines 15-17), for all clients of ``work`` at once.

    Clients are independent, so the gradient of the summed losses is every client's own gradient. A client whose steps
    are used up stands still, and so does what the local method holds still; where it does for every client, no
    gradient is taken. Momentum begins anew in every round.
    """
    forward, rate = Network(task, lift), local.rate(work.round)
    now = work.start | local.beside(work)
    active = work.real.any(2)
    uneven = not bool(active.all())
    own: set[str] = set()  # whose values are nobody else's, and may be changed in place
    velocity: Values = {}
    history: list[Tensor] = []
    squares: list[Tensor] = []
    for s, batch in enumerate(work.steps()):
        still = {name: flags for name, flags in local.still(work, s).items() if bool(flags.any())}
        fixed = {name for name, flags in still.items() if bool(flags.all())}
        now = {name: value.detach().requires_grad_(name not in fixed) for name, value in now.items()}
        names = [name for name in now if name not in fixed]
        moving = [now[name] for name in names]
        loss = _Noted(task.loss) if work.squares else task.loss
        losses = local.objective(forward, loss, now, batch, work, s)
        if isinstance(loss, _Noted):
            squares.append(loss.squared(work.real[:, s]))
        gradient = _gradient(losses, moving)
        history.append(losses.detach())
        idle = ~active[:, s] if uneven else None
        with torch.no_grad():
            moved = {n: _held(g, still.get(n)) for n, g in zip(names, gradient, strict=True)}
            direction = local.direction(moved, now, work)
            for name in names:
                step = direction[name]
                if name in velocity:  # which is its own, and may be changed in place; a gradient may be another's too
                    step = torch.add(step, velocity[name], alpha=local.momentum, out=velocity[name])
                step = _held(_held(step, still.get(name)), idle)
                if local.momentum:
                    velocity[name] = step if name in velocity else step.clone()
                if name in own:
                    now[name].add_(step, alpha=-rate)
                else:
                    now[name] = now[name].add(step, alpha=-rate)
                    own.add(name)
    end = {name: value.detach() for name, value in now.items()}
    mean = (torch.stack(history, 1) * active).sum(1) / active.sum(1)
    return Trained(end, mean, torch.stack(squares, 1).sum(1) / work.real.sum((1, 2)) if squares else None)


def _gradient(losses: Tensor, moving: list[Tensor]) -> tuple[Tensor, ...]:
    """Each client's own gradient by its own values; a local method may hold everything still."""
    if not moving:
        return ()
    return torch.autograd.grad(losses, moving, torch.ones_like(losses), allow_unused=True, materialize_grads=True)


def _held(step: Tensor, still: Tensor | None) -> Tensor:
    """A step, or a gradient, with zeros for clients that stand still."""
    return step if still is None else step.masked_fill(still.view(-1, *[1] * (step.dim() - 1)), 0)


def _watched(task: Task, names: tuple[str, ...], parameters: Values, features: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Return one client's output for a batch, and the outputs of the named submodules."""
    found: dict[str, Tensor] = {}

    def note(name: str, _: nn.Module, __: Any, output: Tensor) -> None:
        found[name] = output

    handles = [task.module.get_submodule(name).register_forward_hook(partial(note, name)) for name in names]
    try:
        output = task.forward(parameters, features)
    finally:
        for handle in handles:
            handle.remove()
    for name in names:
        if not isinstance(found.get(name), Tensor):
            raise UserError(
                f"{type(task.module).__name__} shows no output of its submodule {name!r}, which must be called in "
                "forward and give one tensor."
            )
    return output, *(found[name] for name in names)
