import fcntl
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from fedslice import watch as module
from fedslice.core.errors import UserError
from fedslice.plot import DARK
from fedslice.report.gather import gather
from fedslice.runs import sight
from fedslice.runs.directory import RunDirectory
from fedslice.runs.reading import find, read
from fedslice.runs.sight import FINISHED, RUNNING, STOPPED, Watcher, held
from fedslice.watch import picture, watch

CONFIG = {"task": {"name": "toy"}, "recipe": {"name": "fedavg"}, "seed": 0, "rounds": 100}
_WRITER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


def row(t: int, **changes: Any) -> dict[str, Any]:
    scores = {"train_loss": 1 / (t + 1), "test_loss": 2 / (t + 1), "test_auc": t / 100, "test_accuracy": t / 200}
    return {"round": t, **scores, "up_bytes": 1000 * t, "down_bytes": 0, "rejected": 0, "seconds": t / 2, **changes}


def make(path: Path, *rows: dict[str, Any], rounds: int = 100, seed: int = 0, finished: bool = False) -> Path:
    """A run directory of which nobody holds the lock."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG | {"seed": seed, "rounds": rounds}))
    (path / "lock").touch()
    append(path, "".join(json.dumps(one) + "\n" for one in rows))
    if finished:
        finish(path)
    return path


def finish(path: Path) -> None:
    """Mark a run as complete, after the row of its last round if it has none."""
    log, rounds = path / "metrics.jsonl", json.loads((path / "config.json").read_text())["rounds"]
    if json.loads(log.read_text().splitlines()[-1])["round"] != rounds:
        append(path, json.dumps(row(rounds)) + "\n")
    (path / "finished.json").write_text(json.dumps({"metric_rows": len(log.read_text().splitlines())}))


def append(path: Path, text: str) -> None:
    with (path / "metrics.jsonl").open("a") as file:
        file.write(text)


@contextmanager
def writer(path: Path) -> Iterator[None]:
    """A process that holds the lock of a run."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", _WRITER, path / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    try:
        yield
    finally:
        child.communicate()


def states(*places: Path) -> list[str]:
    return [seen.state for seen in Watcher(places).look()]


def terminal(width: int = 100, height: int = 30) -> Console:
    return Console(width=width, height=height, force_terminal=True, force_interactive=True, file=io.StringIO())


def drawn(*places: Path, metric: str | None = None, width: int = 100, height: int | None = 30) -> list[str]:
    """The lines of the picture, without colours."""
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    console.print(picture(Watcher(places).look(), metric, width, height))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def watched(monkeypatch: pytest.MonkeyPatch, place: Path, *happenings: Callable[[], object]) -> list[str]:
    """What is left on the screen when these things happened between the looks, one each."""
    left = iter(happenings)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda _: next(left)()))
    console = terminal()
    watch([place], console)
    assert list(left) == [], "it ended before all happened"
    text = console.file.getvalue()  # type: ignore[attr-defined]
    before, _, after = text.partition("\x1b[?1049l")  # the end of the alternate screen
    assert "\x1b[?1049h" in before
    return Text.from_ansi(after).plain.splitlines()


def nothing() -> None:
    pass


def test_a_run_is_running_while_its_lock_is_held_and_finished_or_stopped_otherwise(tmp_path: Path) -> None:
    path = make(tmp_path / "a", row(0))
    assert states(path) == [STOPPED]
    with writer(path):
        assert states(path) == [RUNNING]
    assert states(path) == [STOPPED]
    assert states(make(tmp_path / "b", row(0), finished=True)) == [FINISHED]
    (path / "lock").unlink()
    assert states(path) == [STOPPED]


def test_a_run_directory_in_use_is_running_and_one_that_was_looked_at_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with RunDirectory.open(path, CONFIG, resume=False):
        assert states(path) == [RUNNING]
    assert states(path) == [STOPPED]
    with RunDirectory.open(path, CONFIG, resume=True) as run:
        run.resume()
        run.log(row(100))
        run.finish()
    assert states(path) == [FINISHED]


