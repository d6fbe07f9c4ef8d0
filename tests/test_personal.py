"""Every client's own model on its own test samples: against plain loops over clients."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic.dataclasses import dataclass
from torch import Tensor

from command import SMALL, execute, fedslice
from fedslice import tasks
from fedslice.config import request, resolve
from fedslice.core.entries import View
from fedslice.core.errors import RunWarning, UserError
from fedslice.core.memory import Memory
from fedslice.core.message import Body
from fedslice.core.part import CHECKED, ClientRun
from fedslice.core.slice import Axis, Slice, Values
from fedslice.local import Term
from fedslice.measure.base import Moment
from fedslice.measure.clients import columns
from fedslice.measure.personal import Personal, Stale
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES
from fedslice.runs.clients import read_clients
from fedslice.runs.directory import RunDirectory
from fedslice.schema import find
from fedslice.select import Everyone, Uniform
from fedslice.task import Task
from fedslice.training.engines import Sequential
from fedslice.training.engines.choose import Choice
from fedslice.training.events import Listener, Trained
from fedslice.training.experiment import Experiment, Row
from fedslice.training.row_plan import RowPlan
from fedslice.training.work import Work
from layouts import one_sentence
from test_rounds import Filling
from toys import (
    assert_same,
    begun,
    chosen,
    double,
    fitting,
    index_set,
    mlp,
    pair,
    plain_training,
    recommender,
    training,
)

ALL = ("personal", "stale", "tuned")
OFFSETS = [0, 4, 5, 5, 11, 14, 16]  # one client has no test sample, one has one, and two samples are nobody's
TESTED = [0, 1, 3, 4, 5]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


def holding_out(task: Task) -> Task:
    """The task with test samples from another draw, which name rows that their clients do not hold, and two scores.

    The second is not defined for a single sample.
    """
    other = recommender((4, 1, 6, 3, 2, 2), seed=5) if task.tables else mlp((4, 1, 6, 3, 2, 2), seed=5)
    test = replace(other.federation.train, offsets=torch.tensor(OFFSETS))
    metrics = {
        "level": lambda outputs, labels: float(outputs.mean() - labels.double().mean()),
        "spread": lambda outputs, _: float(outputs.std()) if len(outputs) > 1 else math.nan,
    }
    return replace(task, federation=replace(task.federation, test=test), metrics=metrics)


def mask(part: Slice, name: str) -> Tensor:
    """Where one client's slice has a parameter, over the whole of it."""
    if name not in part.axes:
        return torch.zeros(part.shapes[name], dtype=torch.bool)
    ones = part.only([name]).gather({name: torch.ones(part.shapes[name])})[name]
    return part.spread(name, ones)[0] > 0


def holds(experiment: Experiment, client: int, t: int) -> Slice:
    """What a client holds in a round."""
    return experiment.recipe.slices.hold(experiment.population.parts["slices"], t, torch.tensor([client]))


def in_test(experiment: Experiment, client: int, model: Values) -> Values:
    """The model with which the local method has a client tested, given the whole of another."""
    who, everything = torch.tensor([client]), Slice.whole(1, experiment.task.shapes)
    came = {"first": View(experiment.task.initial(experiment.seed), everything)}
    start, memory = {name: value[None] for name, value in model.items()}, experiment.population.parts["local"]
    own = experiment.recipe.local.personal(memory, who, everything, start, came)
    return {name: value[0] for name, value in own.items()}


def own_model(experiment: Experiment, client: int) -> Values:
    """What a client would start its next round from, coordinate by coordinate of the whole model."""
    recipe, t, slices = experiment.recipe, experiment.round, experiment.population.parts["slices"]
    one = 0 if "pools" in recipe.select.provides else client
    hold, who = holds(experiment, one, t), torch.tensor([one])
    down = recipe.slices.came(slices, t, who, hold)
    out = {}
    for name, value in experiment.model.items():
        memory = slices.get(f"kept/{name}", who) if name in recipe.slices.kept(experiment.spec) else None
        own = value
        if memory is not None and memory[1].item():
            own = torch.where(mask(hold, name) & ~mask(down, name), memory[0][0], value)
        lacks = "narrows" in recipe.slices.provides and name not in experiment.task.tables
        out[name] = torch.where(mask(hold, name), own, 0) if lacks else own.clone()
    return in_test(experiment, one, out)


