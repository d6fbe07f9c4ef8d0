"""Running statistics: averaged with the merge, or kept by clients; read in every evaluation; never lost."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fedslice.core.errors import UserError
from fedslice.measure.conditioning import conditioning
from fedslice.measure.gradients import full_gradient
from fedslice.recipe import Recipe
from fedslice.task import Task
from fedslice.training.events import Listener, Refusal
from fedslice.training.experiment import Experiment
from fedslice.training.rounds import play_round
from fedslice.training.transports.memory import InMemory
from kinds import KINDS, Kind, Normed, averaged, labels, trained
from toys import assert_close, assert_same
from two_sides import Case, sides, simulated, without_words

NORMED, FLAT = KINDS["batchnorm"], KINDS["batchnorm-plain"]
FEDBN = {"slices": "shared", "patterns": "!batchnorm"}


@pytest.mark.parametrize("name", ["batchnorm", "batchnorm-plain", "batchnorm2d"])
@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_fedbn_keeps_statistics_with_the_clients(name: str, wire: bool, engine: str) -> None:
    kind = KINDS[name]
    task, recipe = kind.task(), kind.recipe(**FEDBN)
    experiment = Experiment(task, recipe, rounds=3, wire=wire, engine=engine)
    experiment.run()
    expected = averaged(task, recipe, 3, private=lambda key: key.startswith("norm"))
    assert_close(experiment.model, {key: expected[key] for key in experiment.model}, rtol=1e-9, atol=1e-12)
    fields = experiment.population.ask(0, torch.tensor([0]))
    assert fields is not None
    download = experiment.server.glimpse(fields)
    assert not [key for key in download.fields if key.startswith("statistics")]


def test_fedbn_is_not_fedavg() -> None:
    """The check above can fail."""
    task = NORMED.task()
    shared, private = averaged(task, NORMED.recipe(), 3), averaged(task, NORMED.recipe(), 3, lambda n: n[:4] == "norm")
    assert not torch.allclose(shared["first.weight"], private["first.weight"])


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_evaluation_reads_them(engine: str) -> None:
    task, recipe = NORMED.task(), NORMED.recipe()
    experiment = Experiment(task, recipe, rounds=2, engine=engine, measure=["personal", "stale", "tuned"])
    row = experiment.run()[-1]
    module = copy.deepcopy(task.build(0)).eval()
    module.load_state_dict(experiment.model)
    test = task.federation.test
    features, label = test.batch(torch.arange(len(test)))
    assert row["test_loss"] == pytest.approx(float(labels(module(**features), label).mean()), rel=1e-12)
    losses = labels(module(**features), label).split(test.sizes.tolist())
    assert row["personal_loss"] == pytest.approx(float(torch.stack([own.mean() for own in losses]).mean()), rel=1e-9)
    own = [labels(end(**_of(task, c)[0]), _of(task, c)[1]).mean() for c, end in enumerate(_ends(task, recipe))]
    assert row["stale_loss"] == pytest.approx(float(torch.stack(own).mean()), rel=1e-9)


def _of(task: Task, client: int) -> tuple[dict[str, Tensor], Tensor]:
    test = task.federation.test
    return test.batch(torch.arange(int(test.offsets[client]), int(test.offsets[client + 1])))


def _ends(task: Task, recipe: Recipe) -> list[nn.Module]:
    """What clients ended the second round with."""
    start, out = averaged(task, recipe, 1), []
    for client in range(len(task.federation)):
        module = copy.deepcopy(task.build(0))
        module.load_state_dict(trained(task, recipe, start, 1, client))
        out.append(module.eval())
    return out


@pytest.mark.parametrize("options", [{}, FEDBN], ids=["shared", "kept"])
def test_a_run_that_stops_continues_with_them(options: dict[str, str]) -> None:
    task, recipe = NORMED.task(), NORMED.recipe(**options)
    whole = Experiment(task, recipe, rounds=4)
    whole.run()
    first, second = Experiment(task, recipe, rounds=4), Experiment(task, recipe, rounds=4)
    rows = first.stream()
    while first.round < 2:
        next(rows)
    second.load_state_dict(*copy.deepcopy(first.state_dict()))
    second.run()
    assert_same(whole.model, second.model)


@dataclass(frozen=True)
class OfKind(Case):
    """Clients of a kind, every one of which answers."""

    silent: frozenset[tuple[int, int]] = frozenset()
    lost: frozenset[tuple[int, int]] = frozenset()

    def build(self) -> tuple[Task, Recipe]:
        kind = KINDS[self.name]
        return kind.task((3, 7, 2, 12, 5, 4, 6, 3), test=0.0), kind.recipe(cohort=6, batch_size=None, **self.options)


@pytest.fixture(scope="module")
def processes():
    with sides() as both:
        yield both


@pytest.mark.parametrize(
    "case",
    [
        OfKind("batchnorm"),
        OfKind("batchnorm", options=FEDBN),
        OfKind("batchnorm-plain", options=FEDBN),
        OfKind("padding_idx-table", options={"slices": "feature-rows", "combine": "heat"}),
        OfKind("bag-table", options={"slices": "feature-rows"}),
        OfKind("named-outputs"),
        OfKind("tied"),
        OfKind("gru"),
        OfKind("batchnorm", lost=frozenset({(0, 1), (1, 3)}), silent=frozenset({(1, 0)})),
        OfKind("batchnorm", options=FEDBN, lost=frozenset({(0, 1), (1, 3)}), silent=frozenset({(1, 0)})),
    ],
    ids=lambda case: "-".join([case.name, *case.options.values(), *(["losses"] if case.lost else [])]),
)
def test_two_processes_come_to_the_same(processes, case: OfKind) -> None:
    here, there = simulated(case), processes.run(case)
    assert there.taken == here.taken
    assert_close(here.model, there.model, rtol=1e-12, atol=1e-15)
    assert without_words(here.books) == without_words(there.books)


class Refusals(Listener):
    def __init__(self) -> None:
        self.found: list[Refusal] = []

    def refused(self, event: Refusal) -> None:
        self.found.append(event)


@pytest.mark.parametrize("wrong", [float("nan"), -1.0], ids=["nan", "negative"])
def test_statistics_that_cannot_be_are_refused(wrong: float) -> None:
    """They cost their sender the round, and change nobody's."""
    task, recipe = NORMED.task(), NORMED.recipe()
    honest = Experiment(task, recipe, rounds=1)
    hostile, refusals = Experiment(task, recipe, rounds=1), Refusals()
    hostile.server.events.add(refusals)
    train = hostile.population.train

    def twisted(download):
        upload = train(download)
        upload.body["statistics.norm.running_var"][upload.head.clients == 1] = wrong
        return upload

    hostile.population.train = twisted
    play_round(hostile.server, InMemory(hostile.population))
    assert [each.client for each in refusals.found] == [1]
    assert bool(torch.isfinite(hostile.model["norm.running_var"]).all())
    assert bool((hostile.model["norm.running_var"] > 0).all())
    honest.run()
    assert not torch.equal(honest.model["norm.running_mean"], hostile.model["norm.running_mean"])


