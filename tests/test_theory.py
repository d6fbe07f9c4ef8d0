"""The papers' theory on federations small enough to check by hand or by plain linear algebra (T01, T04, T05, T06, T11).

T02 and T03 are in ``test_combine``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedslice.core.slice import Values
from fedslice.data.federation import Federation
from fedslice.measure.conditioning import conditioning
from fedslice.measure.gradients import full_gradient, gradient_norms
from fedslice.measure.heat import corrections
from fedslice.recipes import RECIPES
from fedslice.task import Task
from fedslice.tasks.example1 import ENTRY, example1
from fedslice.training.experiment import Experiment
from toys import assert_close, double, index_set, recommender, run, samples_of

EXACT = {"select": "everyone", "iterations": 1, "batch_size": None}
RHO1, RHO2 = 1.0, 3.0
Array = NDArray[np.float64]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with double():
        yield


# --- example 1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.01, 0.5, 0.9])
@pytest.mark.parametrize("clients", [2, 100])
def test_example_1_follows_its_closed_forms(clients: int, rate: float) -> None:
    """T01: FedAvg shrinks w1 by 1 − 2η/N and w2 by 1 − 2η, FedSubAvg both by 1 − 2γ."""
    task = example1(clients)
    assert task.index_sets[0].heat.tolist() == [1, clients]
    start = task.initial(0)["w"].flatten()
    slow, fast = 1 - 2 * rate / clients, 1 - 2 * rate
    for name, factors in {"fedavg": (slow, fast), "fedsubavg": (fast, fast)}.items():
        recipe = RECIPES[name].with_options({**ENTRY.settings, "lr": rate, "weights": "uniform"})
        experiment = Experiment(task, recipe, rounds=12, eval_every=1)
        for row in experiment.stream():
            expected = start * torch.tensor(factors) ** row["round"]
            torch.testing.assert_close(experiment.model["w"].flatten(), expected, rtol=1e-12, atol=1e-12)
            w1, w2 = expected.tolist()
            assert row["train_loss"] == pytest.approx(w1**2 / clients + w2**2, rel=1e-12, abs=1e-24)
        assert experiment.round == 12


def test_example_1_is_solved_by_fedsubavg_in_one_round() -> None:
    """T01 at γ = 1/2; FedAvg has moved w1 by a hundredth by then."""
    task = example1()
    for name, expected in {"fedsubavg": [0.0, 0.0], "fedavg": [0.99, 0.0]}.items():
        done = run(task, RECIPES[name].with_options(ENTRY.settings))
        assert done.model["w"].flatten().tolist() == pytest.approx(expected, abs=1e-15)


def test_the_condition_of_example_1_is_its_dispersion() -> None:
    """H = diag(2/N, 2) and Ĥ = 2·I."""
    found = conditioning(example1(100), example1(100).initial(0))
    assert found["hessian"]["kappa"] == pytest.approx(100)
    assert found["hessian"]["sigma_max"] == pytest.approx(2)
    assert found["preconditioned"]["kappa"] == pytest.approx(1)
    assert (found["heat_max"], found["heat_min"]) == (100, 1)


# --- clients with quadratic losses --------------------------------------------------------------------------------


class Forms(nn.Module):
    """½·xᵀAx + bᵀx of the weights x that a sample names; A and b come with the sample."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start)[:, None])

    def forward(self, ids: Tensor, form: Tensor, slope: Tensor) -> Tensor:
        x = functional.embedding(ids, self.w).squeeze(-1)
        return ((form @ x[..., None]).squeeze(-1) * x / 2 + slope * x).sum(-1)