def expected(task: Task, kind: str, models: dict[int, Values]) -> dict[str, float]:
    """The columns, client by client and number by number."""
    out = {}
    for name, metric in task.metrics.items():
        found, sizes = [], []
        for client, model in models.items():
            index = torch.arange(OFFSETS[client], OFFSETS[client + 1])
            features, label = task.federation.test.batch(index)
            score = metric(task.forward(model, features).detach(), label)
            if not math.isnan(score):
                found.append(score)
                sizes.append(len(index))
        out[f"{kind}_{name}"] = np.mean(found)
        out[f"{kind}_{name}_weighted"] = np.average(found, weights=sizes)
        out[f"{kind}_{name}_worst"] = min(found)
        assert len(found) == (4 if name == "spread" else 5)
    return out


def of(row: Row, kind: str) -> dict[str, float]:
    return {name: value for name, value in row.items() if name.startswith(kind)}


def kinds_for(recipe: Recipe) -> tuple[str, ...]:
    return ALL[:1] if "pools" in recipe.select.provides else ALL


# One recipe for every combination of what decides about a client's model.
DIFFERENT = {
    (repr(one.select), repr(one.slices), one.local.label, RowPlan.of(one)): name for name, one in RECIPES.items()
}


@pytest.mark.parametrize("name", DIFFERENT.values())
def test_any_recipe_has_its_personal_models_measured(name: str) -> None:
    """By a loop over clients, by both engines, and without a trace in the run."""
    task, recipe = fitting(name)
    task = holding_out(task)
    kinds = kinds_for(recipe)
    one = begun(task, recipe, rounds=2, eval_every=2, engine="vectorized", chunk=2, measure=kinds)
    for row in one.stream():
        models = {client: own_model(one, client) for client in TESTED}
        assert of(row, "personal") == pytest.approx(expected(task, "personal", models), abs=1e-9)
        assert all(find(column).measured for kind in kinds for column in of(row, kind))
    other = Moment(one._scene, one.round, one.model, Choice(Sequential(), 4, 1, "by name"))
    again = one._instruments.measure(other)
    for kind in kinds:
        assert of(again, kind) == pytest.approx(of(row, kind), abs=1e-7)
        assert len(of(row, kind)) == 6
    packed = begun(task, recipe, rounds=2, eval_every=2, engine="vectorized", measure=kinds, wire=True).run()[-1]
    for kind in kinds:
        assert of(packed, kind) == pytest.approx(of(row, kind), abs=1e-7)
    plain = begun(task, recipe, rounds=2, eval_every=2, engine="vectorized", chunk=2)
    without = plain.run()[-1]
    assert_same(plain.model, one.model)
    for side in (lambda run: run.population.memories, lambda run: run.server):
        assert_same(side(plain).state_dict(), side(one).state_dict())
    assert plain.ledger.state_dict() == one.ledger.state_dict()
    assert without.items() - {("seconds", without["seconds"])} <= row.items()


PLAIN = {"fedavg": 0.0, "fedprox": 0.01, "fedsubavg": 0.0, "fedper": 0.0, "local": 0.0}  # and μ


@pytest.mark.parametrize("name", PLAIN)
def test_stale_and_tuned_models_are_those_of_plain_training(name: str) -> None:
    task, recipe = fitting(name, cohort=2)
    task, mu = holding_out(task), PLAIN[name]
    experiment = begun(task, recipe, rounds=3, eval_every=1, chunk=2, measure=["stale", "tuned"])
    ended: dict[int, Values] = {}
    before: dict[int, Values] = {}
    for row in experiment.stream():
        t = row["round"]
        for client in chosen(recipe, t - 1).clients.tolist() if t else []:
            ended[client] = plain_training(task, recipe, before[client], t - 1, client, mu=mu)
        before = {client: own_model(experiment, client) for client in range(6)}
        stale = {}
        for client, now in ((client, before[client]) for client in TESTED):
            hold = holds(experiment, client, t)
            then = ended.get(client, now)
            stale[client] = {n: torch.where(mask(hold, n), then[n], value) for n, value in experiment.model.items()}
        assert of(row, "stale") == pytest.approx(expected(task, "stale", stale), abs=1e-9)
        tuned = {client: plain_training(task, recipe, before[client], t, client, mu=mu) for client in TESTED}
        assert of(row, "tuned") == pytest.approx(expected(task, "tuned", tuned), abs=1e-9)
    assert 0 < len(ended) < 6, "some took part and some did not"


