"""The command line from end to end: what it prints, what it leaves behind, and what it does not do twice."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from command import SMALL, TINY, fedslice, process, without_seconds
from fedslice import cli, console, tasks
from fedslice.combine import HeatCorrected
from fedslice.compare import Target, table
from fedslice.datasets import amazon as amazon_files
from fedslice.federation import Federation, Ragged
from fedslice.models import DIN
from fedslice.parts import World
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES
from fedslice.store import Store
from fedslice.task import Task
from fedslice.tasks import amazon
from fedslice.tasks.entry import Entry, Options
from layouts import REAL_DATA, write_amazon, write_movielens

RUN = {"task", "recipe", "seed", "source", "metrics"}
ROW = {"round", "train_loss", "test_loss", "test_auc", "test_accuracy", "up_bytes", "down_bytes", "rejected", "seconds"}
SUMMARY = {"recipe", "seeds", "target", "reached", "rounds_to_target", "up_bytes_to_target", "down_bytes_to_target"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def assert_close(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """The same cohorts (bytes are counted over them) and the same batches, whose losses agree to float tolerance."""
    assert [row.keys() for row in one] == [row.keys() for row in other]
    for mine, theirs in zip(one, other, strict=True):
        for name, value in mine.items():
            assert value == pytest.approx(theirs[name], rel=1e-4), name


# --- each command once as a process ---------------------------------------------------------------------------------


def test_run_as_a_process(tmp_path: Path) -> None:
    done = process("run", *SMALL, "--recipe", "fedsubavg", "--seed", "3", "--out", "r", "--json", cwd=tmp_path)
    document = done.document
    assert document.keys() == RUN
    assert (document["task"], document["recipe"], document["seed"]) == ("hotcold", "fedsubavg", 3)
    assert document["source"] == "generated (data_seed 0)"
    assert [row["round"] for row in document["metrics"]] == [0, 2, 4, 6]
    assert all(row.keys() == ROW for row in document["metrics"])
    assert "fedsubavg seed 3  round 6/6  train loss 0." in done.err
    assert done.err.endswith("run directory: r\n")
    logged = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in logged] == document["metrics"]


def test_compare_as_a_process(tmp_path: Path) -> None:
    words = (
        "compare",
        *SMALL,
        "--recipes",
        "fedavg,fedsubavg",
        "--target",
        "test_auc=0.99",
        "--seeds",
        2,
        "--out",
        "c",
    )
    done = process(*words, "--json", cwd=tmp_path)
    document = done.document
    assert document.keys() == {"task", "runs", "table"}
    assert [(run["recipe"], run["seed"]) for run in document["runs"]] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("fedsubavg", 0),
        ("fedsubavg", 1),
    ]
    assert all(run.keys() == RUN for run in document["runs"])
    for row, recipe in zip(document["table"], ("fedavg", "fedsubavg"), strict=True):
        assert row.keys() > SUMMARY | ROW | {"test_auc_std"}
        assert (row["recipe"], row["seeds"], row["reached"]) == (recipe, [0, 1], 0)
        assert row["rounds_to_target"] is row["up_bytes_to_target"] is None
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "fedavg-seed0",
        "fedavg-seed1",
        "fedsubavg-seed0",
        "fedsubavg-seed1",
    ]


def test_inspect_as_a_process(tmp_path: Path) -> None:
    done = process("inspect", "hotcold", "--set", *TINY, "--json", cwd=tmp_path)
    document = done.document
    assert document["task"] == "hotcold"
    assert document["clients"] == 30
    assert document["train_samples"] + document["test_samples"] == 30 * 12
    assert document["samples_per_client"].keys() == {"min", "median", "mean", "max"}
    assert document["feature_heat_dispersion"] >= 1
    (items,) = document["tables"]
    assert items["tables"] == ["item.weight", "bias.weight"]
    assert 0 < items["sparsity"] < 1
    assert items["rows"] == 40
    assert items["rows_per_client"]["max"] <= 12
    assert document["slice_bytes"]["max"] < document["model_bytes"]
    assert done.err == ""
    assert list(tmp_path.iterdir()) == []


def test_list_as_a_process(tmp_path: Path) -> None:
    done = process("list", "--json", cwd=tmp_path)
    document = done.document
    recipes = {row["recipe"]: row for row in document["recipes"]}
    assert recipes.keys() == RECIPES.keys()
    assert recipes["fedsubavg"] == {
        "recipe": "fedsubavg",
        "select": "uniform",
        "slices": "feature-rows",
        "local": "sgd",
        "codec": "dense",
        "combine": "heat",
        "server": "sgd",
    }
    settings = {(row["place"], row["part"]): row["settings"] for row in document["parts"]}
    assert settings["combine", "heat"] == ["weights", "estimator", "max_coef"]
    assert {row["task"]: row["needs"] for row in document["tasks"]}["hotcold"] == "nothing: it is generated"
    assert done.err == ""


# --- the same command, other words ----------------------------------------------------------------------------------


def test_a_command_repeats_to_the_bit() -> None:
    one = fedslice("run", *SMALL, "--out", "one", "--json")
    other = fedslice("run", *SMALL, "--out", "other", "--json")
    assert one.metrics == other.metrics
    assert fedslice("run", *SMALL, "--seed", "1", "--json").metrics != one.metrics


@pytest.mark.parametrize("choice", [("--engine", "sequential"), ("--chunk", "1"), ("--chunk", "4")])
def test_engine_and_chunk_change_neither_cohort_nor_batches(choice: tuple[str, str]) -> None:
    words = ("run", *SMALL, "--recipe", "fedsubavg", "--json")
    assert_close(fedslice(*words, *choice).metrics, fedslice(*words, "--engine", "vectorized").metrics)


def test_one_set_takes_several_assignments() -> None:
    together = fedslice("run", *SMALL, "lr=0.3", "iterations=2", "--out", "one", "--json")
    apart = fedslice("run", *SMALL, "--set", "lr=0.3", "--set=iterations=2", "--out", "other", "--json")
    named = fedslice("run", *SMALL, "local.lr=0.3", "local.iterations=2", "--out", "named", "--json")
    assert together.metrics == apart.metrics == named.metrics
    assert together.metrics != fedslice("run", *SMALL, "--json").metrics


def test_expand() -> None:
    words = ["run", "--set", "a=1", "b.c=2", "hotcold", "d=3", "--set=e=4", "f=5", "--json"]
    expected = ["run", "--set", "a=1", "--set", "b.c=2", "hotcold", "d=3", "--set=e=4", "--set", "f=5", "--json"]
    assert cli.expand(words) == expected


def test_an_experiment_file_is_the_same_as_options(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(
        """
        task = "hotcold"
        recipe = "fedsubavg"
        rounds = 6
        cohort = 6
        eval_every = 2
        seed = 4
        out = "from-file"
        [set]
        clients = 30
        items = 40
        samples = 12
        factors = 3
        lr = 0.2
        max_coef = 3.0
        """
    )
    said = fedslice("run", *SMALL, "lr=0.2", "max_coef=3.0", "--recipe", "fedsubavg", "--seed", "4", "--json")
    read = fedslice("run", "exp.toml", "--json")
    assert read.document["recipe"] == "fedsubavg"
    assert read.metrics == said.metrics
    assert (tmp_path / "from-file" / "finished.json").exists()

    over = fedslice("run", "exp.toml", "--seed", "5", "--set", "lr=0.4", "--rounds", "4", "--out", "over", "--json")
    assert over.document["seed"] == 5
    assert [row["round"] for row in over.metrics] == [0, 2, 4]
    config = json.loads((tmp_path / "over" / "config.json").read_text())
    assert config["recipe"]["local"]["lr"] == 0.4
    assert config["recipe"]["combine"]["max_coef"] == 3.0
    assert config["task"]["items"] == 40


def test_replaced_parts_make_the_same_recipe() -> None:
    named = fedslice("run", *SMALL, "--recipe", "fedsubavg", "--json")
    built = fedslice("run", *SMALL, "combine=heat", "slices=feature-rows", "--json")
    assert built.document["recipe"] == "fedavg"
    assert built.metrics == named.metrics


def test_no_words_is_help() -> None:
    done = fedslice()
    assert done.code == 0
    assert "compare" in done.out
    assert done.err == ""


# --- runs on disk ---------------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    words = ("run", *SMALL, "--json")
    first = fedslice(*words)
    (run,) = (tmp_path / "runs").iterdir()
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir()}
    again = fedslice(*words)
    assert again.document == first.document
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir()} == before
    assert again.err == f"run directory: {run.relative_to(tmp_path)}\n"


def test_a_comparison_takes_up_finished_runs(tmp_path: Path) -> None:
    alone = fedslice("run", *SMALL, "--recipe", "fedsubavg", "--json").document
    runs = {run["recipe"]: run for run in fedslice("compare", *SMALL, "--json").document["runs"]}
    assert runs["fedsubavg"] == alone
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_comparison_resumes() -> None:
    words = ("compare", *SMALL, "--out", "c", "--json")
    whole = fedslice(*words).document
    Path("c/fedsubavg-seed0/finished.json").unlink()
    assert "add --resume to continue it" in fedslice(*words).err
    resumed = fedslice(*words, "--resume").document
    assert [without_seconds(run) for run in resumed["runs"]] == [without_seconds(run) for run in whole["runs"]]


# --- comparisons ----------------------------------------------------------------------------------------------------


def settings_of(run: Path, place: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "config.json").read_text())["recipe"][place]
    return found


def test_a_setting_goes_to_the_recipes_that_have_it(tmp_path: Path) -> None:
    words = ("compare", *SMALL, "mu=0.5", "lr=0.2", "--recipes", "fedavg,fedprox", "--out", "c", "--json")
    runs = {run["recipe"]: run for run in fedslice(*words).document["runs"]}
    assert "mu" not in settings_of(tmp_path / "c" / "fedavg-seed0", "local")
    assert settings_of(tmp_path / "c" / "fedprox-seed0", "local")["mu"] == 0.5
    assert without_seconds(runs["fedavg"]) == fedslice("run", *SMALL, "lr=0.2", "--json").metrics
    prox = fedslice("run", *SMALL, "lr=0.2", "mu=0.5", "--recipe", "fedprox", "--json")
    assert without_seconds(runs["fedprox"]) == prox.metrics != without_seconds(runs["fedavg"])


def test_a_setting_of_a_replaced_part_reaches_it_in_any_order(tmp_path: Path) -> None:
    words = ("compare", *SMALL, "mu=0.5", "local=prox", "--recipes", "fedavg,fedprox", "--out", "c", "--json")
    one, other = fedslice(*words).document["runs"]
    assert settings_of(tmp_path / "c" / "fedavg-seed0", "local")["mu"] == 0.5
    assert without_seconds(one) == without_seconds(other)


def test_a_cohort_is_not_forced_on_a_recipe_without_one() -> None:
    document = fedslice("compare", *SMALL, "--recipes", "fedavg,feddd", "--json").document
    assert [row["recipe"] for row in document["table"]] == ["fedavg", "feddd"]


def test_a_recipe_named_twice_runs_once() -> None:
    document = fedslice("compare", *SMALL, "--recipes", "fedavg, fedavg", "--json").document
    assert [row["recipe"] for row in document["table"]] == ["fedavg"]


def test_seeds_count_from_the_first() -> None:
    document = fedslice("compare", *SMALL, "--recipes", "fedavg", "--seed", "7", "--seeds", "2", "--json").document
    assert document["table"][0]["seeds"] == [7, 8]
    assert without_seconds(document["runs"][1]) == fedslice("run", *SMALL, "--seed", "8", "--json").metrics


def test_a_comparison_reports_the_first_evaluation_that_reaches_the_target() -> None:
    plain = fedslice("run", *SMALL, "--json").metrics
    for metric, sign in (("train_loss", 1), ("test_auc", -1)):
        halfway = plain[2][metric]
        reached = next(row for row in plain if sign * row[metric] <= sign * halfway)
        words = ("compare", *SMALL, "--recipes", "fedavg", "--target", f"{metric}={halfway}", "--json")
        (row,) = fedslice(*words).document["table"]
        assert row["rounds_to_target"] == reached["round"]
        assert row["up_bytes_to_target"] == reached["up_bytes"]
        assert row["down_bytes_to_target"] == reached["down_bytes"]


def test_without_a_target_the_columns_are_null() -> None:
    (row,) = fedslice("compare", *SMALL, "--recipes", "fedavg", "--json").document["table"]
    assert row.keys() == SUMMARY | ROW | {"rounds_to_target_by_seed"}
    assert row["target"] is row["rounds_to_target"] is row["up_bytes_to_target"] is None


def run_of(seed: int, losses: list[float], scores: list[float | None]) -> dict[str, Any]:
    rows = [
        {
            "round": 10 * t,
            "train_loss": loss,
            "test_auc": score,
            "up_bytes": 100 * t,
            "down_bytes": 50 * t,
            "seconds": t,
        }
        for t, (loss, score) in enumerate(zip(losses, scores, strict=True))
    ]
    return {"task": "t", "recipe": "r", "seed": seed, "source": "s", "metrics": rows}


def test_a_loss_is_reached_from_above_and_a_score_from_below() -> None:
    runs = [run_of(0, [0.9, 0.5, 0.3], [None, 0.6, 0.8]), run_of(1, [0.9, 0.7, 0.5], [0.5, 0.7, 0.6])]
    (loss,) = table(runs, Target("train_loss", 0.5))
    assert loss["rounds_to_target_by_seed"] == [10, 20]
    assert (loss["reached"], loss["rounds_to_target"], loss["up_bytes_to_target"]) == (2, 15, 150)
    (score,) = table(runs, Target("test_auc", 0.7))
    assert score["rounds_to_target_by_seed"] == [20, 10]
    (some,) = table(runs, Target("test_auc", 0.75))
    assert (some["reached"], some["rounds_to_target_by_seed"], some["rounds_to_target"]) == (1, [20, None], None)
    assert some["train_loss"] == pytest.approx(0.4)
    assert some["train_loss_std"] == pytest.approx(0.1 * 2**0.5)


# --- tasks ----------------------------------------------------------------------------------------------------------


def test_central_sgd_sends_nothing() -> None:
    done = fedslice("run", *SMALL, "--recipe", "centralsgd", "--json")
    assert [row["up_bytes"] + row["down_bytes"] for row in done.metrics] == [0] * 4
    assert done.metrics[-1]["train_loss"] < done.metrics[0]["train_loss"]


@pytest.mark.parametrize(("variant", "zipped"), [("1m", True), ("1m", False), ("100k", False)])
def test_movielens(tmp_path: Path, variant: str, zipped: bool) -> None:
    data = write_movielens(tmp_path / "data", zipped=zipped, variant=variant)
    words = ("--data", data, "--set", f"variant={variant}")
    found = fedslice("inspect", "movielens", *words, "--json").document
    assert (found["clients"], found["train_samples"], found["test_samples"]) == (20, 320, 80)
    assert found["parameters"] == found["tables"][0]["rows"] == 9 + 30 * (1 + 2 + 7)
    done = fedslice("run", "movielens", *words, "--recipe", "fedsubavg", "--rounds", 5, "--cohort", 5, "--json")
    assert done.document["source"] == f"MovieLens-{variant.upper()}, 400 ratings"
    assert [row["round"] for row in done.metrics] == [0, 5]
    assert done.metrics[0]["train_loss"] == pytest.approx(np.log(2))
    assert done.metrics[1]["train_loss"] < done.metrics[0]["train_loss"]


def test_amazon_without_a_test_file_holds_out_tails(tmp_path: Path) -> None:
    data = write_amazon(tmp_path / "data")
    done = fedslice("run", "amazon", "--data", data, "--rounds", 2, "--cohort", 4, "--recipe", "fedsubavg", "--json")
    source = "Amazon Electronics, 360 ratings, last 20% of each user held out, histories real"
    assert done.document["source"] == source
    assert [row["round"] for row in done.metrics] == [0, 2]
    found = fedslice("inspect", "amazon", "--data", data, "--set", "holdout=0.33", "--json").document
    assert (found["train_samples"], found["test_samples"]) == (12 * 21, 12 * 9)


def test_amazon_with_a_test_file_uses_the_published_split(tmp_path: Path) -> None:
    data = write_amazon(tmp_path / "data", test_rows=5)
    done = fedslice("run", "amazon", "--data", data, "--rounds", 1, "--cohort", 4, "--set", "history=zeroed", "--json")
    source = "Amazon Electronics, 420 ratings, the published split by date, histories zeroed"
    assert done.document["source"] == source
    found = fedslice("inspect", "amazon", "--data", data, "--json").document
    assert (found["train_samples"], found["test_samples"]) == (360, 60)


def test_zeroed_histories_keep_their_lengths(tmp_path: Path) -> None:
    data = write_amazon(tmp_path / "data")
    real, zeroed = (amazon.ENTRY.build({"history": kind}, data).federation.train for kind in ("real", "zeroed"))
    one, other = real.features["history"], zeroed.features["history"]
    assert isinstance(one, Ragged)
    assert isinstance(other, Ragged)
    assert torch.equal(one.offsets, other.offsets)
    assert one.values.any()
    assert not other.values.any()
    assert torch.equal(real.label, zeroed.label)


def test_a_tail_is_the_last_rows_in_file_order_rounded_down() -> None:
    user = np.array([3, 1, 3, 3, 1, 3, 3, 2, 3, 3, 3, 3, 3], dtype=np.int32)
    assert np.flatnonzero(amazon.tail(user, 0.2)).tolist() == [11, 12]  # of ten; none of two, none of one
    assert np.flatnonzero(amazon.tail(user, 0.5)).tolist() == [4, 8, 9, 10, 11, 12]
    sizes = np.array([0, 1, 4, 5, 9, 10, 30])
    users = np.repeat(np.arange(7, dtype=np.int32), sizes)
    assert np.bincount(users[amazon.tail(users, 0.2)], minlength=7).tolist() == [0, 0, 0, 1, 1, 2, 6]


ELECTRONICS = REAL_DATA / "amazon_electronics_fedsubavg"
real_amazon = pytest.mark.skipif(not ELECTRONICS.is_dir(), reason=f"the real Amazon files are not in {REAL_DATA}")


@real_amazon
def test_the_real_amazon_split() -> None:
    federation = amazon.ENTRY.build({}, ELECTRONICS).federation
    assert (len(federation), len(federation.train), len(federation.test)) == (1859, 80_505, 19_205)


@real_amazon
def test_coefficients_are_those_the_authors_published() -> None:
    """T12: W/W_m over all training rows, a client's rows being its target items and the padding row."""
    rows = amazon_files.read(ELECTRONICS).train
    padding = Ragged(torch.zeros(len(rows), dtype=torch.int64), torch.arange(len(rows) + 1))
    federation = Federation.from_arrays(
        client=rows.user,
        features={"user": rows.user, "item": rows.item, "history": padding},
        label=rows.label.astype(np.int64),
        test=0.0,
    )
    tables = {"item.weight": ("item", "history")}
    task = Task(federation, lambda: DIN(amazon_files.USERS, amazon_files.ITEMS), amazon.cross_entropy, tables=tables)
    heat = HeatCorrected()
    heat.setup(World(task, 0, Store(len(federation)), Recipe()))
    found = heat.coefficients("item.weight")
    published = torch.tensor([float(line) for line in (ELECTRONICS / "item_coef.txt").read_text().split()])
    assert len(found) == len(published) == 33_136
    torch.testing.assert_close(found.double(), published.double(), rtol=1e-3, atol=0)
    assert found[23768].item() == pytest.approx(6.002287503, rel=1e-6)
    assert found[0].item() == 1
    assert found.max().item() == 99_710
    assert int((found == 1).sum()) == 3_988


