"""Exhibits that train: in parallel, interrupted, killed, failing, scaled."""

import io
import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from command import ENVIRONMENT, fedslice
from fedslice.papers import failures, jobs, show, workers
from fedslice.papers.exhibits import Cell, Exhibit, Line, Setup, Training
from fedslice.papers.jobs import Job, Order
from fedslice.papers.make import make
from fedslice.papers.progress import Progress
from fedslice.runs import checkpoint
from fedslice.runs.directory import RunDirectory
from fedslice.signals import Stopped

SET = {"clients": 30, "items": 40, "samples": 12, "factors": 3, "cohort": 6, "batch_size": 4, "lr": 0.5}
TRAINING = Training(rounds=20, eval_every=5, metric="test_auc", target=0.55)
SETUPS = {
    "tiny": Setup(task="hotcold", reading="tiny", set=SET, training=TRAINING),
    "standin": Setup(task="hotcold", reading="other", standin="made up", set=SET, training=TRAINING),
    "long": Setup(task="hotcold", reading="long", set=SET, training=TRAINING.model_copy(update={"rounds": 10**6})),
    "away": Setup(task="movielens", reading="away", data=True, training=TRAINING),
}
CELLS = (Cell(recipe="fedavg", rounds="20+", best=0.5), Cell(recipe="fedsubavg", rounds=10, best=0.9))
BROKEN = Cell(recipe="fedprox", set={"mu": -1.0}, rounds=10)
EXHIBIT = Exhibit(
    title="small",
    kind="rounds",
    method="fedsubavg",
    notes=("a note",),
    row=(
        Line(paper="Here", setups=("tiny", "standin"), cells=(BROKEN, *CELLS)),
        Line(paper="Away", setups=("away",), cells=CELLS),
    ),
)
CALM = EXHIBIT.model_copy(update={"row": (Line(paper="Here", setups=("tiny",), cells=CELLS),)})


def order(out: Path, **changes: Any) -> Order:
    quiet = Console(file=io.StringIO())
    return Order(**{"data": None, "out": out, "seeds": 2, "scale": 1.0, "jobs": 2, "console": quiet} | changes)


def logs(out: Path) -> dict[str, tuple[int, bytes]]:
    return {file.parent.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in out.glob("*/metrics.jsonl")}


def without_place(document: dict[str, Any], out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(document).replace(str(out), "OUT"))
    return found


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduced")


@pytest.fixture(scope="module")
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(scope="module")
def document(out: Path, said: io.StringIO) -> dict[str, Any]:
    """The small exhibit, made by two workers."""
    return make("x/small", EXHIBIT, SETUPS, order(out, console=Console(file=said, width=200)))


def test_values_are_those_of_the_runs(document: dict[str, Any]) -> None:
    row = document["rows"][0]
    for cell in row["cells"][1:]:
        for place, run in enumerate(cell["runs"]):
            assert run["error"] is None
            found = RunDirectory(Path(run["directory"])).metrics()
            assert [one["round"] for one in found] == [0, 5, 10, 15, 20]
            hits = [one["round"] for one in found if one["test_auc"] >= 0.55]
            assert cell["rounds_to_target"]["by_seed"][place] == (hits[0] if hits else None)
            assert cell["best"]["by_seed"][place] == max(one["test_auc"] for one in found)
    assert row["target"] == "test_auc=0.55"
    assert row["source"] == "generated (data_seed 0)"
    assert document["seeds"] == [0, 1]


def test_runs_are_shared_between_readings(document: dict[str, Any], out: Path) -> None:
    places = [[[r["directory"] for r in c["runs"]] for c in row["cells"][1:]] for row in document["rows"][:2]]
    assert places[0] == places[1]
    assert len(list(out.iterdir())) == 4


def test_the_commands_make_the_runs(document: dict[str, Any], out: Path) -> None:
    before = logs(out)
    run = document["rows"][0]["cells"][2]["runs"][1]
    found = fedslice(*shlex.split(run["command"])[1:], "--json").document
    assert found["metrics"] == RunDirectory(Path(run["directory"])).metrics()
    assert (found["recipe"], found["seed"]) == ("fedsubavg", 1)
    assert logs(out) == before


