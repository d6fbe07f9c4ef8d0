"""FLSS's exhibits as they are judged: words, seconds and spectra of made-up runs, and small real ones of each kind."""

import io
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from command import fedslice
from fedslice.config import resolve
from fedslice.core.errors import UserError
from fedslice.core.header import Kind
from fedslice.core.message import Message
from fedslice.papers import files, show, verdicts, workers
from fedslice.papers.compression import words_since
from fedslice.papers.exhibits import Cell, Claim, Exhibit, Line, Setup, Training
from fedslice.papers.files import _checked
from fedslice.papers.jobs import Job, Order, job
from fedslice.papers.make import make
from fedslice.papers.printed import Printed, printed
from fedslice.papers.progress import Progress
from fedslice.papers.workers import Outcome
from fedslice.training.experiment import Experiment

QUIET = Console(file=io.StringIO())


def order(out: Path, **changes: Any) -> Order:
    return Order(**{"data": None, "out": out, "seeds": 2, "scale": 1.0, "jobs": 1, "console": QUIET} | changes)


# --- judging ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("35.14 M", 35.14e6, 1e4),
        ("0.17 G", 0.17e9, 1e7),
        ("1e-2 M", 1e4, 1e4),
        ("1.8e2 M", 180e6, 1e7),
        ("14.0 M", 14e6, 1e5),
    ],
)
def test_printed_numbers(text: str, number: float, unit: float) -> None:
    assert printed(text) == Printed(pytest.approx(number), pytest.approx(unit))


@pytest.mark.parametrize("text", ["35.14", "M", "1.1.1 M", "-1 M", "inf M", "5 K"])
def test_what_no_paper_prints_is_refused(text: str) -> None:
    line = {"paper": "p", "setups": ["s"], "cells": [{"recipe": "fedavg", "words": text}]}
    with pytest.raises(UserError, match="write for example"):
        _checked(Exhibit, {"title": "t", "kind": "words", "row": [line]}, "here")


@pytest.mark.parametrize(
    ("text", "found", "verdict"),
    [
        ("35.14 M", 35.1495e6, "holds"),
        ("35.14 M", 35.1301e6, "holds"),
        ("35.14 M", 36.5e6, "weaker"),
        ("35.14 M", 70e6, "does not hold"),
        ("1e-2 M", 10_000, "holds"),
        ("1e-2 M", 1_000, "does not hold"),
    ],
)
def test_words_hold_to_the_last_digit(text: str, found: float, verdict: str) -> None:
    assert verdicts.sent(printed(text), found).verdict == verdict


@pytest.mark.parametrize(
    ("seeds", "verdict"),
    [
        ([(1.0, 1.1, 0.8), (1.0, 1.2, 0.9)], "holds"),
        ([(1.0, 1.1, 0.8), (1.0, 0.9, 0.9)], "weaker"),
        ([(1.0, 1.1, 0.8), (1.0, 1.2, 1.1)], "does not hold"),
    ],
)
def test_a_loss_that_rises_and_falls(seeds: list[tuple[float, float, float]], verdict: str) -> None:
    assert verdicts.recovered(seeds).verdict == verdict


def test_words_are_counted_from_a_round_on_and_by_client() -> None:
    plain = [{"round": at, "up_bytes": 400 * at} for at in (0, 5, 10)]
    assert words_since(plain, 5, 2) == 250
    assert words_since(plain, 0, 2) == 500
    assert words_since(plain, 6, 2) is None
    assert words_since([row | {"up_words": row["round"]} for row in plain], 5, 5) == 1


SET = {"cohort": 4, "clients": 30, "items": 40, "samples": 12}
TRAINING = Training(
    rounds=10, eval_every=5, metric="test_auc", sampling=5, recipes={"flss": {"warmup": 5, "rank": 2, "every": 5}}
)
HERE = Setup(task="hotcold", reading="r", set=SET, training=TRAINING)
SETUPS = {"here": HERE, "other": HERE.model_copy(update={"standin": "made up"})}


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[Any]]], None]:
    """Made-up runs in place of real ones: rows of metrics by cell."""

    def give(rows: dict[str, list[Any]]) -> None:
        def run_all(jobs: Iterable[Job], out: Path, lanes: int, progress: Progress) -> dict[str, Outcome]:
            made_up = {name: Outcome("d", "s", tuple(log)) for name, log in rows.items()}
            return {one.key: made_up.get(one.cell, Outcome(error="no.")) for one in jobs}

        monkeypatch.setattr("fedslice.papers.readings.run_all", run_all)

    return give


