"""The pieces of local training: optimizers are torch's, schedules have closed forms, terms are added up."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedslice.codecs import StreamingSubspace
from fedslice.combine import HeatCorrected
from fedslice.core.errors import UserError
from fedslice.core.slice import Values
from fedslice.local import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Cosine,
    Exponential,
    FedDyn,
    InverseTime,
    Local,
    Optimizer,
    Projected,
    Prox,
    Sampler,
    Scaffold,
    Schedule,
    Step,
    Term,
)
from fedslice.local.optimizers import Moments
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES, get
from fedslice.select import Uniform
from fedslice.slices import FeatureRows
from fedslice.training.row_plan import RowPlan
from fedslice.training.work import Work
from toys import assert_close, classifier, double, mlp, pair, recommender, run, training

SMALL: dict[str, Any] = {"iterations": 4, "batch_size": 4, "lr": 0.05}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


# --- optimizers ---------------------------------------------------------------------------------------------------

RATE = st.floats(1e-4, 1.0)
BETA = st.floats(0, 0.999)
DECAY = st.sampled_from([0.0, 0.01, 0.3])
KINDS: dict[type[Optimizer], Any] = {
    SGD: st.builds(SGD, lr=RATE, momentum=BETA, weight_decay=DECAY),
    Adam: st.builds(Adam, lr=RATE, beta1=BETA, beta2=BETA, eps=st.floats(1e-8, 1e-2), weight_decay=DECAY),
    AdamW: st.builds(AdamW, lr=RATE, beta1=BETA, beta2=BETA, eps=st.floats(1e-8, 1e-2), weight_decay=DECAY),
    Adagrad: st.builds(Adagrad, lr=RATE, eps=st.floats(1e-10, 1e-2), weight_decay=DECAY),
}


def torchs(own: Optimizer, parameter: Tensor) -> torch.optim.Optimizer:
    """The same optimizer of PyTorch; biases do not decay."""
    given: dict[str, Any] = {"lr": own.lr, "weight_decay": own.weight_decay if parameter.dim() > 1 else 0.0}
    if isinstance(own, SGD):
        return torch.optim.SGD([parameter], momentum=own.momentum, **given)
    if isinstance(own, Adagrad):
        return torch.optim.Adagrad([parameter], eps=own.eps, **given)
    assert isinstance(own, Adam)
    kind = torch.optim.AdamW if isinstance(own, AdamW) else torch.optim.Adam
    return kind([parameter], betas=(own.beta1, own.beta2), eps=own.eps, **given)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_steps_are_those_of_torch_client_by_client(kind: type[Optimizer], data: st.DataObject) -> None:
    """Each client against a parameter of its own, also where some of them rest in some steps."""
    own = data.draw(KINDS[kind])
    clients, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    shape = data.draw(st.sampled_from([(), (3,), (2, 3), (2, 1, 2)]))
    resting = data.draw(st.lists(st.lists(st.booleans(), min_size=clients, max_size=clients), min_size=6, max_size=6))
    chance = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    value = torch.randn(clients, *shape, generator=chance)
    theirs = [value[c].clone().requires_grad_() for c in range(clients)]
    optimizers = [torchs(own, parameter) for parameter in theirs]
    moments = Moments()
    for s in range(steps):
        gradient = torch.randn(clients, *shape, generator=chance)
        rest = torch.tensor(resting[s])
        decayed = own.decayed({"x": gradient}, {"x": value})["x"]
        value = value - own.lr * own.step(decayed, value, moments, rest if bool(rest.any()) else None)
        for c, (parameter, optimizer) in enumerate(zip(theirs, optimizers, strict=True)):
            if not rest[c]:
                parameter.grad = gradient[c].clone()
                optimizer.step()
    torch.testing.assert_close(value, torch.stack([p.detach() for p in theirs]), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_value_without_a_gradient_stays_exactly_as_the_capability_says(
    kind: type[Optimizer], data: st.DataObject
) -> None:
    """A row whose gradient is zero in all steps: it stays to the bit if, and only if, weights do not decay."""
    own, chance = data.draw(KINDS[kind]), torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    first = torch.randn(2, 4, 3, generator=chance) + 5
    value, moments = first, Moments()
    for _ in range(5):
        gradient = torch.randn(2, 4, 3, generator=chance)
        gradient[:, 2] = 0
        decayed = own.decayed({"x": gradient}, {"x": value})["x"]
        value = value - own.lr * own.step(decayed, value, moments)
    assert torch.equal(value[:, 2], first[:, 2]) == ("follows-gradient" in own.provides) == (not own.weight_decay)
    assert not torch.equal(value[:, 1], first[:, 1])


class Everything(Term):
    """Nothing, but it does not say so: all rows are trained."""

    label = "everything"


@pytest.mark.parametrize("slices", [{}, {"slices": FeatureRows(), "combine": HeatCorrected()}], ids=["whole", "rows"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
def test_rows_of_batches_are_enough_to_the_bit(kind: type[Optimizer], slices: dict[str, Any]) -> None:
    """T09 for every optimizer: a row that a batch names once has moments from then on, and no other ever has."""
    task, own = recommender(), kind(lr=0.05, weight_decay=0.0)
    few, all_rows = (
        Recipe(select=Uniform(cohort=4), local=Local(terms, own, sampler=Sampler(iterations=5, batch_size=1)), **slices)
        for terms in ((), (Everything(),))
    )
    assert RowPlan.of(few).active
    assert not RowPlan.of(all_rows).active
    one, other = (run(task, method, rounds=3) for method in (few, all_rows))
    assert_close(one.model, other.model, rtol=0, atol=0)
    decaying = Recipe(local=Local(optimizer=kind(weight_decay=0.1)))
    assert not RowPlan.of(decaying).active


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adagrad"])
@pytest.mark.parametrize(
    "name", ["fedavg", "fedprox", "feddyn", "moon", "fedrep", "ditto", "apfl", "fedsubavg", "fdrl"]
)
def test_any_method_whose_theory_allows_it_trains_by_any_optimizer(name: str, optimizer: str) -> None:
    task = pair() if name == "fdrl" else mlp() if name == "moon" else recommender()
    method = get(name, optimizer=optimizer, lr=0.01, cohort=3, iterations=3)
    assert method.local.optimizer.label == optimizer
    one, other = (run(task, method, rounds=2, engine=engine, chunk=2) for engine in ("vectorized", "sequential"))
    assert_close(one.model, other.model, rtol=1e-8, atol=1e-10)
    assert all(bool(value.isfinite().all()) for value in one.model.values())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"recipe": "scaffold", "optimizer": "adam"}, "local=scaffold takes a client's update for the sum"),
        ({"recipe": "feddc", "optimizer": "adagrad"}, "local=scaffold takes a client's update for the sum"),
        ({"recipe": "flss", "local": "projected", "optimizer": "adamw"}, "local=projected takes a client's update"),
        ({"recipe": "fedavg", "optimizer": "sdg"}, "unknown local.optimizer part 'sdg'; did you mean 'sgd'"),
        ({"recipe": "fedavg", "beta1": 0.5}, "unknown setting 'beta1'"),
        ({"recipe": "fedavg", "optimizer": "adam", "momentum": 0.5}, "unknown setting 'momentum'"),
        ({"recipe": "fedavg", "local": "prox+proxy"}, "unknown local part 'proxy'; did you mean 'prox'"),
        ({"recipe": "fedavg", "local": "prox+prox"}, "'prox' 2 times"),
        ({"recipe": "fedavg", "accumulate": 0}, "local=plain: accumulate=0"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        get(**{"name": options.pop("recipe")} | options)


def test_an_optimizer_that_is_named_begins_with_its_own_learning_rate() -> None:
    assert get("fedavg", lr=0.7, optimizer="adam").local.optimizer == Adam(lr=0.7)
    assert get("fedavg", lr=0.7).with_options({"optimizer": "adam"}).local.optimizer == Adam()
    assert get("fedavg", lr=0.7).with_options({"optimizer": "sgd", "momentum": 0.5}).local.optimizer == SGD(0.7, 0, 0.5)


# --- schedules ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(1, 9), st.floats(0, 100), st.floats(0.5, 1.5))
def test_schedules_are_their_closed_forms(t: int, steps: int, gamma: float, decay: float) -> None:
    number = torch.tensor([steps])
    s = np.arange(steps)
    forms: dict[Schedule, Any] = {
        Exponential(decay): np.full(steps, decay**t),
        InverseTime(gamma): (gamma + 1) / (gamma + t * steps + s + 1),
        Cosine(over=20, floor=0.1): np.full(steps, 0.1 + 0.9 * (1 + math.cos(math.pi * min(t / 20, 1))) / 2),
    }
    for schedule, expected in forms.items():
        np.testing.assert_allclose(schedule.factors(t, number)[0], expected, rtol=1e-12)
    assert Exponential().factors(t, number).eq(1).all()
    assert float(InverseTime(gamma).factors(0, number)[0, 0]) == pytest.approx(1)
    torch.testing.assert_close(Cosine().factors(t, number, 40), Cosine(over=40).factors(t, number))


def test_a_cosine_needs_a_length() -> None:
    with pytest.raises(UserError, match="give it as over=100"):
        Cosine().factors(0, torch.tensor([1]))


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_each_step_has_its_own_size(engine: str) -> None:
    """Clients with unequal numbers of steps, on a loss whose gradient is one: they end at minus the sum of rates."""

    class Slope(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level = torch.nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.level.expand(len(x), 3)

    task = classifier(Slope())
    object.__setattr__(task, "loss", lambda output, label: output.sum(-1) + 0 * label)
    local = Local((), SGD(0.3), InverseTime(2.0), Sampler(epochs=1, batch_size=2))
    done = run(task, Recipe(select=Uniform(cohort=1), local=local), rounds=1, engine=engine)
    client = int(done.recipe.select.choose(done.server.states["select"], 0).clients[0])
    steps = -(-int(task.federation.train.sizes[client]) // 2)
    expected = -sum(0.3 * 3 / (2 + k) for k in range(1, steps + 1))
    torch.testing.assert_close(done.model["level"], torch.full((3,), expected) + task.initial(0)["level"])


# --- batches in parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3, 99])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "fdrl", "moon", "fedntd", "fedgen", "ditto", "oort"])
def test_a_batch_in_parts_is_the_batch(name: str, parts: int) -> None:
    """Gradients of parts add up to that of the whole, whatever terms add, for full and for filled-up batches."""
    task = pair() if name == "fdrl" else mlp()
    options: dict[str, Any] = {"epochs": 1, "batch_size": 5, "lr": 0.1, "clip": 0.3}
    options |= {"server_steps": 1, "width": 4, "generated": 4} if name == "fedgen" else {}
    options |= {} if name == "oort" else {"cohort": 4}
    one, other = (run(task, get(name, accumulate=count, **options), rounds=2) for count in (1, parts))
    assert_close(other.model, one.model, rtol=1e-9, atol=1e-12)
    assert one.model.keys() == other.model.keys()


def test_parts_of_a_batch_are_run_one_after_the_other() -> None:
    seen: list[int] = []
    task = mlp()
    handle = next(iter(task.module.children())).register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    run(
        task,
        Recipe(select=Uniform(cohort=1), local=training(accumulate=3, batch_size=8, iterations=1)),
        engine="sequential",
    )
    handle.remove()
    assert {2, 3} <= set(seen)
    assert 8 not in seen[-3:]


# --- terms --------------------------------------------------------------------------------------------------------


class Shrink(Term):
    """Adds ν·‖x‖²/2 of all parameters, as a penalty or as its gradient."""

    label = "shrink"

    nu: float = 0.5
    by_hand: bool = False

    def penalty(self, step: Step, work: Work) -> Tensor | None:
        if self.by_hand:
            return None
        return self.nu / 2 * sum(value.flatten(1).square().sum(1) for value in step.parameters.values())  # type: ignore[return-value]

    def gradient(self, gradient: Values, parameters: Values, work: Work) -> Values:
        return {n: g + self.nu * parameters[n] for n, g in gradient.items()} if self.by_hand else gradient


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_a_loss_and_its_gradient_are_one_term(engine: str) -> None:
    task = mlp()
    ends = [
        run(task, Recipe(select=Uniform(cohort=3), local=training(Shrink(by_hand=by_hand), **SMALL)), 2, engine=engine)
        for by_hand in (False, True)
    ]
    assert_close(ends[0].model, ends[1].model, rtol=1e-10, atol=1e-13)


def test_terms_add_up_in_any_order() -> None:
    task = recommender()
    for terms in ((Shrink(), Prox(mu=0.3)), (Prox(mu=0.2), Scaffold())):
        one, other = (
            run(task, Recipe(select=Uniform(cohort=3), local=training(*order, **SMALL)), rounds=3)
            for order in (terms, terms[::-1])
        )
        assert_close(one.model, other.model, rtol=1e-10, atol=1e-12)


def test_rows_drift_alike_only_under_one_term_and_plain_steps() -> None:
    assert "uniform-drift" in Local(Scaffold()).provides
    for local in (Local([Scaffold(), Prox()]), Local([FedDyn(), Scaffold()]), training(Scaffold, momentum=0.5)):
        assert not {"uniform-drift", "follows-gradient"} & local.provides
    assert "follows-gradient" in Local([FedDyn(), Prox()]).provides


def test_what_a_term_does_not_say_it_does_not_have() -> None:
    class Child(Prox):
        label = "child"

    assert "follows-gradient" in Prox().provides
    assert "follows-gradient" not in Child().provides


def test_a_term_s_memory_and_constants_are_its_own() -> None:
    class Noting(Term):
        label = "noting"
        seen: ClassVar[set[str]] = set()

        def update_memory(self, work: Work, end: Values) -> None:
            self.seen.add(work.memory.place)
            assert not work.constants

    run(mlp(), Recipe(select=Uniform(cohort=2), local=training(Scaffold, Noting, iterations=1)))
    assert Noting.seen == {"local.noting"}


def test_a_local_method_by_name_is_the_one_that_is_written_out() -> None:
    assert get("fedavg", local="prox", mu=0.2).local == Local(Prox(mu=0.2))
    assert get("fedprox", local="plain").local == Local()
    assert get("fedprox", mu=0.3).with_options({"local": "prox+scaffold"}).local == Local([Prox(mu=0.3), Scaffold()])
    assert RECIPES["feddc"].local.label == "feddyn+scaffold"
    assert Local().label == Local.label == "plain"
    with pytest.raises(UserError, match="expected a Local; write for example local=Local"):
        Recipe(local=Prox())  # type: ignore[arg-type]


def test_a_projected_step_stays_in_the_span_with_momentum() -> None:
    method = Recipe(
        select=Uniform(cohort=3),
        local=training(Projected, momentum=0.5, iterations=3),
        codec=StreamingSubspace(rank=3, warmup=1, every=3),
    )
    assert all(bool(v.isfinite().all()) for v in run(mlp(), method, rounds=4).model.values())
