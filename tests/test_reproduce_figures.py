"""FedDD's figures: settings and claims as data, what is judged and how, and small runs of each kind."""

import io
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from rich.console import Console

from fedslice.config import build_task
from fedslice.core.errors import UserError
from fedslice.data.ways import RARE
from fedslice.papers import show, workers
from fedslice.papers.claims import judged
from fedslice.papers.exhibits import Cell, Claim, Exhibit, Line, Setup, Training
from fedslice.papers.files import _checked, load, names
from fedslice.papers.jobs import Job, Order, by_group, job
from fedslice.papers.make import make
from fedslice.papers.measured import Measured, Reading
from fedslice.papers.progress import Progress
from fedslice.papers.workers import Outcome
from fedslice.runs.directory import RunDirectory
from test_datasets_idx import write_idx

FIGURES = [name for name in names() if name.startswith("feddd/")]
# What the text says in numbers (FedDD, sections 6.3 to 6.6), by setup: gaps in accuracy, shares of time saved, falls.
GAPS = {
    "cifar10-iid": {("feddd", "oort"): 0.036},
    "mnist-non-iid-a": {("feddd", "fedcs"): 0.015},
    "fmnist-non-iid-a": {("feddd", "oort"): 0.017, ("feddd", "fedcs"): 0.022},
    "cifar10-non-iid-a": {("feddd", "fedcs"): 0.038},
    "mnist-non-iid-b": {("feddd", "oort"): 0.015, ("feddd", "fedcs"): 0.055},
    "fmnist-non-iid-b": {("feddd", "oort"): 0.025, ("feddd", "fedcs"): 0.047},
    "cifar10-non-iid-b": {("feddd", "oort"): 0.021, ("feddd", "fedcs"): 0.083},
    "cifar10-hetero-a-non-iid-a": {("feddd", "fedcs"): 0.175},
    "cifar10-hetero-a-non-iid-b": {
        ("fedavg", "feddd"): 0.036,
        ("feddd", "oort"): 0.209,
        ("feddd", "fedcs"): 0.172,
    },
    "cifar10-hetero-b-non-iid-a": {("feddd", "oort"): 0.049, ("feddd", "fedcs"): 0.306},
    "cifar10-hetero-b-non-iid-b": {("feddd", "oort"): 0.262, ("feddd", "fedcs"): 0.336},
}
SAVED = {
    ("mnist-iid", "fedavg"): (0.735, None),
    ("mnist-iid", "fedcs"): (0.515, None),
    ("mnist-iid", "oort"): (0.415, None),
    ("cifar10-non-iid-b", "fedavg"): (0.599, None),
    ("a", "fedavg"): (0.756, 0.797),
    ("a", "fedcs"): (0.471, 0.835),
    ("a", "oort"): (0.562, 0.786),
    ("b", "fedavg"): (0.662, 0.817),
    ("b", "fedcs"): (0.506, 0.602),
    ("b", "oort"): (0.230, 0.627),
}
FALLS = {"feddd": (0.001, 0.115), "fedcs": (0.037, 0.475), "oort": (0.023, 0.430)}
EPOCHS = {"mnist": 1, "fmnist": 3, "cifar10": 5}
QUIET = Console(file=io.StringIO())


def order(out: Path, **changes: Any) -> Order:
    return Order(**{"data": None, "out": out, "seeds": 2, "scale": 1.0, "jobs": 1, "console": QUIET} | changes)


def said(*figures: str) -> list[tuple[str, Claim]]:
    """Claims by setup; a smaller reading of a setup has the same ones."""
    return [
        (setup, claim)
        for name in figures
        for line in load(f"feddd/{name}")[0].row
        for claim in line.claims
        for setup in line.setups
        if "-tenth-" not in setup and "-small-" not in setup
    ]


def keys(out: Path, *figures: str) -> set[str]:
    found = set()
    for name in figures:
        exhibit, setups = load(f"feddd/{name}")
        for line in exhibit.row:
            found |= {job(setups[one], cell, 0, order(out)).key for one in line.setups for cell in line.cells}
    return found


# --- the data ---------------------------------------------------------------------------------------------------


def test_the_figures() -> None:
    numbers = (4, 5, 6, 7, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21)
    assert [f"feddd/fig{number}" for number in numbers] == FIGURES


