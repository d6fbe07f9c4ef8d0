"""Whatever a module has, it trains as in plain PyTorch, on both engines, or is refused by one clear sentence."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from fedslice.measure.heat import _counted
from fedslice.training.engines.vectorized import NotVectorizableError
from fedslice.training.experiment import Experiment
from kinds import KINDS, WORDS, averaged
from toys import assert_close

ONE, THREE = (9,), (8, 5, 12)
ONE_BY_ONE = ("gru", "lstm", "rnn", "batchnorm-cumulative")  # vmap cannot carry them


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("sizes", [ONE, THREE], ids=["one", "three"])
def test_training_is_plain_pytorchs(name: str, sizes: tuple[int, ...], engine: str) -> None:
    """Federated averaging of what one optimizer of PyTorch makes of one module for each client."""
    task, recipe = KINDS[name].task(sizes), KINDS[name].recipe(cohort=len(sizes))
    experiment = Experiment(task, recipe, rounds=2, engine=engine, chunk=len(sizes))
    if engine == "vectorized" and name in ONE_BY_ONE:
        with pytest.raises(NotVectorizableError, match="use engine=sequential, or auto, which finds out by itself"):
            experiment.run()
        assert Experiment(task, recipe, rounds=1).engine.engine.label == "sequential"
        return
    experiment.run()
    expected = averaged(task, recipe, 2)
    assert_close(experiment.model, {key: expected[key] for key in experiment.model}, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", KINDS)
def test_packed_messages_carry_the_same_run(name: str) -> None:
    task, recipe = KINDS[name].task(), KINDS[name].recipe()
    memory, packed = (Experiment(task, recipe, rounds=2, engine="sequential", wire=wire) for wire in (False, True))
    rows = [memory.run(), packed.run()]
    assert_close(memory.model, packed.model, rtol=1e-12, atol=1e-15)
    assert [row["up_bytes"] for row in rows[0]] == [row["up_bytes"] for row in rows[1]]


def test_lookups_of_padding_would_be_wrong_by_themselves() -> None:
    """PyTorch's own padding under ``vmap`` holds still the row of the first client alone; the checks above see it."""
    ids, tables = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 4, 1, requires_grad=True)
    torch.func.vmap(lambda own, table: torch.nn.functional.embedding(own, table, 0))(ids, tables).sum().backward()
    assert tables.grad is not None
    assert tables.grad[:, 0, 0].tolist() == [0.0, 3.0], "PyTorch is mended: fedslice.network.padding can go"


@pytest.mark.parametrize("combine", ["mean", "heat"])
def test_a_padding_row_neither_moves_nor_counts_as_held(combine: str) -> None:
    kind = KINDS["padding_idx-table"]
    task, recipe = kind.task(), kind.recipe(slices="feature-rows", combine=combine)
    experiment = Experiment(task, recipe, rounds=3)
    experiment.run()
    start = task.initial(0)["table.weight"]
    assert torch.equal(experiment.model["table.weight"][0], start[0])
    assert not torch.equal(experiment.model["table.weight"][1:], start[1:])
    (sets,) = task.index_sets
    assert int(sets.heat[0]) == len(task.federation)  # it is everyone's, like a dense parameter
    assert len(_counted(sets)) == WORDS - 1


def test_frozen_parameters_do_not_travel() -> None:
    kind = KINDS["frozen"]
    task, recipe = kind.task(), kind.recipe()
    experiment = Experiment(task, recipe, rounds=2, wire=True)
    row = experiment.run()[-1]
    frozen = task.module.inner[0].weight
    assert "inner.0.weight" not in experiment.model
    numbers = sum(value.numel() for value in experiment.model.values())
    assert row["up_bytes"] == 2 * 3 * numbers * frozen.element_size()
    assert numbers + frozen.numel() == sum(p.numel() for p in task.module.parameters())


def test_tied_weights_are_one_parameter() -> None:
    kind = KINDS["tied"]
    experiment = Experiment(kind.task(), kind.recipe(), rounds=1)
    assert [*experiment.model] == ["table.weight"]


@pytest.mark.parametrize("name", ["named-outputs", "outputs"])
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_metrics_get_outputs_as_they_are(name: str, engine: str) -> None:
    kind, found = KINDS[name], []

    def right(outputs: Any, label: Tensor) -> float:
        found.append(type(outputs))
        classes = outputs["classes"] if name == "named-outputs" else outputs[0]
        size = outputs["size"] if name == "named-outputs" else outputs[1]
        assert len(classes) == len(size) == len(label)
        return float((classes.argmax(1) == label).double().mean())

    task = dataclasses.replace(kind.task(), metrics={"right": right})
    experiment = Experiment(task, kind.recipe(), rounds=1, engine=engine, measure=["personal"])
    row = experiment.run()[-1]
    assert set(found) == {dict if name == "named-outputs" else tuple}
    module = copy.deepcopy(task.build(0)).eval()
    module.load_state_dict(experiment.model)
    features, label = task.federation.test.batch(torch.arange(len(task.federation.test)))
    assert row["test_right"] == pytest.approx(right(module(**features), label))
    assert row["test_loss"] == pytest.approx(float(task.loss(module(**features), label).mean().detach()))
    assert 0 <= row["personal_right"] <= 1


@pytest.mark.parametrize("name", ["transformer", "attention"])
def test_clients_scores_on_both_engines(name: str) -> None:
    """Attention is computed in evaluation as in training, under ``vmap`` too."""
    kind, rows = KINDS[name], []
    for engine in ("sequential", "vectorized"):
        experiment = Experiment(kind.task(), kind.recipe(), rounds=1, engine=engine, measure=["personal"])
        rows.append(experiment.run()[-1])
    assert rows[0]["personal_loss"] == pytest.approx(rows[1]["personal_loss"], rel=1e-9)
    assert torch.backends.mha.get_fastpath_enabled()