class Ends(Listener):
    """What each client's last training ended with."""

    def __init__(self, experiment: Experiment) -> None:
        self.by_client: dict[int, Values] = {}
        experiment.events.add(self)

    def trained(self, event: Trained) -> None:
        hold = event.work.hold
        for place, client in enumerate(event.work.clients.tolist()):
            self.by_client[client] = {n: hold.spread(n, event.end[n])[place] for n in hold.axes}


@pytest.mark.parametrize("name", ["feddd", "heterofl", "fdrl", "ditto"])
def test_stale_models_are_what_training_ended_with(name: str) -> None:
    task, recipe = fitting(name)
    task = holding_out(task)
    experiment = begun(task, recipe, rounds=4, eval_every=4, engine="vectorized", chunk=3, measure=["stale"])
    ends = Ends(experiment)
    row = experiment.run()[-1]
    assert set(TESTED) <= ends.by_client.keys()
    models = {client: in_test(experiment, client, ends.by_client[client]) for client in TESTED}
    assert of(row, "stale") == pytest.approx(expected(task, "stale", models), abs=1e-9)


@pytest.mark.parametrize("slices", ["whole", "feature-rows"])
def test_rows_that_drift_do_so_here_too(slices: str) -> None:
    """SCAFFOLD moves rows without a gradient: the same result where all that is held is trained."""
    task, recipe = fitting("scaffold", slices=slices)
    task = holding_out(task)
    rows = [
        begun(task, one, rounds=4, eval_every=4, measure=ALL).run()[-1]
        for one in (recipe, replace(recipe, codec=Filling()))
    ]
    for kind in ALL:
        assert of(rows[0], kind) == pytest.approx(of(rows[1], kind), abs=1e-9)


def test_rows_that_a_client_does_not_hold_are_the_servers() -> None:
    """Whether it trains or drifts: they are not its own."""
    task, recipe = fitting("scaffold", slices="feature-rows")
    task = holding_out(task)
    experiment = begun(task, recipe, rounds=2, eval_every=2, measure=ALL)
    experiment.run()
    now = Moment(experiment._scene, 2, experiment.model, experiment.engine)
    rows = task.shapes["item.weight"][0]
    every = Axis(torch.full((6,), rows), torch.arange(rows).repeat(6, 1))
    for kind in ALL:
        instrument = experiment._instruments._by_name[kind]
        assert isinstance(instrument, Personal)
        own = instrument._own(now, torch.arange(6), {"item.weight": every}).values["item.weight"]
        moved = (own != experiment.model["item.weight"]).any(2)
        for client in range(6):
            held = index_set(task, "item.weight", client)
            assert not moved[client, [row for row in range(rows) if row not in held]].any()
        assert moved.any() == (kind != "personal")


@dataclass(frozen=True, config=CHECKED)
class Halved(Term):
    """Tested with half of every value, and tuned by steps that go nowhere."""

    label = "halved"

    def personal(self, memory: Any, clients: Tensor, layout: Slice, start: Values, came: Body) -> Values:
        return {name: value / 2 for name, value in start.items()}

    def tuning(self) -> tuple[Term, ...]:
        return (Small(),)


class Little(Memory):
    """What :class:`Small` found out when it was set up."""


@dataclass(frozen=True, config=CHECKED)
class Small(Term):
    """Notes where it is set up, and freezes everything with the memory that it made there."""

    label = "small"
    places: ClassVar[list[str]] = []

    def client_memory(self, run: ClientRun, place: str) -> Little:
        self.places.append(place)
        return Little(run, place)

    def frozen(self, work: Work, s: int) -> dict[str, Tensor]:
        assert isinstance(work.memory, Little)
        return dict.fromkeys(work.start, torch.ones_like(work.clients, dtype=torch.bool))