def log(scores: Iterable[float], words: Iterable[float], seconds: float, **more: Any) -> list[Any]:
    return [
        {"round": at, "test_auc": score, "up_bytes": 16 * sent, "up_words": 4 * sent, "seconds": seconds * at, **more}
        for at, score, sent in zip((0, 5, 10), scores, words, strict=True)
    ]


MADE_UP = {
    "fedavg": log((0.5, 0.6, 0.58), (0, 10e6, 20e6), 2.0, trajectory_share_5=0.4, trajectory_share_50=0.8),
    "flss": log((0.5, 0.6, 0.7), (0, 10e6, 12e6), 3.0, trajectory_share_5=0.5, trajectory_share_50=0.9),
}


def made(kind: str, cells: tuple[Cell, ...], claims: tuple[Claim, ...], tmp_path: Path, **more: Any) -> dict[str, Any]:
    scale = more.pop("scale", 1.0)
    line = Line(paper="p", setups=("here", "other"), cells=cells, claims=claims, **more)
    exhibit = _checked(Exhibit, {"title": "t", "kind": kind, "method": "flss", "row": (line,)}, "here")
    return make("x", exhibit, SETUPS, order(tmp_path, scale=scale))


def test_scores_words_and_seconds_beside_the_papers(outcomes: Any, tmp_path: Path) -> None:
    outcomes(MADE_UP)
    cells = (
        Cell(recipe="fedavg", best=0.55, words="10.0 M", seconds=2.5),
        Cell(recipe="flss", best=0.65, words="3.00 M", seconds=3.0),
        Cell(recipe="sign", words="1.00 M"),
    )
    claims = (Claim(first="flss", says="above", second="fedavg"), Claim(first="flss", says="above", second="sign"))
    document = made("compression", cells, claims, tmp_path)
    own, other = document["rows"]
    fedavg, flss, broken = own["cells"]
    assert (fedavg["best"]["by_seed"], fedavg["final"]["by_seed"]) == ([0.6, 0.6], [0.58, 0.58])
    assert (fedavg["words"]["mean"], flss["words"]["mean"]) == (10e6, 2e6)
    assert (flss["seconds"]["mean"], flss["seconds_to_baseline"]["mean"]) == (3.0, 1.5)
    assert [cell["verdicts"]["words"]["verdict"] for cell in own["cells"]] == [
        "holds",
        "does not hold",
        "not comparable",
    ]
    assert (fedavg["verdicts"]["best"]["verdict"], flss["verdicts"]["best"]["verdict"]) == ("weaker", "holds")
    assert broken["words"] == {"by_seed": [], "mean": None}
    assert own["claims"][0] == other["claims"][0], "orderings are judged on other data too"
    assert own["claims"][0]["paper"] == [pytest.approx(0.1)], "the gap of the paper's own numbers"
    assert (own["claims"][0]["verdict"], own["claims"][0]["measured"]) == ("holds", pytest.approx(0.1))
    assert own["claims"][1]["why"] == "not run: no."
    assert [one["why"] for cell in other["cells"][:2] for one in cell["verdicts"].values()] == ["other data"] * 4
    page = show.markdown(document)
    assert "| fedavg | 10.0 M | 10.0000 M | 2.0 s | 1.00 | 1.00 |" in page
    assert "| flss | 3.00 M | 2.0000 M | 3.0 s | 1.50 | 1.20 |" in page
    assert "32-bit words that a client sends after round 5, and seconds of a round on this machine" in page
    whole = made("compression", cells[:2], (), tmp_path, whole=True)["rows"][0]["cells"]
    assert [cell["words"]["mean"] for cell in whole] == [20e6, 12e6]
    scaled = made("compression", cells[:2], claims[:1], tmp_path, scale=0.5)["rows"][0]
    assert {one["verdict"] for cell in scaled["cells"] for one in cell["verdicts"].values()} == {"not comparable"}
    assert scaled["claims"][0]["verdict"] == "not comparable"