# --- what a person reads --------------------------------------------------------------------------------------------


def assert_readable(text: str, width: int = 80) -> None:
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_tables_fit_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    run = fedslice("run", *SMALL, "--recipe", "submodelavg")
    assert_readable(run.out)
    assert run.out.startswith("submodelavg on hotcold, seed 0: generated (data_seed 0)\n")
    assert "round    loss    loss     auc  accuracy" in run.out
    assert "rejected" not in run.out
    words = ("compare", *SMALL, "--recipes", "fedavg,submodelavg,centralsgd", "--seeds", "2")
    compare = fedslice(*words, "--target", "test_auc=0.99")
    assert_readable(compare.out)
    assert "until test_auc=0.99\n" in compare.out
    assert "0 of 2" in compare.out
    assert "±0." in compare.out
    for command in (("inspect", "hotcold", "--set", *TINY), ("list",)):
        assert_readable(fedslice(*command).out)
    monkeypatch.setenv("COLUMNS", "40")
    narrow = fedslice(*words, "--target", "test_auc=0.99").out
    assert narrow.partition("until")[2] == compare.out.partition("until")[2]  # runs over the edge, uncut


def test_tables_hold_large_and_missing_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "round": 123_456,
        "train_loss": 1.5e30,
        "test_loss": None,
        "test_auc": 0.5,
        "test_accuracy": 0.5,
        "up_bytes": 999_999_999_999,
        "down_bytes": 99_960,
        "rejected": 1234,
        "seconds": 86_400.0,
    }
    document = {"recipe": "submodelavg", "task": "t", "seed": 0, "source": "s", "metrics": [row] * 100}
    console.show(console.run_tables(document))
    text = capsys.readouterr().out
    assert_readable(text)
    assert text.splitlines()[-2].split() == [
        *("123,456", "1.5e+30", "-", "0.5000", "0.5000"),
        *("1.00", "TB", "100", "kB", "1,234", "86,400.0", "s"),
    ]
    assert len(text.splitlines()) < 30


