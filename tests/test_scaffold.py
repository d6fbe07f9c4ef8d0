"""SCAFFOLD against the published algorithm with dense control variates for every client (T70, T71)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedslice.codecs import Dense
from fedslice.core.errors import UserError
from fedslice.core.part import CHECKED
from fedslice.core.slice import Values
from fedslice.data.federation import Federation
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES, get
from fedslice.task import Task
from fedslice.training.experiment import Experiment
from toys import SIZES, assert_close, assert_same, chosen, double, index_set, pair, recommender, run, squared

SMALL = {"iterations": 3, "batch_size": 4, "lr": 0.05}
ROUNDS = 5


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


@dataclass(frozen=True, config=CHECKED)
class Filling(Dense):
    """A codec for which nothing of a slice may be left out of training."""

    @property
    def provides(self) -> frozenset[str]:
        return frozenset()


def common(done: Experiment) -> Values:
    """c, as the server has it."""
    state = done.server.states["local"]
    return {name: total / state.weight for name, total in state.sum.items()}


def held(task: Task, recipe: Recipe, client: int) -> dict[str, Tensor]:
    """Which coordinates a client holds, as masks over the whole model."""
    masks = {name: torch.ones(shape, dtype=torch.bool) for name, shape in task.shapes.items()}
    if recipe.slices.label == "feature-rows":
        for table in task.tables:
            masks[table] &= False
            masks[table][sorted(index_set(task, table, client))] = True
    return masks


def published(task: Task, recipe: Recipe, rounds: int) -> tuple[Values, Values, list[Values]]:
    """Option II, one client and one coordinate after the other's step: X, c, and every c_i as a whole model."""
    local, samples, clients = recipe.local, task.federation.train, len(task.federation)
    model = task.initial(0)
    c = {n: torch.zeros_like(v) for n, v in model.items()}
    own = [{n: torch.zeros_like(v) for n, v in model.items()} for _ in range(clients)]
    sizes = samples.sizes.double()
    for t in range(rounds):
        cohort = chosen(recipe, t, clients)
        rate, change = local.lr * local.decay**t, {n: torch.zeros_like(v) for n, v in model.items()}
        cover = {n: torch.zeros_like(v) for n, v in model.items()}
        weights = sizes if recipe.combine.weights == "samples" else torch.ones(clients)
        fresh = {n: v.clone() for n, v in c.items()}
        for client, draw in zip(cohort.clients.tolist(), cohort.draws.tolist(), strict=True):
            mine = held(task, recipe, client)
            x = {n: v.clone() for n, v in model.items()}
            who = torch.tensor([client])
            batches = local.batches(t, who, torch.tensor([draw]), samples.sizes[who], 1, 0)
            steps = 0
            for index, real in zip(batches.index[0], batches.real[0], strict=True):
                if not bool(real.any()):
                    continue
                steps += 1
                features, label = samples.batch(index[real] + samples.offsets[client])
                now = {n: v.clone().requires_grad_() for n, v in x.items()}
                loss = task.loss(task.forward(now, features), label).mean()
                gradient = dict(zip(now, torch.autograd.grad(loss, list(now.values())), strict=True))
                if local.clip is not None:
                    norm = torch.sqrt(sum(((g**2).sum() for g in gradient.values()), torch.zeros(())))
                    gradient = {n: g * min(1.0, local.clip / float(norm)) for n, g in gradient.items()}
                x = {n: v - mine[n] * rate * (gradient[n] - own[client][n] + c[n]) for n, v in x.items()}
            weight = float(weights[client])
            for n, v in x.items():
                plus = mine[n] * (own[client][n] - c[n] + (model[n] - v) / (steps * rate))
                fresh[n] += (plus - own[client][n]) * weight / float(weights.sum())
                own[client][n] = plus
                change[n] += weight * (v - model[n])
                cover[n] += weight * mine[n]
        total = float(weights[cohort.clients].sum())
        for n in model:
            if recipe.combine.label == "coverage":
                model[n] = model[n] + torch.where(cover[n] > 0, change[n] / cover[n].clamp(min=1e-9), 0)
                continue
            step = change[n] / total
            if recipe.combine.label == "heat":
                everyone = [held(task, recipe, i)[n] * float(weights[i]) for i in range(clients)]
                share = sum(everyone, torch.zeros(())) / float(weights.sum())
                step = torch.where(share > 0, step / share.clamp(min=1e-9), step)
            model[n] = model[n] + step
        c = fresh
    return model, c, own


VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "rows": {"slices": "feature-rows"},
    "heat": {"slices": "feature-rows", "combine": "heat"},
    "holders": {"slices": "feature-rows", "combine": "coverage"},
    "weighted": {"weights": "samples"},
    "clipped": {"clip": 0.5, "decay": 0.9},
    "epochs": {"iterations": None, "epochs": 2},
}


def recipe_of(variant: str, **options: Any) -> Recipe:
    given = SMALL | {"cohort": 4} | VARIANTS[variant] | options
    return get("scaffold").with_options(given)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_scaffold_is_the_published_algorithm(variant: str, engine: str) -> None:
    """Control variates on a few rows give the trajectory of dense ones, on every kind of slice and merge."""
    task, recipe = recommender(), recipe_of(variant)
    model, c, _ = published(task, recipe, ROUNDS)
    done = run(task, recipe, rounds=ROUNDS, engine=engine, chunk=3)
    assert_close(done.model, model, rtol=1e-9, atol=1e-11)
    assert_close(common(done), c, rtol=1e-9, atol=1e-11)
    assert any(bool(v.abs().max() > 1e-3) for v in c.values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_codec_that_needs_every_value_changes_nothing(variant: str) -> None:
    """The drift of rows outside the batches, in closed form, equals training them."""
    task, recipe = recommender(), recipe_of(variant)
    short = run(task, recipe, rounds=ROUNDS)
    parts = recipe.parts() | {"codec": Filling()}
    full = run(task, Recipe(**parts), rounds=ROUNDS)  # type: ignore[arg-type]
    assert_close(short.model, full.model, rtol=1e-9, atol=1e-11)
    assert_close(common(short), common(full), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("variant", ["whole", "rows", "epochs"])
def test_the_servers_variate_is_the_mean_of_the_clients(variant: str) -> None:
    """T71: Σ c_i = N·c under full participation; and c_i is the mean gradient of the client's last round."""
    task, recipe = recommender(), recipe_of(variant).with_options({"select": "everyone"})
    done = run(task, recipe, rounds=3)
    _, c, own = published(task, recipe, 3)
    for name, shape in task.shapes.items():
        total = torch.zeros(shape)
        for client in range(len(task.federation)):
            total += variate(done, name, client)
            torch.testing.assert_close(variate(done, name, client), own[client][name], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(total, len(task.federation) * common(done)[name], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(c[name], common(done)[name], rtol=1e-9, atol=1e-11)


class Line(nn.Module):
    """One parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.slope(x).squeeze(-1)


@pytest.mark.parametrize(("weights", "expected"), [("samples", 24 / 7), ("uniform", 8 / 5)])
def test_it_comes_to_the_minimum_of_the_loss_that_its_weights_say(weights: str, expected: float) -> None:
    """Six samples of (θ − 8)² and two of (2θ)²: 6·(θ − 8) + 2·4·θ = 0 with their numbers, (θ − 8) + 4·θ = 0 without.

    FedAvg's clients come to another point, as each takes five steps towards its own minimum.
    """
    numbers = [6, 2]
    features, label = {"x": np.repeat([1.0, 2.0], numbers)[:, None]}, np.repeat([8.0, 0.0], numbers)
    data = Federation.from_arrays(client=np.repeat([0, 1], numbers), features=features, label=label, test=0.0)
    task = Task(data, Line, squared)
    exact = {"select": "everyone", "weights": weights, "batch_size": None, "iterations": 5, "lr": 0.05}
    done = run(task, get("scaffold").with_options(exact), rounds=200)
    assert float(done.model["slope.weight"]) == pytest.approx(expected, rel=1e-9)
    assert float(common(done)["slope.weight"]) == pytest.approx(0, abs=1e-9), "c is the mean gradient"
    other = run(task, get("fedavg").with_options(exact), rounds=200)
    assert float(other.model["slope.weight"]) != pytest.approx(expected, rel=1e-2)


def variate(done: Experiment, name: str, client: int) -> Tensor:
    """c_i of a parameter, from the client's memory."""
    who, out = torch.tensor([client]), torch.zeros(done.task.shapes[name])
    rows = done.population.parts["local"].get_rows(f"variate/{name}", who)
    if rows is not None:
        return out.index_add_(0, rows[0].ids[0], rows[1][0])
    dense = done.population.parts["local"].get(f"variate/{name}", who)
    return out if dense is None or not bool(dense[1][0]) else dense[0][0]


def test_memory_holds_the_rows_of_the_last_batches_and_no_more() -> None:
    task, recipe = recommender(), recipe_of("whole", batch_size=1, iterations=1)
    done = run(task, recipe, rounds=12)
    samples = task.federation.train
    for client in range(len(task.federation)):
        who = torch.tensor([client])
        last = max(t for t in range(12) if client in chosen(recipe, t, len(task.federation)).clients)
        index = recipe.local.batches(last, who, torch.zeros(1), samples.sizes[who], 1, 0).index[0, 0]
        features, _ = samples.batch(index + samples.offsets[client])
        expected = {0, *features["item"].flatten().tolist(), *features["history"].flatten().tolist()}
        rows = done.population.parts["local"].get_rows("variate/item.weight", who)
        assert rows is not None
        named = rows[0].ids[0, : int(rows[0].counts[0])].tolist()
        assert named == sorted(set(named))
        assert set(named) - {0} == expected - {0}, "only the padding row may come on top"


def test_one_exact_step_is_fedavg_and_so_is_the_first_round() -> None:
    """T70: with c = c_i = 0 the first round is FedAvg's."""
    task = recommender()
    options = SMALL | {"cohort": 4, "weights": "uniform"}
    assert_close(
        run(task, RECIPES["scaffold"].with_options(options)).model,
        run(task, RECIPES["fedavg"].with_options(options)).model,
        rtol=1e-12,
        atol=1e-14,
    )


def test_with_equal_clients_the_variates_cancel() -> None:
    """If all clients have the same data and take exact steps, c_i = c, and SCAFFOLD is FedAvg for good."""
    task = recommender(sizes=(5,))
    exact = {"iterations": 2, "batch_size": None, "lr": 0.05, "select": "everyone"}
    one = run(task, RECIPES["scaffold"].with_options(exact), rounds=6)
    assert_close(one.model, run(task, RECIPES["fedavg"].with_options(exact), rounds=6).model, rtol=1e-9, atol=1e-12)


def test_bytes_double() -> None:
    """SPECS of the messages: as FedAvg's, and the control variate beside it, both ways; ids go once."""
    task = recommender()
    for slices in ("whole", "feature-rows"):
        options = SMALL | {"cohort": 4, "slices": slices}
        scaffold, plain = (run(task, RECIPES[n].with_options(options)) for n in ("scaffold", "fedavg"))
        assert scaffold.ledger.down_bytes == 2 * plain.ledger.down_bytes
        ids = plain.ledger.up_bytes - plain.ledger.down_bytes
        assert ids == 0 if slices == "whole" else ids > 0
        assert scaffold.ledger.up_bytes == 2 * plain.ledger.down_bytes + ids


def test_private_parameters_are_not_corrected() -> None:
    """With shared blocks the private rest has no common variate; its own would cancel its gradient."""
    task = pair()
    recipe = get("scaffold").with_options(SMALL | {"cohort": 4, "slices": "shared", "patterns": "shared.*"})
    done = run(task, recipe, rounds=3)
    assert all(bool((value == 0).all()) for name, value in common(done).items() if "shared" not in name)
    assert bool((common(done)["shared.weight"] != 0).any())
    assert done.population.parts["local"].get("variate/head.weight", torch.arange(2)) is None
    kept = done.population.parts["slices"].get("kept/head.weight", torch.arange(len(SIZES)))
    assert kept is not None
    assert bool((kept[0][kept[1]] != task.initial(0)["head.weight"]).any())


def test_resuming_restores_every_variate() -> None:
    task = recommender()
    recipe = recipe_of("rows")
    whole = run(task, recipe, rounds=6)
    first = run(task, recipe, rounds=3)
    second = Experiment(task, recipe, rounds=6)
    second.load_state_dict(*first.state_dict())
    second.run()
    assert_same(second.model, whole.model)
    assert_same(second.population.memories.state_dict(), whole.population.memories.state_dict())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"slices": "channel-dropout"}, "starts from parts that only the client knows"),
        ({"replacement": True}, "draw without replacement"),
    ],
)
def test_impossible_recipes_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        get("scaffold").with_options(options)


def test_a_broken_client_leaves_no_trace_in_the_variates() -> None:
    task = recommender()
    recipe = get("scaffold").with_options({"select": "everyone", "iterations": 2, "batch_size": None, "lr": 0.05})
    whole = Experiment(task, recipe, rounds=2)
    task.federation.train.label[-1] = 1e200  # the last client's loss overflows
    try:
        whole.run()
    finally:
        task.federation.train.label[-1] = 0.0
    assert whole.rejected == 2
    assert all(bool(torch.isfinite(v).all()) for v in [*whole.model.values(), *common(whole).values()])
    rows = whole.population.parts["local"].get_rows("variate/item.weight", torch.tensor([len(SIZES) - 1]))
    assert rows is not None
    assert int(rows[0].counts[0]) == 0