@dataclass
class Quadratics:
    """Every client's index set, its form A_i and slope b_i on it, and a point X."""

    held: list[list[int]]
    forms: list[Array]
    slopes: list[Array]
    point: Array

    def task(self) -> Task:
        """One sample per client; a shorter index set is filled up with a member of its own and zeros."""
        clients, widest = len(self.held), max(map(len, self.held))
        ids = np.array([h + [h[0]] * (widest - len(h)) for h in self.held])
        form, slope = np.zeros((clients, widest, widest)), np.zeros((clients, widest))
        for c, h in enumerate(self.held):
            form[c, : len(h), : len(h)], slope[c, : len(h)] = self.forms[c], self.slopes[c]
        data = Federation.from_arrays(
            client=np.arange(clients),
            features={"ids": ids, "form": form, "slope": slope},
            label=np.zeros(clients),
            test=0.0,
        )
        return Task(data, Forms(self.point.tolist()), lambda out, label: out + 0 * label, tables={"w": "ids"})

    @property
    def heat(self) -> Array:
        return np.array([sum(m in h for h in self.held) for m in range(len(self.point))], dtype=float)

    def hessian(self) -> Array:
        """H on all coordinates, by placing every A_i."""
        out = np.zeros((len(self.point), len(self.point)))
        for h, form in zip(self.held, self.forms, strict=True):
            out[np.ix_(h, h)] += form / len(self.held)
        return out

    def slope(self) -> Array:
        out = np.zeros(len(self.point))
        for h, slope in zip(self.held, self.slopes, strict=True):
            out[h] += slope / len(self.held)
        return out

    def client_gradients(self) -> Array:
        """[N, M]: ∇f_i, zero outside the index set."""
        out = np.zeros((len(self.held), len(self.point)))
        for c, h in enumerate(self.held):
            out[c, h] = self.forms[c] @ self.point[h] + self.slopes[c]
        return out

    def excess(self) -> float:
        """f(X) − f(X*) over the coordinates that somebody holds."""
        alive = self.heat > 0
        h, b, x = self.hessian()[np.ix_(alive, alive)], self.slope()[alive], self.point[alive]
        apart = x - np.linalg.solve(h, -b)
        return float(apart @ h @ apart) / 2


def quadratics(held: Sequence[Sequence[int]], weights: int, seed: int) -> Quadratics:
    """Random forms with eigenvalues from ρ1 to ρ2; a client with two weights or more has both."""
    draw = np.random.default_rng(seed)
    forms = []
    for h in held:
        basis = np.linalg.qr(draw.normal(size=(len(h), len(h))))[0]
        values = draw.uniform(RHO1, RHO2, len(h))
        values[[0, -1]] = draw.permutation([RHO1, RHO2])
        forms.append(basis * values @ basis.T)
    slopes = [draw.normal(size=len(h)) for h in held]
    return Quadratics([list(h) for h in held], forms, slopes, draw.normal(size=weights))


@st.composite
def populations(draw: st.DrawFn) -> Quadratics:
    """Any index sets: overlapping or apart, and weights that nobody holds."""
    weights = draw(st.integers(1, 6))
    sets = st.sets(st.integers(0, weights - 1), min_size=1).map(sorted)
    held = draw(st.lists(sets, min_size=1, max_size=6))
    return quadratics(held, weights, draw(st.integers(0, 2**32 - 1)))


DISPERSED = quadratics([[0], *[[0, 1, 2]] * 3, *[[0, 3]] * 16, [0, 1, 2, 3, 4]], 6, 7)  # heat 21, 4, 4, 17, 1, 0


@settings(deadline=None, max_examples=25)
@given(populations(), st.integers(1, 3))
def test_the_element_wise_norm_is_its_definition(quadratic: Quadratics, batch: int) -> None:
    """T04 and the draft's definition 1, with the sandwich ‖∇f‖²·N/n_max ≤ EGN ≤ ‖∇f‖²·N/n_min."""
    with double():
        task = quadratic.task()
        object.__setattr__(task, "eval_batch", batch)
        found = gradient_norms(task, task.initial(0))
    clients, heat, alive = len(quadratic.held), quadratic.heat, quadratic.heat > 0
    g = quadratic.client_gradients().sum(0)
    plain, elementwise = (g**2).sum() / clients**2, (g[alive] ** 2 / heat[alive]).sum() / clients
    assert found["gradient_norm2"] == pytest.approx(plain, rel=1e-12)
    assert found["elementwise_gradient_norm2"] == pytest.approx(elementwise, rel=1e-12)
    hot, cold = (plain * clients / n for n in (heat[alive].max(), heat[alive].min()))
    assert hot * (1 - 1e-12) <= found["elementwise_gradient_norm2"] <= cold * (1 + 1e-12)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 99), st.booleans())
