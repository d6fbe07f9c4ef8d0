"""Momentum and weight decay: the steps of ``torch.optim.SGD``, client by client."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedslice.combine import HeatCorrected, Mean
from fedslice.core.slice import Values
from fedslice.local import FedDyn, Local, Moon, Prox, Scaffold
from fedslice.recipe import Recipe
from fedslice.select import Uniform
from fedslice.slices import FeatureRows
from fedslice.task import Task
from fedslice.training.row_plan import RowPlan
from toys import SIZES, assert_close, chosen, classifier, double, mlp, recommender, run, training

CLIENTS = len(SIZES)
SMALL: dict[str, Any] = {"iterations": 4, "batch_size": 4, "lr": 0.05}
HEAVY: dict[str, Any] = {"momentum": 0.6, "weight_decay": 0.03}
FEW = Uniform(cohort=4)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


Moves = Callable[[int, int], list[str]]  # from a step and the number of steps to the parameters that move
Term = Callable[[dict[str, nn.Parameter]], Tensor]


def plain(
    task: Task, local: Local, start: Values, t: int, client: int, moves: Moves | None = None, term: Term | None = None
) -> Values:
    """One client's round with a module of its own and ``torch.optim.SGD``; a parameter that rests has no gradient."""
    samples, module = task.federation.train, copy.deepcopy(task.module)
    named = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in start.items():
            named[name].copy_(value)
    weights, biases = ([p for p in named.values() if (p.dim() > 1) == weight] for weight in (True, False))
    groups = [{"params": weights, "weight_decay": local.optimizer.weight_decay}, {"params": biases}]
    optimizer = torch.optim.SGD(
        groups, lr=float(local.rates(t, torch.tensor([1]))[0, 0]), momentum=local.optimizer.momentum
    )
    who = torch.tensor([client])
    batches = local.sampler.batches(t, who, torch.zeros(1), samples.sizes[who], 1, 0)
    real = [(i[r], s) for s, (i, r) in enumerate(zip(batches.index[0], batches.real[0], strict=True)) if bool(r.any())]
    for index, s in real:
        features, label = samples.batch(index + samples.offsets[client])
        loss = task.loss(module(**features), label).mean()
        if term is not None:
            loss = loss + term(named)
        optimizer.zero_grad()
        loss.backward()
        moving = named if moves is None else moves(s, len(real))
        for name, parameter in named.items():
            if name not in moving:
                parameter.grad = None
            elif parameter.grad is None:  # the optimizer would pass over it, and its weights would not decay
                parameter.grad = torch.zeros_like(parameter)
        if local.clip is not None:
            norm = torch.sqrt(sum((p.grad**2).sum() for p in named.values() if p.grad is not None))
            for p in named.values():
                if p.grad is not None and norm > local.clip:
                    p.grad *= local.clip / norm
        optimizer.step()
    return {name: p.detach().clone() for name, p in named.items()}


def mean(ends: list[Values]) -> Values:
    return {name: torch.stack([end[name] for end in ends]).mean(0) for name in ends[0]}


def recipe(local: Local, **parts: Any) -> Recipe:
    return Recipe(local=local, **{"select": FEW, "combine": Mean(weights="uniform")} | parts)


def cohort(method: Recipe, t: int) -> list[int]:
    invited: list[int] = chosen(method, t, CLIENTS).clients.tolist()
    return invited


@pytest.mark.parametrize(
    "options",
    [{"momentum": 0.9}, {"weight_decay": 0.2}, HEAVY, HEAVY | {"iterations": None, "epochs": 2}, HEAVY | {"clip": 0.1}],
    ids=["momentum", "decay", "both", "passes", "clipped"],
)
@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_steps_are_those_of_torch(options: dict[str, Any], engine: str) -> None:
    """Two rounds: a velocity that lived on would show in the second."""
    task, method = mlp(), recipe(training(**SMALL | options))
    done = run(task, method, rounds=2, engine=engine, chunk=3)
    model = task.initial(0)
    for t in range(2):
        model = mean([plain(task, method.local, model, t, c) for c in cohort(method, t)])
    assert_close(done.model, model, rtol=1e-10, atol=1e-13)


class Doubled(nn.Module):
    """Weights that are used as a sum alone have one gradient, which may be one tensor for both."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.randn(4, 3)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.one + self.other)


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_one_gradient_of_two_weights_is_counted_once(engine: str) -> None:
    torch.manual_seed(0)
    task, method = classifier(Doubled()), recipe(training(**SMALL, momentum=0.9))
    done = run(task, method, engine=engine)
    expected = mean([plain(task, method.local, task.initial(0), 0, c) for c in cohort(method, 0)])
    assert_close(done.model, expected, rtol=1e-10, atol=1e-13)


def test_biases_do_not_decay() -> None:
    """Without a gradient a weight shrinks by 1 − γ·λ in every step, and a bias stays."""

    class Deaf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * 0

    task = classifier(Deaf())
    done = run(task, recipe(training(lr=0.5, iterations=3, weight_decay=0.2)))
    start = task.initial(0)
    torch.testing.assert_close(done.model["layer.weight"], start["layer.weight"] * 0.9**3, rtol=1e-12, atol=1e-14)
    assert torch.equal(done.model["layer.bias"], start["layer.bias"])


@pytest.mark.parametrize("parts", [{}, {"slices": FeatureRows(), "combine": HeatCorrected()}], ids=["whole", "rows"])
def test_rows_that_no_batch_names_decay_too(parts: dict[str, Any]) -> None:
    """On a table: the same steps for all rows that a client holds, in both engines."""
    task, method = recommender(), recipe(training(**SMALL | HEAVY), **parts)
    assert not RowPlan.of(method).active
    one = run(task, method, rounds=2)
    if not parts:
        model = task.initial(0)
        for t in range(2):
            model = mean([plain(task, method.local, model, t, c) for c in cohort(method, t)])
        assert_close(one.model, model, rtol=1e-10, atol=1e-13)
    assert_close(run(task, method, rounds=2, engine="sequential", chunk=2).model, one.model, rtol=1e-10, atol=1e-13)


def test_rows_suffice_as_long_as_nothing_else_moves_them() -> None:
    for local, suffices in {
        (): (True, True, False),
        (Prox,): (True, True, False),
        (Scaffold,): (True, False, False),  # a drift that gains speed is not known beforehand
        (FedDyn,): (True, True, False),
        (FedDyn, Scaffold): (False, False, False),
        (Moon,): (False, False, False),
    }.items():
        found = tuple(
            "follows-gradient" in training(*local, **o).provides for o in ({}, {"momentum": 0.5}, {"weight_decay": 0.1})
        )
        assert found == suffices, local


def test_rows_of_batches_are_enough_for_momentum() -> None:
    """T09 with a velocity: training the rows that batches name is training the whole table."""
    task, method = recommender(), recipe(training(**SMALL, momentum=0.7))
    assert RowPlan.of(method).active
    model = task.initial(0)
    for t in range(2):
        model = mean([plain(task, method.local, model, t, c) for c in cohort(method, t)])
    assert_close(run(task, method, rounds=2).model, model, rtol=1e-10, atol=1e-13)
