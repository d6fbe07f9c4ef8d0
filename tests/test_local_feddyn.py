"""FedDyn and FedDC as published, by hand and in a plain loop over clients with dense memories (T72)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedslice.codecs import StreamingSubspace
from fedslice.combine import HeatCorrected, Mean
from fedslice.core.slice import Values
from fedslice.core.update import RowDelta
from fedslice.data.federation import Federation
from fedslice.local import FedDyn, Local, Scaffold, Term
from fedslice.recipe import Recipe
from fedslice.select import Everyone, Uniform
from fedslice.server.drift import Drift
from fedslice.slices import FeatureRows
from fedslice.task import Task
from fedslice.training.experiment import Experiment
from toys import assert_close, chosen, double, index_set, memory_of, recommender, run, squared, state_of, training

X, Y = (1.0, 2.0, 0.5), (3.0, -1.0, 2.0)  # client k's one sample: F_k(θ) = (θ·x − y)²
ALPHA, RATE = 0.5, 0.1


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


class Line(nn.Module):
    """One parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.slope.weight, 0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.slope(x).squeeze(-1)


def line() -> Task:
    features = {"x": np.array(X)[:, None]}
    data = Federation.from_arrays(client=np.arange(3), features=features, label=np.array(Y), test=0.0)
    return Task(data, Line(), squared)


def gradient(k: int, theta: float) -> float:
    return 2 * X[k] * (theta * X[k] - Y[k])


def recipe(local: Local, **parts: Any) -> Recipe:
    given: dict[str, Any] = {"combine": Mean(weights="uniform"), "server": Drift(), "select": Everyone()}
    return Recipe(local=local, **(given | parts))


def memory(done: Experiment, kind: str, client: int) -> Values:
    """What a client remembers, as a whole model."""
    out, who = {}, torch.tensor([client])
    place = memory_of(done, "scaffold" if kind == "variate" else "feddyn")
    for name, shape in done.task.shapes.items():
        rows, dense = place.get_rows(f"{kind}/{name}", who), place.get(f"{kind}/{name}", who)
        out[name] = torch.zeros(shape)
        if rows is not None:
            out[name].index_add_(0, rows[0].ids[0], rows[1][0])
        elif dense is not None and bool(dense[1][0]):
            out[name] = dense[0][0]
    return out


def mean_drift(done: Experiment) -> Values:
    """The clients' mean drift, as the server has it."""
    averages = done.server.states["server"].averages
    return {name.removeprefix("drift."): value for name, value in averages.items()}


@pytest.mark.parametrize("cohort", [2, 3])
def test_feddyn_by_hand(cohort: int) -> None:
    """h_k ← h_k − α(θ_k − w), h ← h − (α/N)·Σ(θ_k − w), w = mean θ_k − h/α, on one parameter with one exact step."""
    method = recipe(
        training(FedDyn, alpha=ALPHA, lr=RATE, iterations=1, batch_size=None), select=Uniform(cohort=cohort)
    )
    w, h, own = 0.25, 0.0, [0.0] * 3
    for t in range(4):
        invited = chosen(method, t, 3).clients.tolist()
        ends = {k: w - RATE * (gradient(k, w) - own[k]) for k in invited}
        for k, end in ends.items():
            own[k] -= ALPHA * (end - w)
        h -= ALPHA / 3 * sum(end - w for end in ends.values())
        w = sum(ends.values()) / cohort - h / ALPHA
    done = run(line(), method, rounds=4)
    assert float(done.model["slope.weight"]) == pytest.approx(w, rel=1e-12)
    assert -ALPHA * float(mean_drift(done)["slope.weight"]) == pytest.approx(h, rel=1e-12)
    for k in range(3):
        assert -ALPHA * float(memory(done, "drift", k)["slope.weight"]) == pytest.approx(own[k], rel=1e-12)


@pytest.mark.parametrize("terms", [(FedDyn,), (FedDyn, Scaffold)], ids=["feddyn", "feddc"])
def test_where_it_rests_every_client_knows_its_gradient(terms: tuple[type[Term], ...]) -> None:
    """T72: w* minimises ΣF_k, though clients take many steps of their own; FedDyn's h_k = ∇F_k(w*), so Σ h_k = 0."""
    local = training(*terms, alpha=2, lr=0.1, iterations=8, batch_size=None)
    done = run(line(), recipe(local), rounds=50, eval_every=50)
    best = sum(x * y for x, y in zip(X, Y, strict=True)) / sum(x * x for x in X)
    assert float(done.model["slope.weight"]) == pytest.approx(best, abs=1e-9)
    drifts = [float(memory(done, "drift", k)["slope.weight"]) for k in range(3)]
    assert sum(drifts) == pytest.approx(0, abs=1e-9)
    if terms == (FedDyn,):
        assert [-2 * d for d in drifts] == pytest.approx([gradient(k, best) for k in range(3)], abs=1e-8)


