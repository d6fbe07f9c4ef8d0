"""Settings that a paper leaves open: a grid, one rule, as many tries for everyone, seeds that are not reported."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console

from fedslice.core.errors import UserError
from fedslice.papers import show
from fedslice.papers.exhibits import Cell, Exhibit, Line, Setup, Sweep, Training
from fedslice.papers.files import load
from fedslice.papers.jobs import Job, Order, job
from fedslice.papers.make import make
from fedslice.papers.measured import Measured
from fedslice.papers.sweep import Swept, Try
from fedslice.papers.workers import Outcome

SET = {"clients": 30, "items": 40, "samples": 12, "factors": 3, "cohort": 6, "batch_size": 4, "lr": 0.5}
SWEEP = Sweep(seeds=(100, 101), rounds=10, grids={"fedavg": {"lr": (0.1, 2.0)}, "fedsubavg": {"lr": (0.5, 1.0)}})
TRAINING = Training(rounds=20, eval_every=5, metric="test_auc", target=0.55, sweep=SWEEP)
SETUP = Setup(task="hotcold", reading="tuned", set=SET, training=TRAINING)
CELLS = (Cell(recipe="fedavg", rounds="20+"), Cell(recipe="fedsubavg", rounds=10), Cell(recipe="fedprox", rounds=10))
EXHIBIT = Exhibit(title="small", kind="rounds", method="fedsubavg", row=(Line(paper="a", setups=("s",), cells=CELLS),))


def order(out: Path, **changes: Any) -> Order:
    quiet = Console(file=io.StringIO())
    return Order(**{"data": None, "out": out, "seeds": 2, "scale": 1.0, "jobs": 2, "console": quiet} | changes)


def one_try(lr: float, curves: list[list[float | None]], metric: str = "train_loss", target: float = 0.5) -> Try:
    """A try whose runs have these scores, one per round."""
    outcomes = [Outcome("d", None, tuple({"round": t, metric: s} for t, s in enumerate(curve))) for curve in curves]
    jobs: list[Job] = [job(SETUP, CELLS[0], 100 + n, order(Path())) for n in range(len(curves))]
    return Try({"lr": lr}, Measured(CELLS[0], jobs, outcomes, metric), target)


def test_every_recipe_has_as_many_tries() -> None:
    with pytest.raises(ValidationError, match="same number of tries"):
        Sweep(seeds=(100,), grids={"fedavg": {"lr": (0.1, 0.2)}, "fedadam": {"tau": (0.1, 0.2, 0.3)}})
    two = Sweep(seeds=(100,), grids={"fedavg": {"lr": (0.1, 0.2)}, "fedadam": {"tau": (0.1,), "lr": (1.0, 2.0)}})
    assert two.tries("fedadam") == [{"tau": 0.1, "lr": 1.0}, {"tau": 0.1, "lr": 2.0}]
    assert two.tries("fedprox") == []


def test_fewest_rounds_then_the_best_score_then_the_first() -> None:
    never = one_try(0.1, [[0.9, 0.51], [0.9, 0.52]])
    once = one_try(0.2, [[0.9, 0.4], [0.9, 0.8]])  # one seed does not reach it: no better than never, by rounds
    late = one_try(0.3, [[0.9, 0.8, 0.4], [0.9, 0.8, 0.4]])
    soon = one_try(0.4, [[0.9, 0.49, 0.48], [0.9, 0.49, 0.48]])
    better = one_try(0.5, [[0.9, 0.49, 0.3], [0.9, 0.49, 0.3]])
    broken = one_try(0.6, [[None, None], [None, None]])
    assert Swept((never, once, late, soon, better, broken)).settings == {"lr": 0.5}
    assert Swept((broken, never, once, late)).settings == {"lr": 0.3}
    assert Swept((broken, once, never)).settings == {"lr": 0.1}, "mean best 0.515 against 0.6"
    assert Swept((soon, soon)).settings is soon.settings
    assert Swept((broken, never)).settings == {"lr": 0.1}
    assert Swept().settings == {}


def test_a_score_that_should_rise_is_chosen_from_above() -> None:
    low, high = (one_try(lr, [[0.5, best]], "test_auc", 0.9) for lr, best in ((0.1, 0.6), (0.2, 0.7)))
    assert Swept((low, high)).settings == {"lr": 0.2}


@given(st.lists(st.lists(st.floats(0.01, 2.0), min_size=2, max_size=2), min_size=1, max_size=6), st.randoms())
def test_the_choice_does_not_depend_on_the_order_of_different_tries(ends: list[list[float]], chance: Any) -> None:
    tries = [one_try(float(n), [[3.0, end] for end in pair]) for n, pair in enumerate(ends)]
    ranks = {one.rank for one in tries}
    before = Swept(tuple(tries)).settings
    shuffled = chance.sample(tries, len(tries))
    after = Swept(tuple(shuffled)).settings
    assert before == after or len(ranks) < len(tries)


def test_tries_are_run_chosen_and_shown(tmp_path: Path) -> None:
    document = make("x/small", EXHIBIT, {"s": SETUP}, order(tmp_path))
    cells = {cell["recipe"]: cell for cell in document["rows"][0]["cells"]}
    for recipe, values in (("fedavg", (0.1, 2.0)), ("fedsubavg", (0.5, 1.0))):
        tries = cells[recipe]["sweep"]
        assert [one["settings"] for one in tries] == [{"lr": lr} for lr in values]
        assert all(one["seeds"] == [100, 101] and len(one["best"]["by_seed"]) == 2 for one in tries)
        (chosen,) = [one for one in tries if one["chosen"]]
        assert cells[recipe]["settings"]["lr"] == chosen["settings"]["lr"]
        assert f"lr={chosen['settings']['lr']:g}" in " ".join(run["command"] for run in cells[recipe]["runs"])
        assert [run["seed"] for run in cells[recipe]["runs"]] == [0, 1]
    assert cells["fedprox"]["sweep"] == []
    assert cells["fedprox"]["settings"]["lr"] == 0.5
    page = show.markdown(document)
    assert "all tries, on seeds 100, 101" in page
    assert page.count("chosen |") == 2


def test_the_lengths_of_tries_and_runs(tmp_path: Path) -> None:
    tried = job(SETUP, CELLS[0], 100, order(tmp_path), {"lr": 2.0}, SWEEP.rounds).request
    told = job(SETUP, CELLS[0], 0, order(tmp_path), {"lr": 2.0}).request
    assert (tried.rounds, told.rounds) == (10, 20)
    assert tried.set == told.set


def test_a_cells_own_setting_is_not_swept(tmp_path: Path) -> None:
    cell = Cell(recipe="fedavg", set={"lr": 0.3})
    assert job(SETUP, cell, 0, order(tmp_path), {"lr": 2.0}).request.set["lr"] == 0.3


def test_seeds_that_choose_are_never_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"seeds=101 would report seed 100.*give at most 100"):
        make("x/small", EXHIBIT, {"s": SETUP}, order(tmp_path, seeds=101))
    assert not list(tmp_path.iterdir())


def test_a_try_that_cannot_run_is_shown_and_not_chosen(tmp_path: Path) -> None:
    sweep = Sweep(seeds=(100,), rounds=5, grids={"fedavg": {"lr": (-1.0, 0.5)}})
    setup = SETUP.model_copy(update={"training": TRAINING.model_copy(update={"sweep": sweep})})
    line = Line(paper="a", setups=("s",), cells=CELLS[:1])
    document = make("x", Exhibit(title="t", kind="rounds", row=(line,)), {"s": setup}, order(tmp_path, seeds=1))
    bad, good = document["rows"][0]["cells"][0]["sweep"]
    assert "lr=-1.0" in bad["error"]
    assert (bad["chosen"], good["chosen"]) == (False, True)
    assert "greater than 0" in show.markdown(document)


@pytest.mark.parametrize(("paper", "tries"), [("MovieLens", 5), ("Sent140", 3), ("Amazon", 3)])
def test_what_the_paper_leaves_open_is_swept(paper: str, tries: int) -> None:
    """FedAdam's tau in every reading; in a reading that tunes every method, each of its cells has as many tries."""
    exhibit, setups = load("fedsubavg/table2")
    line = next(line for line in exhibit.row if line.paper == paper)
    assert sum("of every method" in setups[name].reading for name in line.setups) == 1
    for name in line.setups:
        sweep = setups[name].trained.sweep
        assert sweep is not None
        assert min(sweep.seeds) >= 100
        assert len(sweep.tries("fedadam")) == tries
        assert "tau" not in setups[name].trained.recipes["fedadam"]
        if "of every method" in setups[name].reading:
            assert {len(sweep.tries(cell.recipe)) for cell in line.cells} == {tries}