def test_a_cell_that_cannot_run_says_why_and_the_others_go_on(document: dict[str, Any], said: io.StringIO) -> None:
    cell = document["rows"][0]["cells"][0]
    assert cell["rounds_to_target"] == {"by_seed": [], "mean": None}
    why = cell["verdicts"]["rounds"]["why"]
    assert why.startswith("not run: local.prox=prox: mu=-1.0")
    assert cell["verdicts"]["rounds"]["verdict"] == "not comparable"
    assert [c["why"] == why for c in document["rows"][0]["claims"] if "fedprox" in c["claim"]] == [True]
    missing = document["rows"][2]["cells"][0]["verdicts"]["rounds"]["why"]
    assert missing.startswith("not run: task 'movielens' needs data")
    assert document["rows"][2]["source"] is None
    assert "fedprox mu=-1.0 on hotcold, seed 0: not run: local.prox=prox: mu=-1.0" in said.getvalue()
    assert re.match(r"x/small: 10 runs, [\d,]+ rounds in all, 2 at a time\..* time left is told once", said.getvalue())
    assert re.search(r"small: \d+ of 10 runs.*  fedavg on hotcold, seed 1: round 20/20  test auc 0\.", said.getvalue())


def test_runs_that_could_not_be_made_are_counted_once(document: dict[str, Any]) -> None:
    told = failures(document)
    assert told is not None
    assert told.startswith("6 of 10 runs could not be made. The first: local.prox=prox: mu=-1.0: ")
    whole = document | {"rows": [document["rows"][0] | {"cells": document["rows"][0]["cells"][1:]}]}
    assert failures(whole) is None


def test_a_standin_is_judged_by_its_orderings_alone(document: dict[str, Any]) -> None:
    own, other = document["rows"][:2]
    words = [cell["verdicts"]["rounds"] for cell in other["cells"][1:]]
    assert words == [{"verdict": "not comparable", "why": "other data"}] * 2
    assert [c["verdict"] for c in own["claims"]] == [c["verdict"] for c in other["claims"]]
    assert [c["claim"] for c in own["claims"]] == [
        "fedsubavg needs as many rounds as fedprox mu=-1.0",
        "fedsubavg needs fewer rounds than fedavg",
        "fedsubavg scores higher than fedavg",
    ]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process, one after another, for what does not depend on workers."""

    def run_all(jobs: Iterable[Job], out: Path, lanes: int, progress: Progress) -> dict[str, workers.Outcome]:
        return {job.key: workers._work(job.request, out) for job in jobs}

    monkeypatch.setattr("fedslice.papers.readings.run_all", run_all)


@pytest.mark.usefixtures("here")
def test_finished_runs_are_not_repeated(document: dict[str, Any], out: Path) -> None:
    before = logs(out)
    again = make("x/small", CALM, SETUPS, order(out, jobs=1))
    assert again["rows"][0]["cells"] == document["rows"][0]["cells"][1:]
    assert logs(out) == before


def test_tables_and_markdown_show_the_same(document: dict[str, Any]) -> None:
    text = io.StringIO()
    for part in show.tables(document):
        Console(file=text, width=250).print(part)
    page = show.markdown(document)
    for words in ("made up", "fedsubavg needs fewer rounds than fedavg", "20+", "a note", "needs data", "other data"):
        assert words in text.getvalue()
        assert words in page
    widths = [line.count("|") for line in page.splitlines() if line.startswith("|")]
    assert set(widths) == {3, 5, 6}, "not run, orderings, cells"
    assert page.startswith("# x/small: small\n")


@pytest.mark.usefixtures("here")
def test_curves(document: dict[str, Any], out: Path) -> None:
    curves = make("x/curves", CALM.model_copy(update={"kind": "curves"}), SETUPS, order(out, jobs=1))
    assert len(list(out.iterdir())) == 4
    run = curves["rows"][0]["cells"][0]["runs"][0]
    assert run["curve"] == [[r["round"], r["test_auc"]] for r in RunDirectory(Path(run["directory"])).metrics()]
    assert "| recipe | 0 | 5 | 10 | 15 | 20 |" in show.markdown(curves)


def test_an_interrupted_exhibit_goes_on(
    document: dict[str, Any], out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first finished run; its log stays as it is, and the whole comes out the same."""
    with monkeypatch.context() as patched:

        def end(self: Progress, job: Job, error: str | None) -> None:
            raise KeyboardInterrupt

        patched.setattr(Progress, "end", end)
        with pytest.raises(Stopped, match="of 4 runs 1 are finished and 0 saved in the middle"):
            make("x/small", CALM, SETUPS, order(tmp_path, jobs=1))
    assert not multiprocessing.active_children()
    before = {name: log for name, log in logs(tmp_path).items() if (tmp_path / name / "finished.json").exists()}
    assert len(before) == 1
    found = make("x/small", CALM, SETUPS, order(tmp_path, jobs=1))
    assert before.items() <= logs(tmp_path).items()
    cells = without_place(document, out)["rows"][0]["cells"][1:]
    assert without_place(found, tmp_path)["rows"][0]["cells"] == cells