def test_spectra_and_the_loss_after_the_sampling(outcomes: Any, tmp_path: Path) -> None:
    outcomes(MADE_UP)
    cells = (Cell(recipe="fedavg", shares={"50": 0.79, "9": 0.5}), Cell(recipe="flss", shares={"50": 0.6}))
    claims = (
        Claim(first="flss", says="above", second="fedavg"),
        Claim(first="fedavg", says="recovers", second="fedavg"),
        Claim(first="flss", says="recovers", second="flss"),
    )
    document = made("spectrum", cells, claims, tmp_path)
    row = document["rows"][0]
    shares = {one["directions"]: one for one in row["cells"][0]["shares"]}
    assert (list(shares), shares[50]["mean"], shares[50]["verdict"]["verdict"]) == ([5, 9, 50], 0.8, "holds")
    assert row["cells"][1]["shares"][1]["verdict"]["verdict"] == "does not hold", "more is not better"
    assert shares[9]["by_seed"] == []
    assert shares[9]["verdict"] == {"verdict": "not comparable", "why": "its log has no trajectory_share_9"}
    assert [claim["verdict"] for claim in row["claims"]] == ["holds", "does not hold", "weaker"]
    assert row["claims"][0]["measured"] == pytest.approx(0.1)
    page = show.markdown(document)
    assert "| recipe | 5 | 9 | 50 |" in page
    assert "| fedavg | 50 | 0.79" in page
    assert "after the sampling fedavg gets worse at first" in page


# --- small runs -------------------------------------------------------------------------------------------------

PICTURES = {"source": "generated", "model": "mlp", "split": "pfllib", "normalise": "half", "lr": 0.01, "epochs": 1}
FEW = Setup(
    task="mnist",
    reading="mlp",
    set=PICTURES | {"clients": 6, "train": 12, "cohort": 2, "batch_size": 1},
    training=Training(
        rounds=11,
        eval_every=4,
        metric="test_accuracy",
        sampling=4,
        recipes={name: {"warmup": 4, "rank": 3, "every": 3} for name in ("flss", "sign+flss")},
    ),
)
SIZE = 784 * 100 + 100 + 100 * 64 + 64 + 64 * 10 + 10


