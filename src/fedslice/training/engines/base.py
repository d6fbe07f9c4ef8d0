"""The loop of local training, the only one: engines differ in how they run a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fedslice.core.entries import per_client
from fedslice.core.errors import UserError
from fedslice.core.slice import Values
from fedslice.local.base import Local
from fedslice.local.optimizers import Moments
from fedslice.local.term import Pass, Step, Term, mean_over, sample_losses
from fedslice.network.head import head, with_head_inputs
from fedslice.task import Task, evaluating
from fedslice.training.work import Batch, Work

Forward = Callable[[Values, dict[str, Tensor]], Any]  # parameters and features to one tensor or several


class Trained(NamedTuple):
    """The end of local training: values on the layout, and each client's mean loss over its steps.

    Beside the model are the values that terms train (``Term.extra_parameters``), under names of their own.
    ``squares`` is the mean squared loss of the samples that a client trained on, if the work asks for it.
    ``statistics`` are the running statistics.
    """

    end: Values
    losses: Tensor
    squares: Tensor | None = None
    statistics: Values = {}  # noqa: RUF012

    def part(self, some: Tensor) -> Trained:
        """Return some of the clients, or all of them in another order."""
        squares = None if self.squares is None else self.squares[some]
        end, statistics = ({n: value[some] for n, value in own.items()} for own in (self.end, self.statistics))
        return Trained(end, self.losses[some], squares, statistics)

    @classmethod
    def joined(cls, done: Sequence[Trained], end: Values) -> Trained:
        """Return the clients of several parts as one chunk, given their values as one."""
        squares = [each.squares for each in done if each.squares is not None]
        statistics = {n: torch.cat([each.statistics[n] for each in done]) for n in done[0].statistics}
        losses = torch.cat([each.losses for each in done])
        return cls(end, losses, torch.cat(squares) if squares else None, statistics)


class Engine(Protocol):
    """Trains a chunk of clients."""

    label: ClassVar[str]

    def train(self, task: Task, local: Local, work: Work) -> Trained:
        """Run every client's local steps."""
        ...


class ChunkNetwork:
    """A task's network for a chunk of clients.

    Args:
        task: The task.
        lift: The engine's way from one client's pass to the chunk's.
        statistics: Running statistics [clients, ...]. A pass that is watched moves them on.
    """

    def __init__(self, task: Task, lift: Callable[[Forward], Forward], statistics: Values):
        self.statistics = statistics
        self._task = task
        self._lift = lift
        self._plain = self._lifted(task.forward)
        self._watching: dict[tuple[str | None, tuple[str, ...]], Forward] = {}

    def __call__(self, parameters: Values, features: dict[str, Tensor]) -> Any:
        """Return the outputs."""
        return self._plain(parameters, features)[0]

    def watch(
        self, parameters: Values, features: dict[str, Tensor], head_inputs: bool, activations: tuple[str, ...] = ()
    ) -> Pass:
        """Return the outputs, and what is seen on the way to them."""
        if not head_inputs and not activations:
            output, self.statistics = self._plain(parameters, features)
            return Pass(output, None, {})
        key = (head(self._task).name if head_inputs else None, activations)
        if key not in self._watching:
            self._watching[key] = self._lifted(partial(_watched, self._task, *key))
        (output, *inner), self.statistics = self._watching[key](parameters, features)
        return Pass(output, inner.pop() if head_inputs else None, dict(zip(activations, inner, strict=True)))

    def _lifted(self, function: Forward) -> Forward:
        """Return a function for the chunk that gives the statistics after the pass too, and leaves these alone."""
        if not self.statistics:
            plain = self._lift(function)
            return lambda parameters, features: (plain(parameters, features), {})
        names = list(self.statistics)

        def one(parameters: Values, features: dict[str, Tensor]) -> Any:
            after = {name: parameters[name].clone() for name in names}
            return function({**parameters, **after}, features), after

        passed = self._lift(one)
        return lambda parameters, features: passed({**parameters, **self.statistics}, features)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """No gradient, no dropout."""
        with torch.no_grad(), evaluating(self._task.module):
            yield


def train_chunk(lift: Callable[[Forward], Forward], task: Task, local: Local, work: Work) -> Trained:
    """Run all local steps of all clients of ``work`` at once (FedSubAvg, algorithm 1, lines 15-17).

    Clients are independent, so the gradient of the summed losses is every client's own gradient. A client whose steps
    are used up stands still, and so does what terms freeze; what is frozen for every client gets no gradient. The
    optimizer's moments begin at zero in every round.
    """
    network, terms, optimizer = ChunkNetwork(task, lift, work.statistics), local.bound(work), local.optimizer
    now = dict(work.start)
    for term, own in terms:
        now |= term.extra_parameters(own)
    extra = [name for name in now if name not in work.start]
    rates, active = _rates(work), work.active
    uneven = not bool(active.all())
    private: set[str] = set()  # whose values are nobody else's, and may be changed in place
    moments = {name: Moments() for name in now}
    losses: list[Tensor] = []
    squares: list[Tensor] = []
    for s, batch in enumerate(work.steps()):
        frozen = _frozen(terms, s)
        fixed = {name for name, flags in frozen.items() if bool(flags.all())}
        now = {name: value.detach().requires_grad_(name not in fixed) for name, value in now.items()}
        moving = [name for name in now if name not in fixed]
        before = network.statistics
        loss, gradient, squared = _gradient(network, task, local, terms, now, extra, moving, batch, s, work.squares)
        losses.append(loss)
        if squared is not None:
            real = work.real[:, s, : squared.shape[1]]
            squares.append(squared.masked_fill(~real, 0).sum(1))
        idle, rate = ~active[:, s] if uneven else None, rates[s]
        if idle is not None:
            network.statistics = {n: before[n].where(per_client(idle, v), v) for n, v in network.statistics.items()}
        with torch.no_grad():
            gradient = {name: _masked(g, frozen.get(name)) for name, g in gradient.items()}
            direction = local.direction(gradient, now, terms, extra)
            for name in moving:
                step = optimizer.step(direction[name], now[name], moments[name], frozen.get(name))
                step = _masked(step, idle)
                if isinstance(rate, Tensor):
                    step, alpha = step * per_client(rate.to(step), step), 1.0
                else:
                    alpha = rate
                if name in private:
                    now[name].add_(step, alpha=-alpha)
                else:
                    now[name] = now[name].add(step, alpha=-alpha)
                    private.add(name)
    end = {name: value.detach() for name, value in now.items()}
    mean = (torch.stack(losses, 1) * active).sum(1) / active.sum(1)
    mean_squares = torch.stack(squares, 1).sum(1) / work.real.sum((1, 2)) if squares else None
    return Trained(end, mean, mean_squares, network.statistics)


