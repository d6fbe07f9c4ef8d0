"""A run that goes astray says so: while it does, in what it leaves, and wherever it is compared."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from command import execute, fedslice
from fedslice.config import assignments, request, resolve
from fedslice.core.errors import RunWarning
from fedslice.local import Exponential
from fedslice.papers.exhibits import Cell
from fedslice.papers.measured import Measured
from fedslice.papers.workers import Outcome
from fedslice.runs.comparison import table
from fedslice.runs.reading import read
from fedslice.runs.stopping import Target
from fedslice.training.experiment import Experiment

SET = ("clients=50", "items=60")
ASTRAY = ("hotcold", "--rounds", 4, "--eval-every", 2, "--set", *SET, "lr=1e9")
pytestmark = pytest.mark.usefixtures("elsewhere")


def experiment(lr: float, rounds: int = 4) -> Experiment:
    said = {"task": "hotcold", "rounds": rounds, "eval_every": 2, "set": {**assignments(SET), "lr": lr}}
    return resolve(request(said)).experiment()


def test_the_first_rejected_updates_are_told_once_with_their_share_and_their_round() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        astray = experiment(1e9)
        astray.run()
    first, last = [str(one.message) for one in told if one.category is RunWarning]
    assert first.startswith("round 1: 49 of 50 updates rejected because they contain NaN or infinity;")
    assert last == "diverged in round 2: 199 of 200 updates rejected."
    assert (astray.updates, astray.rejected) == (200, 199)


def test_a_run_without_rejected_updates_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fine = experiment(0.1)
        fine.run()
    assert fine.diverged is None


def stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients take no step from now on."""
    monkeypatch.setattr(
        Exponential, "factors", lambda self, t, steps, rounds: torch.zeros(len(steps), int(steps.max()))
    )


def test_a_run_that_recovers_has_not_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    astray = experiment(1e9)
    rows = astray.stream()
    with pytest.warns(RunWarning):
        next(rows), next(rows)
    assert astray.diverged is not None
    assert astray.diverged.round == 2
    stand_still(monkeypatch)
    for name, value in astray.task.initial(0).items():
        astray.model[name].copy_(value)
    next(rows)
    assert astray.diverged is None


def test_a_model_that_is_not_finite_has_diverged_though_no_update_was_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd = experiment(0.1)
    rows = odd.stream()
    next(rows)
    name = next(iter(odd.model))
    odd.model[name][0] = float("inf")
    stand_still(monkeypatch)
    with pytest.warns(RunWarning):
        list(rows)
    assert odd.diverged is not None
    assert odd.diverged.round == 2
    assert not odd.diverged.finite
    assert str(odd.diverged).endswith(", and its loss or model is not finite")


def test_a_diverged_run_says_so_on_the_terminal_in_its_document_and_in_its_directory() -> None:
    done = fedslice("run", *ASTRAY, "--out", "r")
    assert done.code == 0
    assert done.out.splitlines()[1] == "diverged in round 2: 199 of 200 updates rejected; this is no result"
    assert "fedslice: round 1: 49 of 50 updates rejected" in done.err
    expected = {"round": 2, "rejected": 199, "updates": 200, "finite": True}
    assert json.loads(Path("r/finished.json").read_text())["diverged"] == expected
    again = fedslice("run", *ASTRAY, "--out", "r", "--json").document
    assert again["diverged"] == read(Path("r")).diverged == expected
    assert fedslice("run", *ASTRAY[:-1], "--out", "fine", "--json").document["diverged"] is None


def test_divergence_survives_a_restart() -> None:
    said = {"task": "hotcold", "rounds": 4, "eval_every": 2, "set": {**assignments(SET), "lr": 1e9}}
    plan = resolve(request(said))

    def end(done: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.warns(RunWarning), pytest.raises(KeyboardInterrupt):
        execute(plan, Path("r"), resume=False, checkpoint_seconds=0, on_round=end)
    with pytest.warns(RunWarning, match="diverged in round 2: 199 of 200"):
        assert execute(plan, Path("r"), resume=True)["diverged"]["round"] == 2


def test_a_comparison_shows_no_result_of_a_diverged_recipe_and_does_not_let_it_reach_the_target() -> None:
    words = ("compare", *ASTRAY, "--recipes", "fedavg", "--target", "test_loss=1e30", "--out", "c")
    document = fedslice(*words, "--json").document
    (row,) = document["table"]
    assert row["diverged"] == 1
    assert row["train_loss"] is row["test_auc"] is None
    assert row["rounds_to_target_by_seed"] == [0], "before it diverged"
    shown = fedslice(*words).out
    assert "fedavg seed 0 diverged in round 2: 199 of 200 updates rejected" in shown
    assert shown.partition("At the end")[2].split().count("diverged") == 4, "in place of each score"


def document(diverged: int | None, *scores: float) -> dict[str, Any]:
    costs = {"up_bytes": 0, "down_bytes": 0}
    rows = [{"round": 10 * place, "test_auc": score, **costs} for place, score in enumerate(scores)]
    return {"recipe": "a", "seed": 0, "metrics": rows, "diverged": None if diverged is None else {"round": diverged}}


def test_what_comes_after_a_divergence_reaches_no_target() -> None:
    target = Target("test_auc", 0.6)
    assert table([document(None, 0.5, 0.55, 0.7)], target)[0]["reached"] == 1
    assert table([document(20, 0.5, 0.55, 0.7)], target)[0]["reached"] == 0
    assert table([document(20, 0.5, 0.65, 0.7)], target)[0]["rounds_to_target"] == 10


def test_an_exhibit_takes_no_best_score_and_no_target_from_after_a_divergence() -> None:
    rows = tuple(document(None, 0.5, 0.55, 0.7)["metrics"])
    cell = Cell(recipe="fedavg")
    fine, astray, never = (
        Measured(cell, (), (Outcome(directory="r", metrics=rows, diverged=at),), "test_auc") for at in (None, 20, 0)
    )
    assert (fine.best, fine.hits(0.6)) == ([0.7], [20])
    assert (astray.best, astray.hits(0.6), astray.score(1.0)) == ([0.55], [None], [0.7])
    assert never.missing == "r has no finite test_auc before it diverged in round 0."