def test_words_of_real_messages(tmp_path: Path) -> None:
    """Seven rounds after the sampling, of which the first and every third are full: by hand, in words and bytes."""
    cells = [
        (Cell(recipe="fedavg", words="5.99e-1 M"), 7 * SIZE, 28 * SIZE),
        (Cell(recipe="sign", words="1 G"), 7 * SIZE / 32, 7 * (-(-SIZE // 8) + 4)),
        (Cell(recipe="flss", words="2.56e-1 M"), 3 * SIZE + 4 * 3, 12 * SIZE + 48),
        (Cell(recipe="flss", set={"every": 0}), 7 * 3, 28 * 3),
        (Cell(recipe="sign+flss"), 3 * SIZE / 32 + 4 * 3, 3 * (-(-SIZE // 8) + 4) + 48),
        (Cell(recipe="flss", set={"rank": 10**9}, words="1 M"), None, None),
    ]
    line = Line(paper="p", setups=("few",), cells=tuple(cell for cell, _, _ in cells))
    all_rounds = Line(paper="p", setups=("few",), cells=(Cell(recipe="flss", words="6e-1 M"),), whole=True)
    exhibit = Exhibit(title="t", kind="words", row=(line, all_rounds))
    said = io.StringIO()
    document = make("x", exhibit, {"few": FEW}, order(tmp_path, console=Console(file=said, width=200)))
    for cell, (_, words, size) in zip(document["rows"][0]["cells"], cells, strict=True):
        assert cell["words"] == (None if words is None else pytest.approx(words))
        assert cell["packed"] == (None if size is None else pytest.approx(size / 4))
        assert cell["parameters"] in (SIZE, None)
    told = [cell["verdict"] and cell["verdict"]["verdict"] for cell in document["rows"][0]["cells"]]
    assert told == ["holds", "does not hold", "holds", None, None, "not comparable"]
    assert document["rows"][1]["cells"][0]["words"] == 7 * SIZE + 12
    assert said.getvalue().startswith("x: 6 runs, 66 rounds in all, 1 at a time. ")
    assert said.getvalue().count("  flss on mnist, seed 0: round 11/11") == 1, "a run that rows share is made once"
    page = show.markdown(document)
    assert "words that a client sends after round 4 of 11" in page
    assert "words that a client sends in 11 rounds" in page
    assert "| flss | 85,614 | 2.56e-1 M | 0.2569 M | 0.2569 M | holds |" in page
    assert "not run: codec=subspace: rank=1000000000" in page
    small = make("x", Exhibit(title="t", kind="words", row=(all_rounds,)), {"few": FEW}, order(tmp_path, scale=0.95))
    assert small["rows"][0]["cells"][0]["verdict"]["why"] == "scaled to 10 rounds"


@pytest.mark.parametrize("kind", [Kind.REQUEST, Kind.DOWNLOAD, Kind.UPLOAD])
def test_a_message_of_another_size_than_counted_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    plan = resolve(job(FEW, Cell(recipe="sign"), 0, order(tmp_path)).request)
    experiment = Experiment(plan.task, plan.recipe, rounds=1, wire=True)
    pack = Message.pack

    def shorter(message: Message, client: int, fingerprint: bytes) -> bytes:
        data = pack(message, client, fingerprint)
        return data[:-1] if message.head.kind is kind else data

    monkeypatch.setattr(Message, "pack", shorter)
    with pytest.raises(RuntimeError, match=r"a message takes \d+ bytes where \d+ are counted") as told:
        experiment.run()
    takes, counted = map(int, re.findall(r"\d+", str(told.value)))
    assert takes == counted - 1


TOML = """
title = "small"
kind = "compression"
method = "flss"
cells = [
    { recipe = "fedavg", best = 0.5, words = "1.00 M" },
    { recipe = "flss", best = 0.6 },
    { recipe = "flss", set = { local = "projected" } },
    { recipe = "sign+flss" },
]
claims = [{ first = "flss", says = "above", second = "fedavg" }]
[[row]]
paper = "MNIST"
setups = ["small"]
"""
SETUP = """
[small]
task = "mnist"
reading = "generated"
standin = "generated pictures"
images = 300
set = { split = "pfllib", model = "mlp", clients = 4, cohort = 4, train = 300, epochs = 1, batch_size = 16 }
[small.training]
rounds = 24
eval_every = 4
metric = "test_accuracy"
sampling = 12
recipes.flss = { warmup = 12, rank = 5, "codec.decay" = 0.7 }
recipes."sign+flss" = { warmup = 12, rank = 5 }
"""


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings from a file, runs scaled to a half, and the words of what was trained."""

    def run_all(jobs: Iterable[Job], out: Path, lanes: int, progress: Progress) -> dict[str, Outcome]:
        return {one.key: workers._work(one.request, out) for one in jobs}

    paper = tmp_path / "papers" / "own"
    paper.mkdir(parents=True)
    (paper / "table1.toml").write_text(TOML)
    (paper / "setups.toml").write_text(SETUP)
    monkeypatch.setattr(files, "_folder", lambda: paper.parent)
    monkeypatch.setattr("fedslice.papers.readings.run_all", run_all)
    asked = ("reproduce", "own/table1", "--scale", 0.5, "--seeds", 1, "--only", "small", "--out", tmp_path / "out")
    (row,) = fedslice(*asked, "--json").document["rows"]
    assert (row["rounds"], row["sampling"]) == (12, 6)
    fedavg, flss, projected, sign = row["cells"]
    assert fedavg["words"]["mean"] == 6 * SIZE
    assert flss["words"]["mean"] == projected["words"]["mean"] == 2 * SIZE + 4 * 5
    assert sign["words"]["mean"] == pytest.approx(2 * SIZE / 32 + 4 * 5)
    assert flss["settings"]["warmup"] == 6
    assert "codec.decay=0.7" in flss["runs"][0]["command"]
    assert flss["runs"][0]["directory"] != projected["runs"][0]["directory"]
    assert 0 < flss["best"]["mean"] <= 1
    assert flss["verdicts"]["best"]["why"].startswith("scaled to 12 of 24 rounds")
    (few,) = fedslice(*asked, "--recipes", "fedavg, sign+flss", "--json").document["rows"]
    assert [cell["cell"] for cell in few["cells"]] == [fedavg["cell"], sign["cell"]]
    assert [claim["claim"] for claim in few["claims"]] == []
    page = fedslice(*asked, "--markdown").out
    assert "| flss local=projected |" in page
    assert "| flss scores higher than fedavg | 0.1000 |" in page