def test_the_element_wise_norm_is_that_of_the_scaled_coordinates(sizes: list[int], seed: int, ragged: bool) -> None:
    """T04: ‖∇f̂(X̂)‖² with f̂(X̂) = f(D^{1/2}·X̂), by automatic differentiation of one client at a time (section 4.2)."""
    with double():
        task = recommender(sizes, seed, ragged)
        start, train, clients = task.initial(0), task.federation.train, len(sizes)
        root, slack = {}, {}
        for name, value in start.items():
            heat = [clients] * len(value)
            if name in task.tables:
                heat = [sum(m in index_set(task, name, c) for c in range(clients)) for m in range(len(value))]
            root[name] = torch.tensor([(clients / n) ** 0.5 if n else 1.0 for n in heat])
            root[name] = root[name].view(-1, *[1] * (value.dim() - 1))
            slack[name] = (value / root[name]).detach().requires_grad_()
        model = {name: root[name] * value for name, value in slack.items()}
        total = torch.zeros(())
        for client in range(clients):
            features, label = train.batch(torch.tensor(samples_of(train, client)))
            total = total + task.loss(task.forward(model, features), label).mean() / clients
        gradients = torch.autograd.grad(total, list(slack.values()), allow_unused=True, materialize_grads=True)
        found = gradient_norms(task, start)
    expected = sum(float(g.square().sum()) for g in gradients)
    assert found["elementwise_gradient_norm2"] == pytest.approx(expected, rel=1e-10)


@settings(deadline=None, max_examples=25)
@given(populations())
def test_a_small_element_wise_norm_means_a_small_loss(quadratic: Quadratics) -> None:
    """FedSubAvg's draft, theorem 1: f(X) − f* ≤ EGN/(2μ); by ‖∇f‖² there is only the bound N/n_min times as large."""
    with double():
        task = quadratic.task()
        found = gradient_norms(task, task.initial(0))
    bound = found["elementwise_gradient_norm2"] / (2 * RHO1)
    assert quadratic.excess() <= bound * (1 + 1e-9)
    heat = quadratic.heat[quadratic.heat > 0]
    assert bound <= found["gradient_norm2"] * len(quadratic.held) / heat.min() / (2 * RHO1) * (1 + 1e-12)


def theorems(quadratic: Quadratics) -> tuple[float, float]:
    """Check theorems 1 and 2 on a federation, and the measurement against plain eigenvalues; κ(H) and κ(Ĥ)."""
    with double():
        task = quadratic.task()
        found = conditioning(task, task.initial(0))
    clients, alive = len(quadratic.held), quadratic.heat > 0
    heat = quadratic.heat[alive]
    h = quadratic.hessian()[np.ix_(alive, alive)]
    root = np.sqrt(clients / heat)
    for name, matrix in {"hessian": h, "preconditioned": root[:, None] * h * root}.items():
        values = np.linalg.eigvalsh(matrix)
        assert found[name]["sigma_max"] == pytest.approx(values[-1], rel=1e-9)
        assert found[name]["sigma_min"] == found[name]["eigenvalue_min"] == pytest.approx(values[0], rel=1e-9)
        assert found[name]["kappa"] == pytest.approx(values[-1] / values[0], rel=1e-9)
        assert (found[name]["below"], found[name]["kappa_is"]) == (0, "exact")
    assert found["coordinates"] == alive.sum()
    assert found["coordinates_left_out"] == (~alive).sum()
    assert (found["heat_max"], found["heat_min"]) == (heat.max(), heat.min())
    plain, scaled, slack = found["hessian"], found["preconditioned"], 1 + 1e-9
    assert plain["kappa"] * slack >= heat.max() * RHO1 / (heat.min() * RHO2), "theorem 1"
    assert scaled["kappa"] <= RHO2 / RHO1 * slack, "theorem 2"
    assert plain["sigma_min"] <= heat.max() / clients * scaled["sigma_min"] * slack
    upper, corrected = RHO2 * heat.max() / (clients * plain["sigma_min"]), RHO2 / scaled["sigma_min"]
    assert corrected <= upper * slack
    assert plain["kappa"] <= upper * slack
    assert scaled["kappa"] <= corrected * slack
    return plain["kappa"], scaled["kappa"]


@settings(deadline=None, max_examples=25)
@given(populations())
def test_theorems_1_and_2(quadratic: Quadratics) -> None:
    """T05 on random quadratics with ρ1 = 1 and ρ2 = 3."""
    theorems(quadratic)


def test_theorems_1_and_2_where_heat_is_dispersed() -> None:
    """T05 where theorem 1 says something: n_max/n_min = 21, and one weight that nobody holds."""
    plain, scaled = theorems(DISPERSED)
    assert plain >= 7
    assert scaled <= 3