def test_progress_on_a_terminal_is_a_bar_with_metrics_and_time_left() -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, force_interactive=True, width=80, color_system=None)
    with console.Follow(terminal, "fedsubavg seed 0", 200) as progress:
        for done in range(100, 150):
            progress.round(done)
        progress.row({"round": 150, "train_loss": 0.5, "test_auc": 0.75, "up_bytes": 3})
        progress._live.refresh()
    shown = screen.getvalue()
    assert "fedsubavg seed 0 ━━━" in shown
    assert "149/200 rounds" in shown
    assert "0:00:0" in shown
    assert "train loss 0.5000  test auc 0.7500" in shown
    assert "round 150/200" not in shown


def test_progress_elsewhere_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([50.0, 60.0, 950.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now))
    paper = io.StringIO()
    with console.Follow(Console(file=paper, width=40), "fedavg seed 0", 200) as progress:
        progress.round(100)  # resumed there
        for done, loss in ((100, 0.7), (110, 0.6), (150, None), (200, 0.5)):
            progress.row({"round": done, "train_loss": loss, "up_bytes": 3})
    assert paper.getvalue().splitlines() == [
        "fedavg seed 0  round 100/200  train loss 0.7000",
        "fedavg seed 0  round 110/200  train loss 0.6000  90 s left",
        "fedavg seed 0  round 150/200  train loss -  15 min left",
        "fedavg seed 0  round 200/200  train loss 0.5000",
    ]


class Branching(nn.Module):
    """Looks at its data to decide what to do, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x if x.sum() > 0 else -x).squeeze(-1)
        return out


def branching(options: Options, data: Path | None) -> Task:
    x = np.random.default_rng(0).normal(size=(60, 2))
    features, client = {"x": x}, np.arange(60) // 6
    federation = Federation.from_arrays(client=client, features=features, label=(x[:, 0] > 0).astype(float))
    return Task(federation, Branching, nn.BCEWithLogitsLoss(reduction="none"), name="branching")


def test_a_model_that_cannot_be_vectorised_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("branching", "for this test", "nothing", Options, branching)
    monkeypatch.setitem(tasks.TASKS, "branching", entry)
    words = ("run", "branching", "--rounds", 2, "--cohort", 3, "--eval-every", 1)
    done = fedslice(*words)
    assert done.code == 0
    (line,) = [line for line in done.err.splitlines() if "engine" in line]
    assert line.startswith("fedavg seed 0: sequential engine, for vmap cannot carry this model (")
    assert "engine" not in fedslice(*words, "--engine", "sequential").err
    assert "engine" not in fedslice("run", *SMALL).err
