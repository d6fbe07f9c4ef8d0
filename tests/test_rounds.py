"""Whole rounds: closed forms, plain loops, engines and chunks, resuming (T06, T09, T10)."""

import copy
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedslice.codecs import Dense
from fedslice.combine import HeatCorrected
from fedslice.combine.heat import Heat
from fedslice.core.encodings import Floats
from fedslice.core.errors import UserError
from fedslice.core.message import Field, Fields
from fedslice.core.part import Round, ServerRun
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES
from fedslice.select import Everyone
from fedslice.slices import Whole
from fedslice.task import Task
from fedslice.training.experiment import Experiment
from fedslice.training.ledger import Ledger
from fedslice.training.row_plan import RowPlan
from fedslice.training.schema import WELCOME
from toys import (
    SIZES,
    Plain,
    assert_close,
    assert_same,
    begun,
    chosen,
    double,
    fitting,
    index_set,
    pair,
    plain_training,
    recommender,
    run,
    samples_of,
    squared,
)

EXACT = {"select": "everyone", "iterations": 1, "batch_size": None}
TRAINED = ["fedavg", "fedprox", "fedsubavg", "submodelavg"]
LENGTHS: list[dict[str, Any]] = [{}, {"epochs": 2}, {"epochs": 1, "clip": 0.5, "decay": 0.5}, {"batch_size": None}]


@pytest.fixture
def float64() -> Iterator[None]:
    with double():
        yield


class Filling(Dense):
    """A codec that may turn a zero update into something else: nothing of a slice can be left out of training."""

    @property
    def provides(self) -> frozenset[str]:
        return super().provides - {"keeps-zeros", "exact"}


# --- closed forms -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_an_exact_step_of_everyone_is_preconditioned_descent(weights: str) -> None:
    """T06: X − γ·D·∇f with D = diag(W/W_m)."""
    task = recommender()
    sizes = list(SIZES) if weights == "samples" else [1] * len(SIZES)
    model = {n: v.requires_grad_() for n, v in task.initial(0).items()}
    objective = torch.zeros(())
    for client, weight in enumerate(sizes):
        features, label = task.federation.train.batch(torch.tensor(samples_of(task.federation.train, client)))
        objective = objective + weight / sum(sizes) * task.loss(task.forward(model, features), label).mean()
    objective.backward()
    expected = {}
    for name, value in model.items():
        scale = torch.ones(value.shape[0])
        for m in range(len(scale)) if name in task.tables else ():
            holders = [w for c, w in enumerate(sizes) if m in index_set(task, name, c)]
            scale[m] = sum(sizes) / sum(holders) if holders else 1.0
        expected[name] = (value - 0.2 * scale.view(-1, *[1] * (value.dim() - 1)) * value.grad).detach()
    done = run(task, RECIPES["fedsubavg"].with_options(EXACT | {"lr": 0.2, "weights": weights}))
    assert_close(done.model, expected, rtol=1e-12, atol=1e-12)


# --- against a plain loop -----------------------------------------------------------------------------------------


def sizes(ledger: Ledger) -> tuple[int, ...]:
    """Everything that is counted in bytes."""
    return ledger.up_bytes, ledger.down_bytes, ledger.enrol_bytes, ledger.framing