def test_feddc_by_hand() -> None:
    """Two rounds of two steps, on one parameter with drift h_k and memories g_k, g."""
    w, g, drift, own = 0.25, 0.0, [0.0] * 3, [0.0] * 3
    for _ in range(2):
        ends, change = [], 0.0
        for k in range(3):
            theta = w
            for _ in range(2):
                theta -= RATE * (gradient(k, theta) + ALPHA * (theta - (w - drift[k])) + g - own[k])
            ends.append(theta)
            plus = own[k] - g - (theta - w) / (RATE * 2)
            change += (plus - own[k]) / 3
            drift[k] += theta - w
            own[k] = plus
        g += change
        w = sum(ends) / 3 + sum(drift) / 3
    done = run(
        line(), recipe(training(FedDyn, Scaffold, alpha=ALPHA, lr=RATE, iterations=2, batch_size=None)), rounds=2
    )
    assert float(done.model["slope.weight"]) == pytest.approx(w, rel=1e-12)
    state = state_of(done, "scaffold")
    assert float(state.sum["slope.weight"]) / state.weight == pytest.approx(g, rel=1e-12)
    for k in range(3):
        assert float(memory(done, "drift", k)["slope.weight"]) == pytest.approx(drift[k], rel=1e-12)
        assert float(memory(done, "variate", k)["slope.weight"]) == pytest.approx(own[k], rel=1e-12)


def published(task: Task, recipe: Recipe, rounds: int) -> tuple[Values, Values, list[Values]]:
    """Both methods, one client after the other, with whole models as memories: w, and all drifts."""
    local, samples, clients = recipe.local, task.federation.train, len(task.federation)
    alpha = local.settings()["feddyn"]["alpha"]
    model = task.initial(0)
    mean, g = ({n: torch.zeros_like(v) for n, v in model.items()} for _ in range(2))
    drift, own = ([{n: torch.zeros_like(v) for n, v in model.items()} for _ in range(clients)] for _ in range(2))
    masks = [held(task, recipe, client) for client in range(clients)]
    factor = {n: torch.ones_like(v) for n, v in model.items()}
    if isinstance(recipe.combine, HeatCorrected):
        factor = {n: clients / sum(m[n] for m in masks).clamp(min=1) for n in model}  # type: ignore[union-attr]
    for t in range(rounds):
        cohort = chosen(recipe, t, clients).clients.tolist()
        step, change = ({n: torch.zeros_like(v) for n, v in model.items()} for _ in range(2))
        for client in cohort:
            mine, x, who = masks[client], {n: v.clone() for n, v in model.items()}, torch.tensor([client])
            batches = local.sampler.batches(t, who, torch.zeros(1), samples.sizes[who], 1, 0)
            steps = 0
            for index, real in zip(batches.index[0], batches.real[0], strict=True):
                if not bool(real.any()):
                    continue
                steps += 1
                features, label = samples.batch(index[real] + samples.offsets[client])
                now = {n: v.clone().requires_grad_() for n, v in x.items()}
                loss = task.loss(task.forward(now, features), label).mean()
                for n, value in now.items():
                    pulled = value - (model[n] - drift[client][n])
                    loss = loss + alpha / 2 * (mine[n] * pulled**2).sum()
                    if len(local.terms) == 2:
                        loss = loss + (mine[n] * value * (g[n] - own[client][n])).sum()
                slopes = torch.autograd.grad(loss, list(now.values()))
                x = {n: v - local.optimizer.lr * slope for (n, v), slope in zip(x.items(), slopes, strict=True)}
            for n in model:
                moved = x[n] - model[n]
                plus = mine[n] * (own[client][n] - g[n] - moved / (local.optimizer.lr * steps))
                change[n] += (plus - own[client][n]) / clients
                own[client][n] = plus
                drift[client][n] += moved
                step[n] += factor[n] * moved / len(cohort)
        for n in model:
            g[n] += change[n]
            mean[n] += step[n] * len(cohort) / clients
            model[n] = model[n] + step[n] + mean[n]
    return model, mean, drift