# --- steps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [recommender, DISPERSED.task], ids=["recommender", "quadratics"])
def test_an_exact_step_of_everyone_follows_the_corrected_gradient(build: Callable[[], Task]) -> None:
    """T06: X − γ·D·∇f."""
    task = build()
    start = task.initial(0)
    gradient, factor = full_gradient(task, start), corrections(task)
    expected: Values = {}
    for name, value in start.items():
        scale = factor[name].view(-1, *[1] * (value.dim() - 1)) if name in factor else 1.0
        expected[name] = value - 0.2 * scale * gradient[name]
    done = run(task, RECIPES["fedsubavg"].with_options(EXACT | {"lr": 0.2, "weights": "uniform"}))
    assert_close(done.model, expected, rtol=1e-12, atol=1e-12)


# --- the toy of FedSubAvg's draft --------------------------------------------------------------------------------

MU = 0.7
TOY = Quadratics(  # client 1 holds x1 and x2, client 2 holds x2 and x3
    held=[[0, 1], [1, 2]],
    forms=[MU * np.eye(2), MU * np.eye(2)],
    slopes=[np.array([0.3, -1.1]), np.array([0.4, 2.0])],
    point=np.array([1.5, -0.5, 2.5]),
)


def partials(quadratic: Quadratics) -> tuple[float, float, float]:
    """∂f_1/∂x1, ∂(f_1 + f_2)/∂x2, ∂f_2/∂x3, by hand."""
    (a, b), (c, d) = quadratic.slopes
    x1, x2, x3 = quadratic.point
    return MU * x1 + a, (MU * x2 + b) + (MU * x2 + c), MU * x3 + d


def test_the_three_weights_of_s1() -> None:
    """T11: equations 7 to 9, with 1/n_2 where equation 7 prints 1/N. Equality, since the losses bend by exactly μ."""
    first, shared, last = partials(TOY)
    task = TOY.task()
    assert task.index_sets[0].heat.tolist() == [1, 2, 1]
    found = gradient_norms(task, task.initial(0))
    least = -(first**2 + shared**2 / 2 + last**2) / (2 * MU)
    assert -2 * TOY.excess() == pytest.approx(least, rel=1e-12), "equation 7"
    equation_8 = first**2 / 2 + shared**2 / 4 + last**2 / 2
    assert 2 * MU * TOY.excess() == pytest.approx(equation_8, rel=1e-12)
    assert found["elementwise_gradient_norm2"] == pytest.approx(equation_8, rel=1e-12)
    equation_9 = (first**2 + shared**2 + last**2) / 4
    assert found["gradient_norm2"] == pytest.approx(equation_9, rel=1e-12)
    assert 2 * MU * TOY.excess() > found["gradient_norm2"], "the squared norm does not bound the loss"


def test_the_squared_norm_of_s1_s_toy_is_off_by_the_number_of_clients() -> None:
    """T11: f − f* = N·‖∇f‖²/(2μ) is reached where only x1 is not at its optimum."""
    (a, b), (c, d) = TOY.slopes
    off = Quadratics(TOY.held, TOY.forms, TOY.slopes, np.array([-a / MU + 1.3, -(b + c) / (2 * MU), -d / MU]))
    task = off.task()
    found = gradient_norms(task, task.initial(0))
    assert off.excess() == pytest.approx(2 * found["gradient_norm2"] / (2 * MU), rel=1e-12)
    assert off.excess() == pytest.approx(found["elementwise_gradient_norm2"] / (2 * MU), rel=1e-12)


def test_one_corrected_step_solves_s1_s_toy() -> None:
    """T11: the minimiser x_m − Σ ∂f_i/∂x_m / (μ·n_m) of the draft's equation 18 is FedSubAvg's step at γ = 1/μ."""
    task = TOY.task()
    options: dict[str, Any] = EXACT | {"lr": 1 / MU, "weights": "uniform"}
    done = run(task, RECIPES["fedsubavg"].with_options(options))
    best = np.linalg.solve(TOY.hessian(), -TOY.slope())
    assert done.model["w"].flatten().tolist() == pytest.approx(best.tolist(), rel=1e-12)
    found = conditioning(task, task.initial(0))
    assert found["hessian"]["kappa"] == pytest.approx(2)
    assert found["hessian"]["sigma_max"] == pytest.approx(MU)
    assert found["preconditioned"]["kappa"] == pytest.approx(1)