def test_a_local_method_says_what_is_personal_and_how_it_is_tuned() -> None:
    task = holding_out(pair())
    recipe = Recipe(select=Uniform(cohort=3), local=training(Halved, lr=0.1))
    Small.places.clear()
    experiment = Experiment(task, recipe, rounds=2, eval_every=2, measure=ALL)
    row = experiment.run()[-1]
    half = {client: {n: v / 2 for n, v in experiment.model.items()} for client in TESTED}
    assert of(row, "personal") == pytest.approx(expected(task, "personal", half))
    assert of(row, "tuned") == pytest.approx(expected(task, "tuned", half), abs=1e-6)
    assert Small.places == ["tuner.small"], "set up once, with a memory of its own"


class Breaking(Term):
    """Client 4 breaks in the second round."""

    label = "breaking"

    def correct(self, gradient: Values, parameters: Values, work: Work) -> Values:
        broken = (work.clients == 4) & (work.round == 1)
        return {n: v.masked_fill(broken.view(-1, *[1] * (v.dim() - 1)), math.nan) for n, v in gradient.items()}


def test_who_sent_something_broken_took_no_part() -> None:
    recipe = Recipe(select=Everyone(), local=training(Breaking))
    experiment = Experiment(holding_out(mlp()), recipe, rounds=2, eval_every=1, measure=["stale"])
    stale = experiment._instruments._by_name["stale"]
    assert isinstance(stale, Stale)
    rows = experiment.stream()
    next(rows), next(rows)
    before = stale._ended.get("ended/first.weight", torch.arange(6))
    assert before is not None
    with pytest.warns(RunWarning, match="1 of 6 updates rejected"):
        next(rows)
    after = stale._ended.get("ended/first.weight", torch.arange(6))
    assert after is not None
    assert experiment.rejected == 1
    changed = (after[0] != before[0]).flatten(1).any(1)
    assert changed.tolist() == [True, True, True, True, False, True]


@pytest.mark.parametrize("name", ["fedavg", "fdrl", "feddd", "fedsubavg", "apfl"])
def test_a_run_that_goes_on_from_its_state_is_the_same(name: str) -> None:
    task, recipe = fitting(name)
    task = holding_out(task)
    whole = begun(task, recipe, rounds=4, eval_every=2, measure=ALL)
    rows = whole.run()
    stopped = begun(task, recipe, rounds=4, eval_every=2, measure=ALL)
    stream = stopped.stream()
    next(stream), next(stream)
    resumed = begun(task, recipe, rounds=4, eval_every=2, measure=ALL)
    resumed.load_state_dict(*stopped.state_dict())
    again = resumed.run()
    assert [{**row, "seconds": 0} for row in again] == [{**row, "seconds": 0} for row in rows[2:]]
    done = begun(task, recipe, rounds=4, eval_every=2, measure=ALL)
    done.load_state_dict(*whole.state_dict())
    assert done.panels() == whole.panels()
    assert repr(done.clients()) == repr(whole.clients()), "undefined scores are equal too"


# --- columns, panels and the table -----------------------------------------------------------------------------------


def test_means_by_hand() -> None:
    values = torch.tensor([0.5, 0.9, 0.1, 0.7, math.nan, math.nan])
    samples = torch.tensor([1, 2, 3, 4, 5, 0])
    assert columns("personal", {"auc": values}, samples, {"auc": False}) == pytest.approx(
        {"personal_auc": 0.55, "personal_auc_weighted": (0.5 + 1.8 + 0.3 + 2.8) / 10, "personal_auc_worst": 0.1}
    )
    many = {"accuracy": torch.arange(30.0), "loss": torch.arange(30.0)}
    found = columns("tuned", many, torch.ones(30), {"accuracy": False})
    assert (found["tuned_accuracy_worst"], found["tuned_loss_worst"]) == (1, 28)
    nobody = columns("stale", {"auc": torch.full((3,), math.nan)}, torch.ones(3), {"auc": False})
    assert all(math.isnan(value) for value in nobody.values())
    broken = columns("stale", {"loss": torch.tensor([1.0, math.nan])}, torch.tensor([1, 1]), {})
    assert all(math.isnan(value) for value in broken.values()), "a loss that is no number is not left out"


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50)), min_size=1, max_size=40), st.randoms())
def test_means_lie_between_the_worst_and_the_best(found: list[tuple[float, int]], draw: Any) -> None:
    def of_pairs(pairs: list[tuple[float, int]]) -> dict[str, float]:
        values, samples = (torch.tensor(column) for column in zip(*pairs, strict=True))
        return columns("personal", {"score": values}, samples, {"score": False})

    one = of_pairs(found)
    low, high = min(value for value, _ in found), max(value for value, _ in found)
    assert low - 1e-12 <= one["personal_score_worst"] <= one["personal_score"] + 1e-12 <= high + 2e-12
    assert low - 1e-12 <= one["personal_score_weighted"] <= high + 1e-12
    assert of_pairs(draw.sample(found, len(found))) == pytest.approx(one)
    assert of_pairs([(value, 3) for value, _ in found])["personal_score_weighted"] == pytest.approx(
        one["personal_score"]
    )


