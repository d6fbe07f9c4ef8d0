"""Server optimizers: closed forms, and what they become at the edges of their settings (T73)."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedslice.core.slice import Values
from fedslice.core.update import RowDelta, Step
from fedslice.recipes import RECIPES
from fedslice.server import Averaging, ScaffoldApprox, ServerAdagrad, ServerAdam, ServerMomentum, ServerSGD, ServerYogi
from fedslice.training.experiment import Experiment
from toys import assert_close, double, numbers_like, recommender, run

SHAPES = {"table": (6, 2), "dense": (3,)}
RUN: Any = None  # optimizers do not look at the run
KINDS: list[type[Averaging]] = [ServerMomentum, ServerAdagrad, ServerAdam, ServerYogi, ScaffoldApprox]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


def steps(count: int, seed: int = 0) -> list[tuple[Step, Values]]:
    """Updates on a few rows of a table, and the same on all of it, with zeros."""
    out = []
    for t in range(count):
        full = {n: v / 10 for n, v in numbers_like(SHAPES, seed + t).items()}
        rows = torch.tensor([[0, 2], [1, 2, 5], [3]][t % 3])
        step: Step = {"table": RowDelta(rows, full["table"][rows]), "dense": RowDelta(None, full["dense"])}
        full["table"][[r for r in range(6) if r not in rows.tolist()]] = 0
        out.append((step, full))
    return out


def walk(server: Averaging | ServerSGD, share: float = 0.25, count: int = 7) -> Values:
    model, state = {n: torch.zeros(s) for n, s in SHAPES.items()}, server.server_state(RUN)
    for step, _ in steps(count):
        before = {n: v.clone() for n, v in model.items()}
        change = server.step(state, model, step, share)
        for name, delta in change.items():
            spread = delta.dense(torch.Size(SHAPES[name]))
            torch.testing.assert_close(before[name] + spread, model[name])
    return model


def test_momentum_is_a_geometric_sum() -> None:
    model = walk(ServerMomentum(server_lr=0.5, momentum=0.8))
    expected = {n: torch.zeros(s) for n, s in SHAPES.items()}
    for t in range(7):
        for s in range(t + 1):
            for name in SHAPES:
                expected[name] += 0.5 * 0.8 ** (t - s) * steps(7)[s][1][name]
    assert_close(model, expected)


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_scaffold_approx_is_equation_47(share: float) -> None:
    """Δ = (1 − a)·Δ + a·Δ_round with a = K/N, from the first round's own."""
    model = walk(ScaffoldApprox(), share)
    expected = {n: torch.zeros(s) for n, s in SHAPES.items()}
    running: Values = {}
    for t, (_, full) in enumerate(steps(7)):
        for name in SHAPES:
            running[name] = full[name] if t == 0 else (1 - share) * running[name] + share * full[name]
            expected[name] += running[name]
    assert_close(model, expected)
    if share == 1.0:
        assert_close(model, walk(ServerSGD()))


@pytest.mark.parametrize("kind", [ServerAdam, ServerYogi, ServerAdagrad])
def test_adaptive_servers_by_hand(kind: type[ServerAdam | ServerAdagrad]) -> None:
    """Coordinate by coordinate with Python's own floats (Reddi et al., algorithm 2)."""
    rate, beta1, beta2, tau = 0.3, 0.7, 0.9, 0.05
    server = kind(server_lr=rate, beta1=beta1, tau=tau, **({"beta2": beta2} if kind is not ServerAdagrad else {}))
    model = walk(server)
    for name, shape in SHAPES.items():
        for place in range(torch.Size(shape).numel()):
            x, m, v = 0.0, 0.0, tau**2
            for _, full in steps(7):
                d = float(full[name].flatten()[place])
                m = beta1 * m + (1 - beta1) * d
                if kind is ServerAdagrad:
                    v += d * d
                elif kind is ServerAdam:
                    v = beta2 * v + (1 - beta2) * d * d
                else:
                    v -= (1 - beta2) * d * d * ((v > d * d) - (v < d * d))
                x += rate * m / (v**0.5 + tau)
            assert float(model[name].flatten()[place]) == pytest.approx(x, rel=1e-12, abs=1e-14)


@given(st.floats(0.1, 2.0))
def test_without_averages_and_with_a_large_tau_adam_is_fedavg(rate: float) -> None:
    """T73: β1 = β2 = 0 and τ → ∞ with η = τ·rate gives X += rate·Δ."""
    tau = 1e6
    server = ServerAdam(server_lr=rate * tau, beta1=0, beta2=0, tau=tau)
    assert_close(walk(server), walk(ServerSGD(server_lr=rate)), rtol=1e-4, atol=1e-5)


def test_without_averages_and_with_a_small_tau_adam_is_the_sign() -> None:
    """β = 0, τ → 0: every coordinate moves by η."""
    model = {n: torch.zeros(s) for n, s in SHAPES.items()}
    (step, full), *_ = steps(1)
    server = ServerAdam(server_lr=0.5, beta1=0, beta2=0, tau=1e-9)
    server.step(server.server_state(RUN), model, step, 1.0)
    assert_close(model, {n: 0.5 * v.sign() for n, v in full.items()}, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_nobody_ever_sent_stay_and_an_empty_round_moves_nothing(kind: type[Averaging]) -> None:
    server = kind()
    state = server.server_state(RUN)
    model = {n: torch.full(s, 0.7) for n, s in SHAPES.items()}
    for step, _ in steps(4):
        server.step(state, model, step, 0.5)
    assert bool((model["table"][4] == 0.7).all()), "row 4 is in no step"
    before = {n: v.clone() for n, v in model.items()}
    assert server.step(state, model, {}, 0.5) == {}
    assert_close(model, before, rtol=0, atol=0)


RECIPES_OF: dict[str, dict[str, Any]] = {
    "fedavgm": {},
    "fedadam": {},
    "fedyogi": {"slices": "feature-rows", "combine": "heat"},
    "fedadagrad": {"slices": "feature-rows"},
    "scaffold-approx": {"slices": "feature-rows", "combine": "heat"},
}


@pytest.mark.parametrize("name", RECIPES_OF)
def test_a_servers_memory_survives_a_restart(name: str) -> None:
    task = recommender()
    recipe = RECIPES[name].with_options({"cohort": 4, "iterations": 2, "lr": 0.05} | RECIPES_OF[name])
    whole, first = run(task, recipe, rounds=6), run(task, recipe, rounds=3)
    second = Experiment(task, recipe, rounds=6)
    second.load_state_dict(*first.state_dict())
    second.run()
    assert_close(second.model, whole.model, rtol=0, atol=0)


def test_heat_corrects_what_adam_is_given() -> None:
    """One exact step of everyone: the server sees X − γ·D·∇f − X, whatever it does with it."""
    task = recommender()
    exact = {"select": "everyone", "iterations": 1, "batch_size": None, "lr": 0.1, "weights": "uniform"}
    plain = run(task, RECIPES["fedsubavg"].with_options(exact))
    tau, start = 1e5, task.initial(0)
    options = exact | {"slices": "feature-rows", "combine": "heat"}
    adam = {"server_lr": tau, "beta1": 0, "beta2": 0, "tau": tau}
    corrected = run(task, RECIPES["fedadam"].with_options(options | adam))
    for name in start:
        moved = plain.model[name] - start[name]
        torch.testing.assert_close(corrected.model[name] - start[name], moved, rtol=1e-3, atol=1e-6)