def test_a_worker_that_dies_takes_one_run_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []
    report = Progress.report

    def kill(self: Progress, job: Job, done: int, row: dict[str, Any] | None) -> None:
        report(self, job, done, row)
        if not killed:
            (worker,) = multiprocessing.active_children()
            killed.append(job.title)
            worker.kill()

    monkeypatch.setattr(Progress, "report", kill)
    line = Line(paper="Here", setups=("long", "tiny"), cells=CELLS[:1])
    exhibit = EXHIBIT.model_copy(update={"row": (line,)})
    document = make("x", exhibit, SETUPS, order(tmp_path, seeds=1, jobs=1))
    long, tiny = (row["cells"][0]["runs"][0]["error"] for row in document["rows"])
    assert killed == ["fedavg on hotcold, seed 0"]
    assert "ended from outside" in str(long)
    assert tiny is None


def test_a_lane_stays_with_its_task_and_takes_the_longest_run_first() -> None:
    def ask(items: int, rounds: int) -> Job:
        settings = SET | {"items": items}
        setup = SETUPS["tiny"].model_copy(
            update={"set": settings, "training": TRAINING.model_copy(update={"rounds": rounds})}
        )
        return jobs.job(setup, CELLS[0], 0, order(Path()))

    waiting = jobs.by_group([ask(40, 20), ask(50, 30), ask(40, 90), ask(60, 10)])
    first, second = (cast(workers._Lane, SimpleNamespace(group=None, future=None)) for _ in range(2))
    taken = []
    for lane in (first, second, second, first, first):
        job = workers._next(waiting, lane, (first, second))
        assert (job is None) == (not waiting and len(taken) == 4)
        if job is not None:
            lane.group, lane.future = job.group, cast(Any, True)
            taken.append((job.request.set["items"], job.rounds))
    # 40 has most work; then one that nobody works on; 50 is empty, so 60, which is free; 40 again; nothing left
    assert taken == [(40, 90), (50, 30), (60, 10), (40, 20)]


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_reproduce_runs as t
if __name__ == "__main__":
    row = t.Line(paper="Here", setups=("long",), cells=t.CELLS[:1])
    t.make("x", t.CALM.model_copy(update={{"row": (row,)}}), t.SETUPS, t.order(Path({out!r}), jobs=1, seeds=1))
"""


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(tests=str(Path(__file__).parent), out=str(tmp_path / "out")))
    process = subprocess.Popen([sys.executable, script], env=ENVIRONMENT, cwd=tmp_path, stdout=subprocess.PIPE)
    until = time.monotonic() + 60
    while not logs(tmp_path / "out") and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)  # workers have the same standard output, which ends with the last of them
    ((name, _),) = logs(tmp_path / "out").items()
    config = json.loads((tmp_path / "out" / name / "config.json").read_text())
    RunDirectory.open(tmp_path / "out" / name, config, resume=True).close()  # nobody holds its lock


STOPPED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_reproduce_runs as t
from fedslice.signals import listen
if __name__ == "__main__":
    listen()
    row = t.Line(paper="Here", setups=("long",), cells=t.CELLS)
    try:
        t.make("x", t.CALM.model_copy(update={{"row": (row,)}}), t.SETUPS, t.order(Path("out"), jobs=2, seeds=1))
    except t.Stopped as stopped:
        print(stopped)
        sys.exit(stopped.code)
"""


@pytest.mark.parametrize("group", [False, True], ids=["process", "group"])
def test_a_stopped_exhibit_has_its_workers_save_their_runs(tmp_path: Path, group: bool) -> None:
    """SIGTERM to this process, which asks its workers, or to all of them at once, as a scheduler sends it."""
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED.format(tests=str(Path(__file__).parent)))
    process = subprocess.Popen(
        [sys.executable, script],
        env=ENVIRONMENT,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 120
    while sum(log.count(b"\n") > 1 for _, log in logs(tmp_path / "out").values()) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    (os.killpg if group else os.kill)(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    said = "of 2 runs 0 are finished and 2 saved in the middle, in out; the same command goes on.\n"
    assert (process.returncode, out) == (143, f"ended by SIGTERM; {said}")
    for run in (tmp_path / "out").iterdir():
        at = checkpoint.load(run / "checkpoint.safetensors")[1]["round"]
        assert len((run / "metrics.jsonl").read_text().splitlines()) == at // 5 + 1


@pytest.mark.usefixtures("here")
def test_a_scaled_exhibit_is_not_comparable(tmp_path: Path) -> None:
    document = make("x", CALM, SETUPS, order(tmp_path, seeds=1, jobs=1, scale=0.5))
    row = document["rows"][0]
    assert row["rounds"] == 10
    assert {v["why"] for c in row["cells"] for v in c["verdicts"].values()} == {"scaled to 10 of 20 rounds"}
    assert {(c["verdict"], c["why"]) for c in row["claims"]} == {("not comparable", "scaled to 10 of 20 rounds")}
    assert "scaled to 0.5" in show.markdown(document).splitlines()[0]