def test_the_claims_have_the_papers_numbers() -> None:
    gaps: dict[str, dict[tuple[str, str], float]] = {}
    for setup, claim in said("fig4", "fig5", "fig6", "fig9"):
        if claim.by is not None:
            gaps.setdefault(setup, {})[claim.first, claim.second] = claim.by
    assert gaps == GAPS
    saved = {}
    for setup, claim in said("fig7", "fig10"):
        if claim.by is not None:
            models = setup.split("-")[2] if "hetero" in setup else setup
            assert saved.setdefault((models, claim.second), (claim.by, claim.to)) == (claim.by, claim.to)
    assert saved == SAVED
    for _, claim in said("fig16", "fig17"):
        if claim.says == "falls":
            recipe = claim.first.removesuffix(" budget=0.8")
            assert claim.second == f"{recipe} budget=0.2"
            assert (claim.by, claim.to) == FALLS[recipe]
    (final,) = [cell.final for line in load("feddd/fig9")[0].row for cell in line.cells if cell.final is not None]
    assert final == 0.606


def test_the_classes_have_the_papers_numbers() -> None:
    mnist, fmnist, cifar = ({cell.recipe: cell.classes for cell in line.cells} for line in load("feddd/fig21")[0].row)
    zero = {str(label): (0.0,) for label in RARE}
    assert mnist["fedcs"] == cifar["fedcs"] == cifar["oort"] == zero
    assert mnist["oort"] == {"1": (0.367,), "2": (0.12,)}
    assert mnist["feddd"] == {str(label): (0.85, 0.962) for label in range(10)}
    assert (fmnist["fedcs"], fmnist["oort"]) == ({"1": (0.0,), "2": (0.01,)}, {"0": (0.018,), "1": (0.278,)})
    assert fmnist["feddd"] == {"0": (0.831,), "1": (0.949,), "2": (0.593,)}
    assert cifar["feddd"] == {str(label): (0.236, 0.572) for label in RARE}


@pytest.mark.parametrize("name", FIGURES)
def test_the_settings_are_the_papers(name: str, tmp_path: Path) -> None:
    """Table 4, and the same batches, rate and devices for everyone."""
    exhibit, setups = load(name)
    for line in exhibit.row:
        for one in line.setups:
            setup = setups[one]
            for cell in line.cells:
                asked = job(setup, cell, 0, order(tmp_path)).request
                own = asked.set
                usual = (20, 1, 10) if "small" in one else (100, EPOCHS[setup.task], 32)
                assert (own["clients"], own["epochs"], own["batch_size"]) == usual
                assert asked.devices == "feddd"
                assert (asked.measure == ["class-accuracy"]) == (name == "feddd/fig21")
                budget = 0.2 if name == "feddd/fig21" else 0.6
                assert own.get("budget") == (None if cell.recipe == "fedavg" else cell.set.get("budget", budget))
                assert own.get("select") == ("everyone" if cell.recipe == "fedavg" else None)
                if cell.recipe == "feddd":
                    assert (own["most"], own["full_every"]) == (0.8, cell.set.get("full_every", 5))
                kind = setup.reading[-1] if "heterogeneous" in setup.reading else None
                assert own.get("widths") == (kind and f"feddd-{kind}")
                assert own.get("model") == (kind and f"vgg-{kind}1")
                named = "imbalanced" if name == "feddd/fig21" else setup.reading.split(",")[0].lower()
                assert own["partition"] == named


def test_who_trains_everyone_begins_first(tmp_path: Path) -> None:
    """A selection of 60 % takes less time: begun last, it keeps no core waiting for the others."""
    exhibit, setups = load("feddd/fig4")
    line = exhibit.row[0]
    jobs = [job(setups[line.setups[0]], cell, 0, order(tmp_path)) for cell in line.cells]
    (begun,) = by_group(jobs).values()
    assert [one.request.recipe for one in begun] == ["fedavg", "feddd", "fedcs", "oort"]
    assert begun[2].work == pytest.approx(0.6 * begun[0].work)