def test_watchers_are_not_taken_for_writers(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    descriptor = os.open(path / "lock", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # as another watcher would
    assert not held(path)
    os.close(descriptor)


def test_a_run_that_finishes_between_two_glances_is_never_called_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a", row(100))

    def finishing(_: Path) -> bool:
        finish(path)
        return True

    monkeypatch.setattr(sight, "held", finishing)
    assert states(path) == [FINISHED]


def test_only_runs_that_changed_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [make(tmp_path / name, row(0), seed=seed) for seed, name in enumerate("abc")]
    asked: list[str] = []
    read = sight.read
    monkeypatch.setattr(sight, "read", lambda path: asked.append(path.name) or read(path))
    watcher = Watcher([tmp_path])
    watcher.look()
    assert asked == ["a", "b", "c"]
    watcher.look()
    assert asked == ["a", "b", "c"]
    append(paths[1], json.dumps(row(10)) + "\n")
    assert [seen.now["round"] for seen in watcher.look()] == [0, 10, 0]
    assert asked == ["a", "b", "c", "b"]
    finish(paths[2])
    assert [seen.state for seen in watcher.look()] == [STOPPED, STOPPED, FINISHED]
    assert asked == ["a", "b", "c", "b", "c"]


def test_half_a_line_at_the_end_of_a_log_is_not_there_yet(tmp_path: Path) -> None:
    path = make(tmp_path / "a", row(0))
    line = json.dumps(row(10))
    watcher = Watcher([path])
    append(path, line[:20])
    assert watcher.look()[0].now["round"] == 0
    append(path, line[20:] + "\n")
    assert watcher.look()[0].now["round"] == 10


def test_the_time_left_is_that_of_the_remaining_rounds_at_the_pace_so_far(tmp_path: Path) -> None:
    path = make(tmp_path / "a", row(0), row(20, seconds=5.0), rounds=100)
    assert Watcher([path]).look()[0].left is None  # nobody runs it
    with writer(path):
        assert Watcher([path]).look()[0].left == 20.0
        assert drawn(path)[-1].split()[-3:] == ["20", "s", "running"]
        assert Watcher([make(tmp_path / "b", row(0))]).look()[0].left is None


def test_runs_are_called_by_recipe_and_seed_or_where_these_agree_by_path(tmp_path: Path) -> None:
    make(tmp_path / "x", seed=0)
    make(tmp_path / "y", seed=1)
    assert [seen.name for seen in Watcher([tmp_path]).look()] == ["fedavg seed 0", "fedavg seed 1"]
    make(tmp_path / "z", seed=1)
    assert [seen.name for seen in Watcher([tmp_path]).look()] == ["x", "y", "z"]


def test_a_run_keeps_its_colour_when_others_appear_before_it(tmp_path: Path) -> None:
    make(tmp_path / "m", seed=0)
    watcher = Watcher([tmp_path])
    (first,) = watcher.look()
    make(tmp_path / "a", rounds=200)
    new, old = watcher.look()
    assert old.colour == first.colour != new.colour


def test_the_seeds_of_a_method_share_the_colour_that_a_report_gives_it(tmp_path: Path) -> None:
    for name in ("scaffold", "fedavg", "zeta"):
        for seed in range(2):
            place = make(tmp_path / f"{name}{seed}", row(0), seed=seed)
            (place / "config.json").write_text(json.dumps(CONFIG | {"recipe": {"name": name}, "seed": seed}))
    seen = {(sight.run.recipe, sight.colour) for sight in Watcher([tmp_path]).look()}
    (group,) = gather([read(place) for place in find([tmp_path])])
    assert seen == {(method.name, DARK[place]) for place, method in enumerate(group.methods)}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train_loss", "test_loss", "test_accuracy", "test_auc"], "test auc"),
        (["train_loss", "test_loss", "test_f1", "test_accuracy"], "test accuracy"),
        (["train_loss", "test_loss", "test_f1"], "test f1"),
        (["test_loss", "train_loss", "seconds"], "train loss"),
    ],
)
def test_the_metric_to_draw_is_the_best_known_score(tmp_path: Path, names: list[str], expected: str) -> None:
    make(tmp_path / "a", {"round": 0} | dict.fromkeys(names, 0.5))
    assert drawn(tmp_path)[0].strip() == f"{expected} by round"


def test_a_metric_can_be_chosen_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "a", row(0), row(50), row(100))
    lines = drawn(tmp_path, metric="up_bytes")
    assert lines[0].strip() == "uploaded by round"
    assert [line.split(" ┤")[0].strip() for line in lines if "┤" in line] == [
        "100 kB",
        "75.0 kB",
        "50.0 kB",
        "25.0 kB",
        "0 B",
    ]
    with pytest.raises(UserError, match="unknown metric 'auc'; did you mean 'test_auc'"):
        drawn(tmp_path, metric="auc")


def test_before_the_first_evaluation_there_is_a_table_alone(tmp_path: Path) -> None:
    make(tmp_path / "a")
    head, line = drawn(tmp_path, metric="test_auc")
    assert head.split() == ["run", "round", "up", "time", "left", "state"]
    assert line.split() == ["●", "fedavg", "seed", "0", "0/100", "-", "-", "-", "stopped"]