def _gradient(
    network: ChunkNetwork,
    task: Task,
    local: Local,
    terms: Sequence[tuple[Term, Work]],
    now: Values,
    extra: Collection[str],
    moving: list[str],
    batch: Batch,
    s: int,
    squares: bool,
) -> tuple[Tensor, Values, Tensor | None]:
    """Return each client's loss [clients], its gradient by what moves, and the squared losses of its samples.

    A batch in several parts is run one part after the other; the shares of samples are those of the whole batch.
    """
    model = {name: value for name, value in now.items() if name not in extra} if extra else now
    more = {name: now[name] for name in extra}
    head_inputs = any(term.head_inputs for term, _ in terms)
    activations = tuple(dict.fromkeys(name for term, _ in terms for name in term.activations))
    total: Tensor | None = None
    gradient: list[Tensor] = []
    squared: list[Tensor] = []
    for number, part in enumerate(batch.parts(local.accumulate)):
        try:
            seen = network.watch(model, part.features, head_inputs, activations)
        except ValueError as error:
            raise _told(error, task) from error
        each = sample_losses(task.loss, seen.output, part)
        loss = mean_over(each, part)
        step = Step(s, model, more, part, seen, network, task.loss)
        for term, work in terms:
            for added in (term.penalty(step, work) if not number else None, term.loss(step, work)):
                loss = loss if added is None else loss + added
        own = _gradients(loss, [now[name] for name in moving])
        gradient = [a + b for a, b in zip(gradient, own, strict=True)] if number else list(own)
        total = loss.detach() if total is None else total + loss.detach()
        if squares:
            squared.append(each.detach().square())
    assert total is not None
    return total, dict(zip(moving, gradient, strict=True)), torch.cat(squared, 1) if squares else None


def _told(error: ValueError, task: Task) -> Exception:
    """Return what to say of an error in a forward pass: batch normalisation cannot do with one sample."""
    if not task.mixes_samples or "more than 1 value per channel" not in str(error):
        return error
    return UserError(
        f"{type(task.module).__name__} normalises over the samples of a batch, and a client has a batch of one; give "
        "another batch_size (none takes all samples of a client at once), leave clients with one sample out, or use "
        "GroupNorm."
    )


def _gradients(losses: Tensor, moving: list[Tensor]) -> tuple[Tensor, ...]:
    """Return each client's own gradient by its own values; everything may be frozen."""
    if not moving:
        return ()
    return torch.autograd.grad(losses, moving, torch.ones_like(losses), allow_unused=True, materialize_grads=True)


def _frozen(terms: Sequence[tuple[Term, Work]], s: int) -> dict[str, Tensor]:
    """Return which clients must not move a parameter in step ``s``, where there are any."""
    out: dict[str, Tensor] = {}
    for term, work in terms:
        for name, flags in term.frozen(work, s).items():
            if bool(flags.any()):
                out[name] = out[name] | flags if name in out else flags
    return out


def _rates(work: Work) -> list[float] | Sequence[Tensor]:
    """Return the step size of every step: a number where it is the same for all clients, else [clients]."""
    rates = work.rates.numpy()
    return rates[0].tolist() if bool((rates == rates[:1]).all()) else work.rates.unbind(1)


def _masked(step: Tensor, still: Tensor | None) -> Tensor:
    """Return a step, or a gradient, with zeros for clients that stand still."""
    return step if still is None else step.masked_fill(per_client(still, step), 0)


def _watched(
    task: Task, layer: str | None, names: tuple[str, ...], parameters: Values, features: dict[str, Tensor]
) -> tuple[Any, ...]:
    """Return one client's output for a batch, those of the named submodules, and what enters the last Linear layer."""
    found: dict[str, Tensor] = {}

    def note(name: str, _: nn.Module, __: Any, output: Tensor) -> None:
        found[name] = output

    handles = [task.module.get_submodule(name).register_forward_hook(partial(note, name)) for name in names]
    last: list[Tensor] = []
    try:
        if layer is None:
            output = task.forward(parameters, features)
        else:
            output, *last = with_head_inputs(task, layer, parameters, features)
    finally:
        for handle in handles:
            handle.remove()
    for name in names:
        if not isinstance(found.get(name), Tensor):
            raise UserError(
                f"{type(task.module).__name__} shows no output of its submodule {name!r}, which must be called in "
                "forward and give one tensor."
            )
    return output, *(found[name] for name in names), *last