def test_figures_of_the_same_runs_share_them(tmp_path: Path) -> None:
    assert keys(tmp_path, "fig7") == keys(tmp_path, "fig4", "fig5", "fig6")
    assert keys(tmp_path, "fig10") == keys(tmp_path, "fig9")
    assert len(keys(tmp_path, "fig16") & keys(tmp_path, "fig5", "fig6")) == 18, "a budget of 60 % is the usual one"
    assert len(keys(tmp_path, "fig19") & keys(tmp_path, "fig4", "fig5", "fig6")) == 4, "and so is a period of 5"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"first": "fedavgg"}, "a claim speaks of 'fedavgg', which is none of fedavg, fedprox"),
        ({"target": 0.7}, "a claim needs a target that the row has, found 0.7"),
        ({"by": 1.5}, "by"),
    ],
)
def test_claims_about_what_is_not_there_are_refused(changes: dict[str, Any], words: str) -> None:
    claim = {"first": "fedavg", "says": "sooner", "second": "fedprox"} | changes
    cells = [{"recipe": "fedavg"}, {"recipe": "fedprox"}]
    row = {"paper": "p", "setups": ["s"], "cells": cells, "claims": [claim], "targets": [0.5]}
    with pytest.raises(UserError) as caught:
        _checked(Exhibit, {"title": "t", "kind": "time", "row": [row]}, "here")
    assert words in str(caught.value)
    fine = row | {"claims": [{"first": "fedavg", "says": "sooner", "second": "fedprox"}]}
    _checked(Exhibit, {"title": "t", "kind": "time", "row": [fine]}, "here")
    with pytest.raises(UserError, match="needs a target"):
        _checked(Exhibit, {"title": "t", "kind": "time", "row": [fine | {"targets": []}]}, "here")


# --- data folders and scale -------------------------------------------------------------------------------------


def test_every_data_set_has_its_folder_and_generated_pictures_stand_in(tmp_path: Path) -> None:
    setups = load("feddd/fig4")[1]
    for name, folder, seed in (("mnist-iid", "mnist", 1), ("fmnist-iid", "fashion-mnist", 2)):
        write_idx(tmp_path / folder, train=200, test=20)
        task = build_task(order(tmp_path, data=tmp_path).request(setups[name], setups[name].set | {"data_seed": seed}))
        assert setups[name].stands_in(task.source) is None
        task = build_task(order(tmp_path).request(setups[name], setups[name].set | {"train": 200}))
        assert setups[name].stands_in(task.source) == "generated pictures"
    asked = order(tmp_path, data=tmp_path / "mnist").request(setups["fmnist-iid"], {})
    with pytest.raises(UserError, match=r"mnist.fashion-mnist is not a folder"):
        build_task(asked)  # and not MNIST's files, which have the same names
    deep = tmp_path / "other" / "FashionMNIST" / "raw"
    deep.mkdir(parents=True)
    assert order(tmp_path, data=tmp_path / "other").request(setups["fmnist-iid"], {}).data == str(deep)


def test_a_scaled_figure_has_fewer_images(tmp_path: Path) -> None:
    setup, cell = load("feddd/fig4")[1]["mnist-iid"], Cell(recipe="fedavg")
    for scale, images in ((1.0, None), (0.5, 30_000), (0.001, 2_000)):
        asked = job(setup, cell, 0, order(tmp_path, scale=scale)).request
        assert asked.set.get("train") == images
    assert setup.shrunk(0.5) == ", 30,000 of 60,000 images"
    small = setup.model_copy(update={"images": 500})
    assert small.options(0.5)["train"] == 500, "never more than there are"


# --- judging ----------------------------------------------------------------------------------------------------


def cell_of(recipe: str, *seeds: list[tuple[int, float, float]]) -> Measured:
    """Made-up runs: rounds, accuracies and times of each seed."""
    setup = Setup(task="hotcold", reading="r", training=TRAINING)
    one = job(setup, Cell(recipe=recipe), 0, order(Path()))
    rows = [tuple({"round": r, "test_auc": a, "clock": c} for r, a, c in seed) for seed in seeds]
    return Measured(Cell(recipe=recipe), [one] * len(rows), [Outcome("d", "s", row) for row in rows], "test_auc")