def test_a_wide_picture_has_curve_legend_and_all_numbers(tmp_path: Path) -> None:
    make(tmp_path / "a", *(row(t) for t in range(0, 101, 10)), finished=True)
    lines = drawn(tmp_path, height=20)
    assert len(lines) == 19
    assert lines[1].endswith("● fedavg seed 0  1.0000")
    assert " ".join(lines[-1].split()) == ("● fedavg seed 0 100/100 1.0000 0.0099 0.0198 0.5000 100 kB 50 s - finished")
    begins = [next(k for k, sign in enumerate(line) if 0x2800 < ord(sign) < 0x2900) for line in lines[1:14]]
    assert begins == sorted(begins, reverse=True)  # a line from the lower left to the upper right
    assert begins[-1] == lines[14].index("┬")
    assert lines[15].split() == ["0", "25", "50", "75", "100"]


@pytest.mark.parametrize(
    ("width", "height", "chart"), [(100, 30, 24), (80, 20, 16), (40, 12, 8), (40, 11, 0), (40, 5, 0), (32, 40, 24)]
)
def test_the_picture_fits_the_terminal(tmp_path: Path, width: int, height: int, chart: int) -> None:
    make(tmp_path / "a", row(0), row(100, test_auc=0.5))
    lines = drawn(tmp_path, width=width, height=height)
    assert len(lines) == chart + 3 < height
    assert max(map(len, lines)) <= width
    assert any("┤" in line for line in lines) == bool(chart)
    words = lines[-1].split()
    assert words[words.index("100/100") + 1] == "0.5000"
    assert words[-1] == "stopped"
    assert ("● fedavg seed 0  0.5000" in lines[1]) == (width >= 72)


def test_many_runs_leave_room_for_the_chart_and_the_running_ones_are_shown_first(tmp_path: Path) -> None:
    for number in range(40):
        make(tmp_path / f"{number:02}", row(0), row(10), seed=number, finished=number < 10)
    with ExitStack() as stack:
        for number in (20, 39):
            stack.enter_context(writer(tmp_path / f"{number:02}"))
        lines = drawn(tmp_path, height=24)
        low = drawn(tmp_path, height=9)
    assert len(lines) == 23
    assert sum("┤" in line for line in lines) >= 3
    runs = [line.split()[3] for line in lines if line.startswith("● ")]
    assert runs == [*map(str, range(10)), "20", "39"]
    assert lines[-1].strip() == "and 28 more stopped"
    assert any(line.rstrip().endswith("and 36 more") for line in lines)  # in the legend, too
    assert len(low) == 8
    assert low[-1].strip() == "and 7 more finished, 28 more stopped"


def test_piped_output_is_the_picture_once_and_whole(tmp_path: Path) -> None:
    for number in range(40):
        make(tmp_path / f"{number:02}", row(0), row(10), seed=number)
    with writer(tmp_path / "00"):  # it does not wait for it
        console = Console(width=80, file=io.StringIO())
        watch([tmp_path], console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in text
    assert sum(line.startswith("● ") for line in text.splitlines()) == 40
    assert text.count("by round") == 1


def test_watching_follows_a_growing_log_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a", row(0))
    with ExitStack() as stack:
        stack.enter_context(writer(path))

        def end() -> None:
            append(path, json.dumps(row(100)) + "\n")
            finish(path)
            stack.close()

        lines = watched(monkeypatch, path, lambda: append(path, json.dumps(row(50)) + "\n"), nothing, end)
    assert "100/100" in lines[-1]
    assert "finished" in lines[-1]


def test_runs_that_appear_later_are_picked_up_with_some_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(tmp_path / "a", row(0))
    with ExitStack() as one, ExitStack() as two:
        one.enter_context(writer(first))
        later = [nothing] * 3 + [lambda: two.enter_context(writer(make(tmp_path / "b", row(0), seed=1)))]
        lines = watched(monkeypatch, tmp_path, one.close, *later, two.close, *[nothing] * 5)
    assert [line.split()[3] for line in lines if "●" in line][-2:] == ["0", "1"]


def test_where_nothing_runs_it_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "a", row(0))
    assert "stopped" in watched(monkeypatch, tmp_path)[-1]


def test_an_interrupt_ends_it_quietly_with_the_last_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a", row(0))

    def interrupt() -> None:
        raise KeyboardInterrupt

    with writer(path):
        assert "running" in watched(monkeypatch, path, interrupt)[-1]


def test_places_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        watch([tmp_path], terminal())