def held(task: Task, recipe: Recipe, client: int) -> Values:
    """Which coordinates a client holds: ones and zeros over the whole model."""
    masks = {name: torch.ones(shape) for name, shape in task.shapes.items()}
    if isinstance(recipe.slices, FeatureRows):
        for table in task.tables:
            masks[table].zero_()
            masks[table][sorted(index_set(task, table, client))] = 1
    return masks


VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "rows": {"slices": FeatureRows()},
    "heat": {"slices": FeatureRows(), "combine": HeatCorrected(weights="uniform")},
}


@pytest.mark.parametrize("terms", [(FedDyn,), (FedDyn, Scaffold)], ids=["feddyn", "feddc"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tables_give_the_trajectory_of_whole_models(variant: str, terms: tuple[type[Term], ...]) -> None:
    """FedDyn trains the rows that batches named, now or before, and no others; nothing is lost by that."""
    local = training(*terms, alpha=0.7, lr=0.05, batch_size=4, epochs=1)
    task, method = recommender(), recipe(local, select=Uniform(cohort=4), **VARIANTS[variant])
    model, mean, drift = published(task, method, 4)
    done = run(task, method, rounds=4, chunk=3)
    assert_close(done.model, model, rtol=1e-9, atol=1e-11)
    assert_close(mean_drift(done), mean, rtol=1e-9, atol=1e-11)
    for client in range(len(task.federation)):
        assert_close(memory(done, "drift", client), drift[client], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("terms", [(FedDyn,), (FedDyn, Scaffold)], ids=["feddyn", "feddc"])
def test_the_servers_drift_is_the_mean_of_the_clients(terms: tuple[type[Term], ...]) -> None:
    """N·h = Σ h_k in every round, whoever takes part."""
    task = recommender()
    done = run(task, recipe(training(*terms, lr=0.05, iterations=2), select=Uniform(cohort=2)), rounds=5)
    clients = len(task.federation)
    for name in task.shapes:
        total = sum((memory(done, "drift", client)[name] for client in range(clients)), torch.zeros(()))
        torch.testing.assert_close(total, clients * mean_drift(done)[name], rtol=1e-10, atol=1e-12)


def test_feddyn_remembers_the_rows_that_batches_named_and_no_more() -> None:
    task, method = recommender(), recipe(training(FedDyn, iterations=1, batch_size=1, lr=0.05))
    done, samples = run(task, method, rounds=2), task.federation.train
    for client in range(len(task.federation)):
        who, expected = torch.tensor([client]), {0}
        for t in range(2):
            index = method.local.sampler.batches(t, who, torch.zeros(1), samples.sizes[who], 1, 0).index[0, 0]
            features, _ = samples.batch(index + samples.offsets[client])
            expected |= {*features["item"].flatten().tolist(), *features["history"].flatten().tolist()}
        rows = memory_of(done).get_rows("drift/item.weight", who)
        assert rows is not None
        assert set(rows[0].ids[0].tolist()) == expected


def test_a_codec_that_needs_every_value_changes_nothing() -> None:
    """In its plain rounds the subspace's codec only makes clients train all they hold."""
    task, local = recommender(), training(FedDyn, lr=0.05, iterations=2)
    short = run(task, recipe(local, slices=FeatureRows()), rounds=3)
    full = run(task, recipe(local, slices=FeatureRows(), codec=StreamingSubspace(warmup=3)), rounds=3)
    assert_close(short.model, full.model, rtol=1e-10, atol=1e-12)


@given(st.lists(st.tuples(st.floats(-4, 4), st.sampled_from([0.25, 0.5, 1.0])), min_size=1, max_size=8))
@settings(max_examples=30)
def test_the_server_stands_at_the_mean_and_the_drift(rounds: list[tuple[float, float]]) -> None:
    """w = mean θ − h/α with h = −α·Σ share·Δ, for any updates and shares."""
    server, model, h, alpha = Drift(), {"w": torch.zeros(1)}, 0.0, 0.3
    state = server.server_state(None)  # type: ignore[arg-type]
    w = 0.0
    for update, share in rounds:
        h -= alpha * share * update
        w = (w + update) - h / alpha
        change = server.step(state, model, {"w": RowDelta(None, torch.tensor([update]))}, share)
        assert float(model["w"]) == pytest.approx(w, abs=1e-9)
        assert change["w"].rows is None