def test_panels_say_how_many_clients_count() -> None:
    experiment = Experiment(holding_out(mlp()), Recipe(select=Everyone()), rounds=1, measure=["personal"])
    assert not [panel for panel in experiment.panels() if "Personal" in panel.title], "nothing is known yet"
    experiment.run()
    level, spread = (panel for panel in experiment.panels() if "Personal" in panel.title)
    assert level.title == "Personal models: level by client"
    assert level.note.startswith("5 clients counted, of 5 that have test samples: from ")
    assert spread.note.startswith("4 clients counted, of 5 that have test samples: from ")
    assert sum(int(row["clients"] or 0) for row in spread.rows) == 4
    table = experiment.clients()
    assert list(table) == ["client", "train_samples", "test_samples", "personal_level", "personal_spread"]
    assert table["test_samples"] == [4, 1, 0, 6, 3, 2]
    assert [math.isnan(value) for value in table["personal_spread"]] == [False, True, True, False, False, False]


def test_a_task_without_metrics_has_its_loss() -> None:
    task = replace(holding_out(mlp()), metrics={})
    row = Experiment(task, Recipe(select=Everyone()), rounds=1, measure=["personal"]).run()[0]
    test = task.federation.test
    features, label = test.batch(torch.arange(OFFSETS[-1]))
    losses = task.loss(task.forward(task.initial(0), features), label)
    assert row["personal_loss_weighted"] == pytest.approx(float(losses.detach().mean()))
    of_clients = [float(losses[OFFSETS[c] : OFFSETS[c + 1]].mean()) for c in TESTED]
    assert row["personal_loss_worst"] == pytest.approx(max(of_clients))


def test_pooled_data_are_measured_by_client() -> None:
    task, recipe = fitting("centralsgd")
    for kind in ALL[1:]:
        told = one_sentence(lambda kind=kind: Experiment(holding_out(task), recipe, rounds=1, measure=[kind]))
        assert told.startswith(f"measure={kind} looks at what each client trains, and with select=pooled there is one")


def test_what_cannot_be_measured_is_told() -> None:
    images = tasks.get("mnist").build({"train": 100, "clients": 4}, None)
    for kind in ALL:
        told = one_sentence(lambda kind=kind: Experiment(images, Recipe(select=Everyone()), rounds=1, measure=[kind]))
        assert told == (
            f"measure={kind} tests every client on its own test samples, but of the 10,000 of task 'mnist' none "
            "belongs to a client; give clients some, in a set without clients by split=pfllib or partition=shards."
        )
    twice = Recipe(select=Uniform(cohort=3, replacement=True))
    with pytest.raises(UserError, match=r"^measure=stale keeps a memory per client, and select=uniform with replac"):
        Experiment(holding_out(mlp()), twice, rounds=1, measure=["stale"])


# --- in a run directory ----------------------------------------------------------------------------------------------


def test_the_command_shows_the_worst_client_first(tmp_path: Path) -> None:
    done = fedslice("run", *SMALL, "--measure", "personal", "--measure", "tuned", "--out", tmp_path / "run", "--json")
    last = done.document["metrics"][-1]
    found = fedslice("clients", tmp_path / "run", "--json").document["clients"]
    assert len(found) == 30
    defined = [row["personal_auc"] for row in found if row["personal_auc"] is not None]
    assert defined == sorted(defined)
    assert 0 < len(defined) < 30
    assert all(row["personal_auc"] is None for row in found[len(defined) :])
    assert np.mean(defined) == pytest.approx(last["personal_auc"])
    tuned = [row for row in found if row["tuned_accuracy"] is not None]
    weights = [row["test_samples"] for row in tuned]
    assert np.average([row["tuned_accuracy"] for row in tuned], weights=weights) == pytest.approx(
        last["tuned_accuracy_weighted"]
    )
    shown = fedslice("clients", tmp_path / "run").out
    assert "30 clients, the worst first" in " ".join(shown.split()), "wrapped or not"
    lines = shown.splitlines()
    rule = next(place for place, line in enumerate(lines) if set(line) == {"─"})
    assert [line.split()[0] for line in lines[rule + 1 : rule + 31]] == [row["client"] for row in found]