def verdict_of(claim: Claim, *cells: Measured, scale: str | None = None) -> list[dict[str, Any]]:
    line = Line(paper="p", setups=("s",), cells=tuple(one.cell for one in cells), claims=(claim,), targets=(0.5, 0.6))
    setup = Setup(task="hotcold", reading="r", training=TRAINING)
    return judged(Reading(line, setup, cells, 10, scale), "fedsubavg")


TRAINING = Training(rounds=10, eval_every=5, metric="test_auc", target=0.55, devices="feddd")
FAST = cell_of("fedsubavg", [(0, 0.1, 0.0), (5, 0.55, 100.0), (10, 0.7, 200.0)])
SLOW = cell_of("fedavg", [(0, 0.1, 0.0), (5, 0.3, 200.0), (10, 0.58, 400.0)])


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (Claim(first="fedsubavg", says="above", second="fedavg"), [("holds", 0.12)]),
        (Claim(first="fedsubavg", says="above", second="fedavg", by=0.3), [("weaker", 0.12)]),
        (Claim(first="fedsubavg", says="above", second="fedavg", by=0.3, at=0.5), [("holds", 0.25)]),
        (Claim(first="fedavg", says="above", second="fedsubavg"), [("does not hold", -0.12)]),
        (Claim(first="fedsubavg", says="alike", second="fedavg"), [("does not hold", 0.12)]),
        (Claim(first="fedsubavg", says="alike", second="fedavg", at=0.1), [("holds", 0.0)]),
        (Claim(first="fedsubavg", says="falls", second="fedavg", by=0.2, to=0.3), [("holds", 0.12)]),  # its own method
        (Claim(first="fedavg", says="falls", second="fedsubavg", by=0.01, to=0.3), [("does not hold", -0.12)]),
        (Claim(first="fedavg", says="slower", second="fedsubavg"), [("holds", 2.0)]),
        (Claim(first="fedsubavg", says="slower", second="fedavg"), [("does not hold", 0.5)]),
        (Claim(first="fedsubavg", says="sooner", second="fedavg"), [("holds", 0.75), ("holds", 0.5)]),
        (Claim(first="fedsubavg", says="sooner", second="fedavg", by=0.9, target=0.5), [("weaker", 0.75)]),
        (
            Claim(first="fedavg", says="sooner", second="fedsubavg"),
            [("does not hold", -3.0), ("does not hold", None)],
        ),
        (Claim(first="fedsubavg", says="alone", second="fedavg"), [("does not hold", None), ("holds", None)]),
    ],
)
def test_what_is_said_is_held_against_the_runs(claim: Claim, expected: list[tuple[str, float | None]]) -> None:
    found = verdict_of(claim, FAST, SLOW)
    assert [one["verdict"] for one in found] == [verdict for verdict, _ in expected]
    assert [one["measured"] for one in found] == [
        None if number is None else pytest.approx(number) for _, number in expected
    ]
    assert {one["verdict"] for one in verdict_of(claim, FAST, SLOW, scale="scaled")} == {"not comparable"}


def test_a_target_that_the_second_never_reached_bounds_the_time_saved() -> None:
    (found,) = verdict_of(Claim(first="fedsubavg", says="sooner", second="fedavg", target=0.6), FAST, SLOW)
    assert (found["measured"], found["at_least"]) == (0.5, True)
    assert found["claim"] == "fedsubavg takes less time to 0.6 than fedavg"


# --- small runs -------------------------------------------------------------------------------------------------

