import json
import runpy
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from command import SMALL, fedslice
from fedslice.core.errors import UserError
from fedslice.runs import events
from fedslice.runs.events import Events, export
from fedslice.runs.naming import short_names
from fedslice.runs.reading import read

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

CONFIG = {"task": {"name": "toy"}, "recipe": {"name": "fedavg"}, "seed": 3, "rounds": 40}


def row(t: int, **changes: Any) -> dict[str, Any]:
    costs = {"up_bytes": 100 * t, "down_bytes": 50 * t, "rejected": 0, "seconds": t / 4}
    return {"round": t, "train_loss": 1 / (t + 1), "test_auc": t / 64, **costs, **changes}


def written(folder: Path) -> Any:
    return accumulator.EventAccumulator(str(folder), {"scalars": 0, "tensors": 0}).Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in written(folder).Scalars(tag)]


def session(folder: Path, *rows: dict[str, Any]) -> None:
    with closing(Events(folder, CONFIG)) as opened:
        for one in rows:
            opened.row(one)


def make(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_every_number_of_a_row_but_its_round_is_a_scalar_at_that_step(tmp_path: Path) -> None:
    session(tmp_path, row(0, gradient_norm2=2.0), row(8, gradient_norm2=0.5))
    tags = {"train/loss", "test/auc", "cost/up_bytes", "cost/down_bytes", "cost/seconds", "rejected", "gradient_norm2"}
    assert set(written(tmp_path).Tags()["scalars"]) == tags
    assert scalars(tmp_path, "test/auc") == [(0, 0.0), (8, 0.125)]
    assert scalars(tmp_path, "cost/up_bytes") == [(0, 0.0), (8, 800.0)]
    assert scalars(tmp_path, "gradient_norm2") == [(0, 2.0), (8, 0.5)]


def test_settings_are_a_text(tmp_path: Path) -> None:
    session(tmp_path, row(0))
    (event,) = written(tmp_path).Tensors("settings/text_summary")
    assert json.loads(event.tensor_proto.string_val[0]) == CONFIG


@pytest.mark.parametrize("nothing", [None, float("nan"), float("inf")])
def test_a_metric_that_is_no_number_is_left_out(tmp_path: Path, nothing: float | None) -> None:
    session(tmp_path, row(0), row(8, test_auc=nothing), row(16))
    assert scalars(tmp_path, "test/auc") == [(0, 0.0), (16, 0.25)]
    assert [step for step, _ in scalars(tmp_path, "train/loss")] == [0, 8, 16]


def test_a_row_can_be_read_before_the_session_ends(tmp_path: Path) -> None:
    with closing(Events(tmp_path, CONFIG)) as opened:
        opened.row(row(0))
        assert scalars(tmp_path, "test/auc") == [(0, 0.0)]


def test_nothing_is_made_before_the_first_row(tmp_path: Path) -> None:
    session(tmp_path / "events")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("checkpoint", [-8, 8, 16, 24])  # -8: there was none, and the run began again
def test_a_resumed_run_has_every_step_once_with_its_newest_value(tmp_path: Path, checkpoint: int) -> None:
    session(tmp_path, *(row(t, test_auc=0.0) for t in (0, 8, 16, 24)))
    session(tmp_path, *(row(t) for t in range(checkpoint + 8, 41, 8)))
    expected = [(t, 0.0 if t <= checkpoint else t / 64) for t in range(0, 41, 8)]
    assert scalars(tmp_path, "test/auc") == expected


def test_settings_are_told_once_when_a_run_goes_on_and_anew_when_events_are_first_asked_for_then(
    tmp_path: Path,
) -> None:
    session(tmp_path / "twice", row(0))
    session(tmp_path / "twice", row(8))
    assert len(written(tmp_path / "twice").Tensors("settings/text_summary")) == 1
    session(tmp_path / "late", row(8))
    assert len(written(tmp_path / "late").Tensors("settings/text_summary")) == 1


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("verb", ["run", "compare"])
def test_a_finished_run_writes_the_events_of_its_log(verb: str) -> None:
    words = (verb, *SMALL, "--out", "r")
    assert fedslice(*words).code == 0
    for _ in range(2):
        assert fedslice(*words, "--tensorboard", "board").code == 0
    runs = [Path("r")] if verb == "run" else sorted(Path("r").iterdir())
    for run in runs:
        rows = read(run).rows
        assert scalars(Path("board") / run.name, "test/auc") == [
            (row["round"], pytest.approx(row["test_auc"])) for row in rows
        ]


def test_runs_that_exist_are_exported_each_to_its_folder_and_again_without_doubles(tmp_path: Path) -> None:
    runs = [read(make(tmp_path / name, [row(0), row(8, test_auc=auc)])) for name, auc in (("a", 0.5), ("b", 0.75))]
    for _ in range(2):
        export(runs, tmp_path / "board")
    assert sorted(entry.name for entry in (tmp_path / "board").iterdir()) == ["a", "b"]
    assert scalars(tmp_path / "board" / "a", "test/auc") == [(0, 0.0), (8, 0.5)]
    assert scalars(tmp_path / "board" / "b", "test/auc") == [(0, 0.0), (8, 0.75)]


def test_runs_of_one_name_get_folders_of_their_own(tmp_path: Path) -> None:
    runs = [read(make(tmp_path / parent / "run", [row(0, test_auc=auc)])) for parent, auc in (("a", 0.5), ("b", 0.75))]
    export(runs, tmp_path / "board")
    assert scalars(tmp_path / "board" / "a" / "run", "test/auc") == [(0, 0.5)]
    assert scalars(tmp_path / "board" / "b" / "run", "test/auc") == [(0, 0.75)]


def test_short_names_tell_paths_apart_and_never_leave_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_names([]) == []
    assert short_names([Path(".")]) == [tmp_path.name]
    assert short_names([Path("x/../y")]) == ["y"]
    same = short_names([Path("y"), tmp_path / "y"])
    assert same == ["y", "y"]
    assert short_names([Path("/a/b/run"), Path("/a/c/run"), Path("/run")]) == ["b/run", "c/run", "run"]


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"pip install fedslice\[tensorboard\]"):
        Events(tmp_path, CONFIG)


def test_the_package_is_not_asked_for_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # to import it is an error now
    assert "Events" in runpy.run_path(events.__file__)
