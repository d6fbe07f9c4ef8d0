"""The command line from end to end: what it prints, what it leaves behind, and what it does not do twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from command import SMALL, TINY, fedslice, process, without_seconds
from fedslice import cli
from fedslice.recipes import ABOUT, RECIPES
from fedslice.runs.comparison import table
from fedslice.runs.stopping import Target

pytestmark = pytest.mark.usefixtures("elsewhere")
RUN = {"task", "recipe", "seed", "source", "metrics", "diverged", "stopped"}
COSTS = {"up_bytes", "down_bytes", "enrol_bytes", "framing_bytes", "rejected", "seconds"}
ROW = {"round", "train_loss", "test_loss", "test_auc", "test_accuracy", *COSTS}
SUMMARY = {"recipe", "seeds", "target", "reached", "diverged"} | {
    f"{name}_to_target" for name in ("rounds", "up_bytes", "down_bytes")
}


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
        "about": ABOUT["fedsubavg"],
        "select": "uniform",
        "slices": "feature-rows",
        "local": "plain",
        "codec": "dense",
        "combine": "heat",
        "server": "sgd",
        "set": {"slices": "feature-rows", "combine": "heat"},
    }
    settings = {(row["place"], row["part"]): row["settings"] for row in document["parts"]}
    assert settings["combine", "heat"] == ["weights", "estimator", "max_coef", "heat_source", "epsilon", "shrink"]
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
    assert config["recipe"]["local"]["optimizer"]["lr"] == 0.4
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
    assert "prox" not in settings_of(tmp_path / "c" / "fedavg-seed0", "local")
    assert settings_of(tmp_path / "c" / "fedprox-seed0", "local")["prox"]["mu"] == 0.5
    assert without_seconds(runs["fedavg"]) == fedslice("run", *SMALL, "lr=0.2", "--json").metrics
    prox = fedslice("run", *SMALL, "lr=0.2", "mu=0.5", "--recipe", "fedprox", "--json")
    assert without_seconds(runs["fedprox"]) == prox.metrics != without_seconds(runs["fedavg"])


def test_a_setting_of_a_replaced_part_reaches_it_in_any_order(tmp_path: Path) -> None:
    words = ("compare", *SMALL, "mu=0.5", "local=prox", "--recipes", "fedavg,fedprox", "--out", "c", "--json")
    one, other = fedslice(*words).document["runs"]
    assert settings_of(tmp_path / "c" / "fedavg-seed0", "local")["prox"]["mu"] == 0.5
    assert without_seconds(one) == without_seconds(other)


def test_a_cohort_is_not_forced_on_a_recipe_without_one() -> None:
    document = fedslice("compare", *SMALL, "--recipes", "fedavg,feddd", "--json").document
    assert [row["recipe"] for row in document["table"]] == ["fedavg", "feddd"]


def test_a_recipe_named_twice_is_refused() -> None:
    for command in (("compare", *SMALL), ("reproduce", "fedsubavg/table2")):
        done = fedslice(*command, "--recipes", "fedavg, fedprox,fedavg")
        assert (done.code, done.out) == (2, "")
        assert done.err == "fedslice: --recipes names 'fedavg' 2 times; name each recipe once.\n"
    assert not list(Path().iterdir())


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
