"""What a person reads: tables, progress, and a word about the engine."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from torch import Tensor, nn

import reports
from command import SMALL, TINY, fedslice
from fedslice import console, tasks
from fedslice.data.federation import Federation
from fedslice.runs.callbacks import RunState
from fedslice.task import Task
from fedslice.tasks.entry import Entry, Options

pytestmark = pytest.mark.usefixtures("elsewhere")


def assert_readable(text: str, width: int = 80) -> None:
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def numbers(text: str) -> list[str]:
    """The numbers of tables, wherever they stand."""
    return sorted(word for word in text.split() if word[0] in "±0123456789")


def test_tables_fit_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    run = fedslice("run", *SMALL, "--recipe", "submodelavg")
    assert_readable(run.out)
    assert run.out.startswith("submodelavg on hotcold, seed 0: generated (data_seed 0)\n")
    assert "round    loss    loss     auc  accuracy" in run.out
    assert "rejected" not in run.out
    words = ("compare", *SMALL, "--recipes", "fedavg,submodelavg,centralsgd", "--seeds", "2")
    compare = fedslice(*words, "--target", "test_auc=0.99")
    assert_readable(compare.out)
    assert "Until test auc ≥ 0.99: mean over seeds ± standard deviation; seen at" in compare.out
    assert "0 of 2" in compare.out
    assert "±0." in compare.out
    for command in (("inspect", "hotcold", "--set", *TINY), ("list",)):
        assert_readable(fedslice(*command).out)
    monkeypatch.setenv("COLUMNS", "40")
    narrow = fedslice(*words, "--target", "test_auc=0.99")
    assert_readable(narrow.out, 40)
    assert numbers(narrow.out) == numbers(compare.out), "a table too wide continues below itself, and loses nothing"
    for command in (("inspect", "hotcold", "--set", *TINY), ("run", *SMALL), ("list",)):
        assert_readable(fedslice(*command).out, 40)


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
    console.show(console.run_tables(reports.run("submodelavg", rows=[row] * 100)))
    text = capsys.readouterr().out
    assert_readable(text)
    for words in ("123,456", "1.5e+30", "-", "0.5000", "1.00 TB", "100 kB", "1,234", "24.00 h"):
        assert words in text
    assert len(text.splitlines()) < 60, "two tables of a screenful, as it is too wide for one"


def state(done: int, rounds: int) -> RunState:
    """A run that has come so far."""
    return RunState(
        task="t",
        recipe="r",
        seed=0,
        rounds=rounds,
        config={},
        directory=Path("r"),
        columns={},
        round=done,
        rows=[],
        finished=False,
        engine=None,
        _model=dict,
        _stop=print,
    )


def test_progress_on_a_terminal_is_a_bar_with_metrics_and_time_left() -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, force_interactive=True, width=80, color_system=None)
    progress, run = console.Follow(terminal, "fedsubavg seed 0"), state(100, 200)
    progress.on_start(run)
    for run.round in range(101, 150):
        progress.on_round(run)
    progress.on_evaluation(run, {"round": 150, "train_loss": 0.5, "test_auc": 0.75, "up_bytes": 3})
    progress._live.refresh()
    progress.on_end(run, None)
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
    progress, run = console.Follow(Console(file=paper, width=40), "fedavg seed 0"), state(100, 200)
    progress.on_start(run)  # resumed there
    for done, loss in ((100, 0.7), (110, 0.6), (150, None), (200, 0.5)):
        progress.on_evaluation(run, {"round": done, "train_loss": loss, "up_bytes": 3})
    progress.on_end(run, None)
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