SET = {"clients": 30, "items": 40, "samples": 12, "factors": 3, "cohort": 6, "batch_size": 4, "lr": 0.5}
TINY = Setup(task="hotcold", reading="tiny", set=SET, training=TRAINING)
BROKEN = Cell(recipe="fedprox", set={"mu": -1.0})
CLAIMS = (
    Claim(first="fedsubavg", says="above", second="fedavg", by=0.1),
    Claim(first="fedsubavg", says="above", second="fedprox mu=-1.0"),
)
TIMED = (
    Claim(first="fedsubavg", says="sooner", second="fedavg", by=0.5, to=0.7),
    Claim(first="fedsubavg", says="alone", second="fedavg", target=0.99),
)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process, one after another; one that cannot be made says why."""

    def run_all(jobs: Iterable[Job], out: Path, lanes: int, progress: Progress) -> dict[str, Outcome]:
        outcomes = {}
        for one in jobs:
            try:
                outcomes[one.key] = workers._work(one.request, out)
            except UserError as error:
                outcomes[one.key] = Outcome(error=str(error))
        return outcomes

    monkeypatch.setattr("fedslice.papers.readings.run_all", run_all)


def metrics(run: dict[str, Any]) -> list[dict[str, Any]]:
    return RunDirectory(Path(run["directory"])).metrics()


def printed(document: dict[str, Any]) -> str:
    text = io.StringIO()
    for part in show.tables(document):
        Console(file=text, width=200).print(part)
    return text.getvalue()


@pytest.mark.usefixtures("here")
def test_accuracy_at_the_end(tmp_path: Path) -> None:
    cells = (BROKEN, Cell(recipe="fedavg"), Cell(recipe="fedsubavg", final=0.9))
    line = Line(paper="Here", setups=("tiny",), cells=cells, claims=CLAIMS)
    exhibit = Exhibit(title="t", kind="accuracy", method="fedsubavg", row=(line,))
    document = make("x", exhibit, {"tiny": TINY}, order(tmp_path))
    (row,) = document["rows"]
    broken, *fine = row["cells"]
    for cell in fine:
        rows = [metrics(run) for run in cell["runs"]]
        for name, column in (("final", "test_auc"), ("up_bytes", "up_bytes"), ("clock", "clock")):
            assert cell[name]["by_seed"] == [seed[-1][column] for seed in rows]
            assert cell[name]["mean"] == mean(cell[name]["by_seed"])
        assert cell["best"]["by_seed"] == [max(one["test_auc"] for one in seed) for seed in rows]
        assert [run["curve"] for run in cell["runs"]] == [[[r["round"], r["test_auc"]] for r in seed] for seed in rows]
    assert "--devices feddd" in fine[0]["runs"][0]["command"]
    assert broken["final"] == {"by_seed": [], "mean": None}
    gap = row["claims"][0]["measured"]
    assert gap == min(fine[1]["final"]["by_seed"]) - min(fine[0]["final"]["by_seed"])
    assert row["claims"][1]["why"].startswith("not run: local.prox=prox: mu=-1.0")
    assert fine[1]["verdicts"]["final"]["verdict"] in ("holds", "weaker", "does not hold")
    page = show.markdown(document)
    for words in ("test auc after 10 rounds", "test auc by round", "what the paper says", "not run: local.prox=prox"):
        assert words in page
        assert words in printed(document)
    assert "**Here, tiny: not run**" in page
    assert f"| fedsubavg scores higher than fedavg | 0.100 | {gap:.3f} |" in page
    plain = exhibit.model_copy(update={"row": (line.model_copy(update={"cells": cells[:2], "claims": ()}),)})
    page = show.markdown(make("x", plain, {"tiny": TINY}, order(tmp_path)))
    assert "| recipe | by seed | mean | best | up | simulated |" in page, "no column for numbers that are not there"


@pytest.mark.usefixtures("here")
def test_time_to_targets(tmp_path: Path) -> None:
    cells = (Cell(recipe="fedavg"), Cell(recipe="fedsubavg"))
    line = Line(paper="Here", setups=("tiny",), cells=cells, claims=TIMED, targets=(0.5, 0.99))
    exhibit = Exhibit(title="t", kind="time", method="fedsubavg", row=(line,))
    document = make("x", exhibit, {"tiny": TINY}, order(tmp_path))
    (row,) = document["rows"]
    found = {}
    for cell in row["cells"]:
        times = [next((one["clock"] for one in metrics(run) if one["test_auc"] >= 0.5), None) for run in cell["runs"]]
        reached, never = cell["targets"]
        assert reached["clock"]["by_seed"] == times
        assert never["clock"] == never["t2a"] == {"by_seed": [None, None], "mean": None}
        found[cell["cell"]] = times
    pairs = zip(found["fedsubavg"], found["fedavg"], strict=True)
    shares = [None if a is None or not b else a / b for a, b in pairs]
    assert row["cells"][1]["targets"][0]["t2a"]["by_seed"] == shares
    assert [claim["claim"] for claim in row["claims"]] == [
        "fedsubavg takes less time to 0.5 than fedavg",
        "fedsubavg takes less time to 0.99 than fedavg",
        "fedsubavg comes to 0.99, fedavg does not",
    ]
    assert [claim["verdict"] for claim in row["claims"][1:]] == ["not comparable"] * 2
    page = show.markdown(document)
    assert "| recipe | to 0.5 | to 0.99 |" in page
    assert "reached by 0 of 2" in page
    assert "| 50.0% to 70.0% |" in page
    assert "share of FedAvg's (T2A)" in printed(document)


@pytest.mark.usefixtures("here")
def test_accuracy_by_class(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", train=300, test=60)
    setup = Setup(
        task="mnist",
        reading="small",
        data=True,
        folders=("mnist",),
        set={"clients": 10, "partition": "imbalanced", "epochs": 1, "cohort": 5},
        training=Training(rounds=2, eval_every=1, metric="test_accuracy", measure=("class-accuracy",)),
    )
    paper = {"0": (0.0, 1.0), "7": (0.99,)}
    cells = (Cell(recipe="fedavg", classes=paper), Cell(recipe="fedprox", set={"mu": 1.0}), BROKEN)
    claim = Claim(first="fedavg", says="above", second="fedprox mu=1.0")
    line = Line(paper="MNIST", setups=("small",), cells=cells, claims=(claim,))
    exhibit = Exhibit(title="t", kind="classes", method="fedavg", row=(line,))
    document = make("x", exhibit, {"small": setup}, order(tmp_path / "out", data=tmp_path))
    (row,) = document["rows"]
    rare = []
    for cell in row["cells"][:2]:
        ends = [metrics(run)[-1] for run in cell["runs"]]
        for one in cell["classes"]:
            assert one["by_seed"] == [end[f"test_accuracy_class_{one['class']}"] for end in ends]
        assert [one["class"] for one in cell["classes"]] == [str(label) for label in range(10)]
        assert cell["final"]["by_seed"] == [end["test_accuracy"] for end in ends]
        rare.append([mean(end[f"test_accuracy_class_{label}"] for label in RARE) for end in ends])
    assert row["claims"][0]["measured"] == pytest.approx(min(rare[0]) - min(rare[1]))
    verdicts = {one["class"]: one["verdict"] for one in row["cells"][0]["classes"] if one["verdict"]}
    assert set(verdicts) == set(paper)
    assert verdicts["0"]["verdict"] == "holds"
    page = show.markdown(document)
    assert "| recipe | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | all |" in page
    assert "| fedavg | 7 | 0.990 |" in page
    assert f"| fedprox mu=-1.0 |{' - |' * 11}" in page
    assert "| fedprox mu=-1.0 | local.prox=prox: mu=-1.0" in page
    assert "what the paper says of the mean over the rare classes (0, 1, 2)" in printed(document)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", ["accuracy", "time", "classes"])
def test_a_row_without_its_data_says_so_once(kind: Any, tmp_path: Path) -> None:
    setup = Setup(task="mnist", reading="away", data=True, folders=("mnist",), training=TRAINING)
    line = Line(paper="MNIST", setups=("away",), cells=(Cell(recipe="fedavg"), Cell(recipe="fedprox")), targets=(0.5,))
    document = make("x", Exhibit(title="t", kind=kind, row=(line,)), {"away": setup}, order(tmp_path, data=tmp_path))
    page = show.markdown(document)
    assert page.count("mnist is not a folder, expected the one that holds MNIST.") == 1
    assert "| not run |" in page


@pytest.mark.usefixtures("here")
def test_a_note_for_all_rows_stands_alone_and_others_name_theirs(tmp_path: Path) -> None:
    one = TINY.model_copy(update={"training": TRAINING.model_copy(update={"note": "a note"})})
    other = one.model_copy(update={"reading": "other"})
    line = Line(paper="Here", setups=("one", "other"), cells=(Cell(recipe="fedavg"),))
    exhibit = Exhibit(title="t", kind="accuracy", row=(line,))
    page = show.markdown(make("x", exhibit, {"one": one, "other": other}, order(tmp_path, seeds=1)))
    assert page.endswith("* a note\n")
    page = show.markdown(make("x", exhibit, {"one": one, "other": TINY}, order(tmp_path, seeds=1)))
    assert page.endswith("* Here, tiny: a note\n")