def test_a_layer_held_in_evaluation_mode_stands_still() -> None:
    def build() -> nn.Module:
        model = Normed()
        model.norm.eval()
        return model

    kind = Kind(build)
    task, recipe = kind.task(), kind.recipe()
    experiment = Experiment(task, recipe, rounds=2)
    experiment.run()
    assert experiment.model.keys() == task.shapes.keys()
    assert not task.module.norm.training
    assert task.module.training
    assert float(task.module.norm.num_batches_tracked) == 0


def one_sentence(kind: Kind, sizes: tuple[int, ...] = (8, 5, 12), run: bool = False, **settings: object) -> str:
    def go() -> None:
        experiment = Experiment(kind.task(sizes, test=0.0), kind.recipe(**settings), rounds=1, engine="sequential")
        if run:
            experiment.run()

    with pytest.raises(UserError) as caught:
        go()
    return str(caught.value)


def test_a_batch_of_one_sample_is_refused() -> None:
    said = one_sentence(NORMED, (8, 1, 12), run=True, batch_size=None)
    assert "normalises over the samples of a batch, and a client has a batch of one" in said


def test_robust_merges_do_not_take_them_for_guarded() -> None:
    assert "running statistics of layer 'norm' would be plain means" in one_sentence(NORMED, combine="median")
    Experiment(NORMED.task(), NORMED.recipe(combine="median", **FEDBN), rounds=1).run()
    assert "running statistics of layer 'norm' would travel openly" in one_sentence(NORMED, codec="secagg")


@pytest.mark.parametrize("patterns", ["!batchnorm", "body,!norm.*"])
def test_patterns_take_away(patterns: str) -> None:
    recipe = NORMED.recipe(slices="shared", patterns=patterns)
    names = recipe.slices.names(Experiment(NORMED.task(), recipe, rounds=1).spec)
    assert not [name for name in names if name.startswith("norm")]
    assert "first.weight" in names


def test_patterns_that_take_everything_away_are_refused() -> None:
    assert "leaves no parameter that travels" in one_sentence(NORMED, slices="shared", patterns="!*")
    assert "needs a layer of batch normalisation" in one_sentence(KINDS["tied"], slices="shared", patterns="!batchnorm")


def test_gradients_are_taken_with_them_and_a_hessian_is_refused() -> None:
    task, recipe = NORMED.task(), NORMED.recipe()
    experiment = Experiment(task, recipe, rounds=2)
    experiment.run()
    module = copy.deepcopy(task.build(0)).eval()
    module.load_state_dict(experiment.model)
    train, losses = task.federation.train, []
    for client in range(len(task.federation)):
        features, label = train.batch(torch.arange(int(train.offsets[client]), int(train.offsets[client + 1])))
        losses.append(labels(module(**features), label).mean())
    torch.stack(losses).mean().backward()
    expected = {name: value.grad for name, value in module.named_parameters() if value.grad is not None}
    assert_close(full_gradient(task, experiment.model), expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(UserError, match="has running statistics"):
        conditioning(task, experiment.model)