def plain_rounds(task: Task, recipe: Recipe, rounds: int, merge: str, mu: float = 0.0, scale: int = 1) -> Values:
    """One client at a time on its own copy of the whole model, merged by the papers' formulas."""
    model = task.initial(0)
    size = [float(n) for n in task.federation.train.sizes]
    for t in range(rounds):
        cohort = chosen(recipe, t, len(size))
        clients = cohort.clients.tolist()
        ends = [
            plain_training(task, recipe, model, t, c, d, mu, scale)
            for c, d in zip(clients, cohort.draws.tolist(), strict=True)
        ]
        after = {}
        for name, old in model.items():
            step = sum(size[c] * (end[name] - old) for c, end in zip(clients, ends, strict=True))
            step = step / sum(size[c] for c in clients)
            if name in task.tables and merge != "mean":
                holds = [index_set(task, name, c) for c in range(len(size))]
                population = range(len(size)) if merge == "heat" else clients
                everyone = sum(size[c] for c in population)
                held = [sum(size[c] for c in population if m in holds[c]) for m in range(len(old))]
                step = step * torch.tensor([everyone / h if h else 1.0 for h in held])[:, None]
            after[name] = old + step
        model = after
    return model


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize(
    ("name", "merge", "mu"),
    [("fedavg", "mean", 0.0), ("fedprox", "mean", 0.7), ("fedsubavg", "heat", 0.0), ("submodelavg", "coverage", 0.0)],
)
def test_rounds_are_what_a_plain_loop_computes(name: str, merge: str, mu: float, lengths: dict[str, Any]) -> None:
    task, recipe = fitting(name, **lengths | ({"mu": mu} if mu else {}))
    done = run(task, recipe, rounds=3, engine="vectorized", chunk=3)
    assert_close(done.model, plain_rounds(task, recipe, 3, merge, mu), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(done.model["item.weight"], task.initial(0)["item.weight"])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_a_client_drawn_twice_trains_twice(chunk: int | None) -> None:
    task, recipe = fitting("fedavg", cohort=9, replacement=True)
    draws = [chosen(recipe, t).draws for t in range(3)]
    assert all(bool(draw.any()) for draw in draws)
    done = run(task, recipe, rounds=3, chunk=chunk)
    assert_close(done.model, plain_rounds(task, recipe, 3, "mean"), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("lengths", [{}, {"epochs": 1}], ids=str)
def test_centralsgd_is_sgd_on_the_pooled_data(lengths: dict[str, Any]) -> None:
    task, recipe = fitting("centralsgd", **lengths)
    done = run(task, recipe, rounds=3)
    expected = plain_rounds(task.pooled(), recipe, 3, "mean", scale=2)  # a pooled batch stands for a cohort of two
    assert_close(done.model, expected, rtol=1e-9, atol=1e-12)
    assert sizes(done.ledger) == (0, 0, 0, 0)
    assert len(done.task.federation) == 1


# --- training a slice is training the model -----------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("lengths", LENGTHS[::2], ids=str)
@pytest.mark.parametrize("name", TRAINED)
def test_training_a_slice_is_training_the_whole_and_looking_at_the_slice(name: str, lengths: dict[str, Any]) -> None:
    """T09: only the rows that batches name; all rows a client holds; the whole model."""
    task, recipe = fitting(name, **lengths)
    parts = recipe.parts()
    held = Recipe(**parts | {"codec": Filling()})  # type: ignore[arg-type]
    assert RowPlan.of(recipe).active
    assert not RowPlan.of(held).active
    least = run(task, recipe, rounds=3)
    assert_close(run(task, held, rounds=3).model, least.model, rtol=1e-9, atol=1e-12)
    if name != "submodelavg":  # there, who holds a row is part of the method
        whole = Recipe(**parts | {"codec": Filling(), "slices": Whole()})  # type: ignore[arg-type]
        assert_close(run(task, whole, rounds=3).model, least.model, rtol=1e-9, atol=1e-12)


class Masked(nn.Module):
    """Tells padding by its id, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(6, 2)

    def forward(self, item: Tensor, item_length: Tensor | None = None) -> Tensor:
        return (self.item(item).sum(-1) * (item != 0)).sum(-1)


class Tied(nn.Module):
    """Reads the whole table, not only the rows that the batch names."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(6, 2)

    def forward(self, item: Tensor) -> Tensor:
        return (self.item(item).sum(-2) @ self.item.weight.T).logsumexp(-1)


def small(module: nn.Module, item: Any) -> Task:
    client, label = np.minimum(np.arange(len(item)), 3), np.arange(len(item)) % 3 - 0.5
    data = Federation.from_arrays(client=client, features={"item": item}, label=label, test=0.0)
    return Task(data, module, squared, tables={"item.weight": "item"})


EVEN = [[3, 4], [4, 5], [2, 3]]
HIDDEN = [[3, 0], [4, 5], [2, 3], *[[3, 0]] * 40]  # the two that count lie among many that are padded


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("module", "item", "start"),
    [
        pytest.param(Tied, EVEN, 1.0, id="the whole table is read"),
        pytest.param(Masked, Ragged.from_lists(EVEN), 1.0, id="sequences"),
        pytest.param(Masked, Ragged.from_lists(EVEN), 0.0, id="sequences, from zero"),
        pytest.param(Masked, Ragged.from_lists([[3], [4, 5], [2, 3]]), 1.0, id="uneven sequences"),
        pytest.param(Masked, EVEN, 1.0, id="columns"),
        pytest.param(Masked, EVEN, 0.0, id="columns, from zero"),
        pytest.param(Masked, [[3, 0], [4, 5], [2, 3]], 1.0, id="columns with padding at first"),
        pytest.param(Masked, HIDDEN, 1.0, id="columns with padding nearly everywhere"),
    ],
)
def test_a_model_that_looks_at_ids_trains_right_or_is_refused(
    module: type[nn.Module], item: Any, start: float, engine: str
) -> None:
    """T09 again: row numbers are renamed inside a client, and the network sees the new ones."""
    torch.manual_seed(0)
    network = module()
    with torch.no_grad():
        network.item.weight.mul_(start)
    try:
        task = small(network, item)
    except UserError:
        assert not isinstance(item, Ragged), "the padding of a sequence keeps its id"
        return
    one, two = (run(task, Recipe(select=Everyone(), codec=codec), engine=engine) for codec in (Dense(), Filling()))
    assert_close(one.model, two.model, rtol=1e-9)


class Scaled(nn.Module):
    """A parameter that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(6, 2)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, item: Tensor) -> Tensor:
        return self.scale * self.item(item).sum((-1, -2))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", TRAINED)
def test_a_parameter_that_is_one_number_trains(name: str) -> None:
    task = small(Scaled(), [[3, 4], [4, 5], [2, 3]])
    done = run(task, RECIPES[name].with_options({"select": "everyone"}))
    assert done.model["scale"] != task.initial(0)["scale"]


# --- renumbering --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", TRAINED)
def test_renumbering_clients_changes_nothing(name: str) -> None:
    """T10. Draws go by the client's number, so everyone takes part and trains in file order."""
    _, recipe = fitting(name)
    recipe = recipe.with_options({"select": "everyone", "order": "file"})
    task = recommender()
    train = task.federation.train
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    new = np.random.default_rng(1).permutation(len(SIZES))
    other = Federation.from_arrays(client=new[owner], features=train.features, label=train.label, test=0.0)
    assert other.train.sizes.tolist() != train.sizes.tolist()
    renumbered = Task(other, task.model, task.loss, tables=task.tables)
    one, two = run(task, recipe, rounds=3), run(renumbered, recipe, rounds=3)
    assert_close(one.model, two.model, rtol=1e-9, atol=1e-12)
    assert sizes(one.ledger) == sizes(two.ledger)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", TRAINED)
def test_renumbering_rows_renumbers_the_model(name: str) -> None:
    """T10."""
    _, recipe = fitting(name)
    task = recommender(ragged=False)
    train = task.federation.train
    rows = task.shapes["item.weight"][0]
    new = torch.from_numpy(np.random.default_rng(1).permutation(rows))
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    features = train.features | {"item": new[train.features["item"]]}
    module = copy.deepcopy(task.module)
    assert isinstance(module, Plain)
    with torch.no_grad():
        module.item.weight[new] = task.initial(0)["item.weight"]
    other = Federation.from_arrays(client=owner, features=features, label=train.label, test=0.0)
    renumbered = Task(other, module, task.loss, tables=task.tables)
    one, two = run(task, recipe, rounds=3), run(renumbered, recipe, rounds=3)
    back = two.model | {"item.weight": two.model["item.weight"][new]}
    assert_close(one.model, back, rtol=1e-9, atol=1e-12)
    assert sizes(one.ledger) == sizes(two.ledger)


# --- engines, chunks, repetition, resuming ------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", RECIPES)
def test_engines_and_chunks_agree(name: str) -> None:
    """Passes over clients of unequal sizes, so that some stand still while others train, and clipping."""
    task, recipe = fitting(name, epochs=2, clip=0.5)
    first = run(task, recipe, rounds=4, engine="vectorized")
    for engine, chunk in (("sequential", None), ("sequential", 2), ("vectorized", 1), ("auto", 3)):
        other = run(task, recipe, rounds=4, engine=engine, chunk=chunk)
        assert_close(other.model, first.model, rtol=1e-7, atol=1e-10)
        assert sizes(other.ledger) == sizes(first.ledger)


@pytest.mark.parametrize("name", ["fedavg", "fedsubavg", "feddd", "fdrl"])
def test_engines_agree_in_single_precision(name: str) -> None:
    task, recipe = fitting(name)
    one = run(task, recipe, rounds=3, engine="vectorized")
    two = run(task, recipe, rounds=3, engine="sequential", chunk=2)
    assert_close(one.model, two.model, rtol=1e-5, atol=1e-6)


class Counting(nn.Linear):
    """Remembers how many steps were taken with it."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += torch.is_grad_enabled()
        return super().forward(x).squeeze(-1)


def test_one_by_one_a_client_takes_its_own_steps_and_no_more() -> None:
    client = np.repeat([0, 1, 2], [2, 9, 4])
    data = Federation.from_arrays(client=client, features={"x": np.ones((15, 1))}, label=np.ones(15), test=0.0)
    recipe = RECIPES["fedavg"].with_options({"select": "everyone", "epochs": 2, "batch_size": 3})
    experiment = Experiment(Task(data, Counting(), squared), recipe, rounds=1, engine="sequential", chunk=3)
    network = experiment.task.module
    assert isinstance(network, Counting)
    assert experiment.engine.threads == 1, "asked, so that the step by which it is counted is over"
    before = network.steps
    experiment.run()
    assert network.steps - before == 2 * (1 + 3 + 2)


def everything(experiment: Experiment) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A copy of all that a restart needs, without the clock."""
    tensors, numbers = experiment.state_dict()
    return {n: v.clone() for n, v in tensors.items()}, {n: v for n, v in numbers.items() if n != "seconds"}


@functools.cache
def straight(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Six rounds without a pause."""
    return everything(run(*fitting(name), rounds=6))


@pytest.mark.parametrize("name", RECIPES)
def test_the_same_experiment_twice_is_the_same_to_the_bit(name: str) -> None:
    tensors, numbers = everything(run(*fitting(name), rounds=6))
    assert_same(tensors, straight(name)[0])
    assert numbers == straight(name)[1]


@pytest.mark.parametrize("name", ["fedavg", "feddd"])
def test_another_seed_is_another_run(name: str) -> None:
    one, two = (run(*fitting(name), seed=seed) for seed in (0, 1))
    assert all(not torch.equal(one.model[n], two.model[n]) for n in one.model)


@pytest.mark.parametrize("stop", [1, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_experiment_continues_to_the_bit(name: str, stop: int) -> None:
    task, recipe = fitting(name)
    tensors, numbers = everything(run(task, recipe, rounds=stop))
    resumed = begun(task, recipe, rounds=6)
    resumed.load_state_dict(tensors, numbers | {"seconds": 0.0})
    rows = resumed.run()
    assert rows[0]["round"] > stop, "the start is not told again"
    assert_same(everything(resumed)[0], straight(name)[0])
    assert everything(resumed)[1] == straight(name)[1]


def test_a_loaded_experiment_has_a_model_of_its_own() -> None:
    task, recipe = fitting("fedavg")
    first, second = run(task, recipe, rounds=2), Experiment(task, recipe, rounds=4)
    before = everything(first)[0]
    second.load_state_dict(*first.state_dict())
    second.run()
    assert_same(everything(first)[0], before)


class Seen(Heat):
    """Remembers every round besides."""

    def __init__(self, run: ServerRun):
        super().__init__(run)
        self.rounds: list[Round] = []


class Watching(HeatCorrected):
    """Asks every client for its loss."""

    def server_state(self, run: ServerRun) -> Seen:
        return Seen(run)

    def up_fields(self, spec: Spec, part: Slice) -> Fields:
        return {"loss": Field(Floats(spec.dtype, finite=False), shape=(1,))}

    def observe(self, state: Seen, end: Round) -> None:
        state.rounds.append(end)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("chunk", [None, 2])
def test_parts_see_the_cohort_its_losses_and_the_change(chunk: int | None) -> None:
    """Losses are means over a client's own steps, in the order of the clients; the change is what was added."""
    task, recipe = fitting("fedsubavg", epochs=1, combine=Watching())
    experiment = Experiment(task, recipe, rounds=1, chunk=chunk)
    experiment.run()
    (end,) = experiment.server.states["combine"].rounds
    start = task.initial(0)
    cohort = chosen(recipe, 0).clients.tolist()
    assert end.invited.tolist() == sorted(end.taken.tolist()) == cohort
    assert len({-(-SIZES[c] // 4) for c in cohort}) > 1, "some clients must have more steps than others"
    assert end.told.keys() == {"loss"}
    for client, loss in zip(end.taken.tolist(), end.told["loss"][:, 0].tolist(), strict=True):
        losses: list[float] = []
        plain_training(task, recipe, start, 0, client, losses=losses)
        assert loss == pytest.approx(np.mean(losses), rel=1e-9)
    assert end.change.keys() == start.keys()
    for name, delta in end.change.items():
        before = start[name] if delta.rows is None else start[name][delta.rows]
        after = experiment.model[name] if delta.rows is None else experiment.model[name][delta.rows]
        assert torch.equal(after, before + delta.values)
        assert end.model[name] is experiment.model[name]
    for table in task.tables:
        untouched = torch.ones(len(start[table]), dtype=torch.bool)
        untouched[sorted(set().union(*(index_set(task, table, client) for client in cohort)))] = False
        assert bool(untouched.any()) or table == "tag.weight"
        assert torch.equal(experiment.model[table][untouched], start[table][untouched])


def test_a_recipe_has_no_memory_of_an_experiment() -> None:
    task, recipe = fitting("flss")
    before = {place: dict(vars(part)) for place, part in recipe.parts().items()}
    one = run(task, recipe, rounds=4)
    assert_same(one.model, run(task, recipe, rounds=4).model)
    assert {place: vars(part) for place, part in recipe.parts().items()} == before
    assert all(part is one.recipe.parts()[place] for place, part in recipe.parts().items())


def test_prox_without_pull_is_plain_training_to_the_bit() -> None:
    task, recipe = fitting("fedavg")
    pulled = recipe.with_options({"local": "prox", "mu": 0.0})
    assert_same(run(task, recipe, rounds=3).model, run(task, pulled, rounds=3).model)
    pulled = recipe.with_options({"local": "prox", "mu": 1.0})
    assert not torch.equal(run(task, recipe).model["item.weight"], run(task, pulled).model["item.weight"])


def test_the_server_s_rate_scales_the_step() -> None:
    task, recipe = fitting("fedsubavg")
    start, full = task.initial(0), run(task, recipe).model
    half = run(task, recipe.with_options({"server_lr": 0.5})).model
    assert_close(half, {n: start[n] + (full[n] - start[n]) / 2 for n in start}, rtol=1e-5, atol=1e-7)


def test_bytes_are_counted_from_what_a_client_holds() -> None:
    """Rows are named in the request; all clients name them once more for the heat, with their number of samples."""
    task, recipe = fitting("fedsubavg")
    done = run(task, recipe, rounds=3)
    dense = sum(shape.numel() for name, shape in task.shapes.items() if name not in task.tables)
    bits = {"item.weight": 4, "tag.weight": 3}  # of 14 and 6 rows
    values: list[int] = []
    ids: dict[str, list[int]] = {table: [] for table in task.tables}
    for client in range(len(SIZES)):
        held = {table: len(index_set(task, table, client)) for table in task.tables}
        values.append(4 * (dense + sum(count * task.shapes[table][1] for table, count in held.items())))
        for table, count in held.items():
            rows = task.shapes[table][0]
            size = min(-(-count * bits[table] // 8), -(-rows // 8))
            ids[table].append(size if count < rows else 0)  # all rows need no names
    met = [client for t in range(3) for client in chosen(recipe, t).clients.tolist()]
    asked = {f"rows/{table}": sum(own[client] for client in met) for table, own in ids.items()}
    moved = {"values": sum(values[client] for client in met)}
    assert done.ledger.up == asked | moved
    assert done.ledger.down == moved
    assert (done.ledger.up_bytes, done.ledger.down_bytes) == (sum(asked.values()) + moved["values"], moved["values"])
    facts = {f"rows/{table}": sum(own) for table, own in ids.items()} | {"samples": 4 * len(SIZES)}
    assert {name: size for name, size in done.ledger.enrol.items() if name not in WELCOME} == facts
    whole = run(task, fitting("fedavg")[1], rounds=3)
    assert (
        whole.ledger.up_bytes
        == whole.ledger.down_bytes
        == 3 * 4 * 4 * sum(shape.numel() for shape in task.shapes.values())
    )
    assert whole.ledger.enrol_bytes == done.ledger.enrol_bytes - sum(sum(own) for own in ids.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"eval_every": 0}, "eval_every=0"),
        ({"chunk": 0}, "chunk=0"),
        ({"device": "warp"}, "Unknown device 'warp'"),
    ],
)
def test_what_an_experiment_refuses(options: dict[str, Any], message: str) -> None:
    task, recipe = fitting("fedavg")
    with pytest.raises(UserError, match=message):
        Experiment(task, recipe, **{"rounds": 1} | options)


def test_an_unknown_engine_is_told_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'sequential'"):
        run(*fitting("fedavg"), engine="sequentiel")


def test_a_cohort_that_the_population_cannot_fill_is_refused() -> None:
    task, recipe = fitting("fedavg", cohort=7)
    with pytest.raises(UserError, match="cohort=7 but the task has 6 clients"):
        Experiment(task, recipe, rounds=1)
    with pytest.raises(UserError, match="needs a task with tables"):
        Experiment(pair(), RECIPES["fedsubavg"].with_options({"cohort": 2}), rounds=1)