def test_a_run_killed_at_its_very_end_still_leaves_its_table(tmp_path: Path) -> None:
    said = {"task": "hotcold", "rounds": 1, "cohort": 4, "measure": list(ALL)}
    plan = resolve(request(said | {"set": {"clients": 12, "items": 30, "samples": 8, "factors": 2}}))
    execute(plan, tmp_path / "whole", resume=False)
    for place in ("panels", "clients", "finish"):
        calls = iter((None, KeyboardInterrupt) if place == "panels" else (KeyboardInterrupt,))
        plain = getattr(RunDirectory, place)

        def stop(run: RunDirectory, *words: Any, calls: Any = calls, plain: Any = plain) -> None:
            if (error := next(calls)) is not None:
                raise error
            plain(run, *words)

        with patch.object(RunDirectory, place, stop), pytest.raises(KeyboardInterrupt):
            execute(plan, tmp_path / place, resume=True)
        execute(plan, tmp_path / place, resume=True)
        for name in ("clients.csv", "panels.json"):
            assert (tmp_path / place / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert [path.name for path in (tmp_path / "clients").glob("*.partial")] == []


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    names = ['a "b", c', "ü", "3"]
    numbers = {"train_samples": [1, 2, 3], "test_samples": [0, 5, 6], "personal_auc": [math.nan, 1 / 3, math.inf]}
    with RunDirectory.open(tmp_path / "run", {}, resume=False) as run:
        run.resume()
        run.clients({"client": names, **numbers})
    found = read_clients(tmp_path / "run")
    assert [row["client"] for row in found] == names
    assert [row["personal_auc"] for row in found] == [None, 1 / 3, None]
    assert [row["test_samples"] for row in found] == [0, 5, 6]


HEAD = "client,train_samples,test_samples,personal_auc\r\n"
BROKEN = {
    "": "line 1 has the columns '', expected client, train_samples, test_samples and scores; make the run",
    HEAD.replace("client", "who"): "line 1 has the columns 'who, train_samples, test_samples, personal_auc'",
    "client,train_samples,test_samples\r\na,1,1\r\n": "expected client, train_samples, test_samples and scores",
    HEAD: "names no client",
    HEAD + "a,1,1\r\n": "row 2 has 3 cells, expected 4",
    HEAD + "a,1,1,0.5\r\nb,1,1,high\r\n": "row 3: personal_auc is 'high', expected a number",
    HEAD + "a,1,-1,0.5\r\n": "row 2: test_samples is '-1', expected a number",
    HEAD + "a,,1,0.5\r\n": "row 2: train_samples is '', expected a number",
    HEAD + "a,1,1,nan\r\n": "row 2: personal_auc is 'nan', expected a number",
    HEAD + 'a,1,1,"0.5\r\n': "cannot be read (unexpected end of data)",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_table_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "clients.csv").write_text(text, newline="")
    told = one_sentence(read_clients, tmp_path)
    assert BROKEN[text] in told


def test_a_run_without_a_table_is_told(tmp_path: Path) -> None:
    for path, saying in (
        (tmp_path / "nothing", "holds no run (no config.json in it); give a run directory."),
        (tmp_path, "has no clients.csv, which a run with --measure personal, stale or tuned writes when it ends"),
    ):
        if path == tmp_path:
            (tmp_path / "config.json").write_text(json.dumps({}))
        done = fedslice("clients", path)
        assert (done.code, done.out) == (2, "")
        assert saying in done.err
        assert done.err.count("\n") == 1
    with (tmp_path / "clients.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["client", "train_samples", "test_samples", "personal_loss"], ["a", 1, 1, 0.5]])
    assert fedslice("clients", tmp_path, "--json").document["clients"][0]["personal_loss"] == 0.5
