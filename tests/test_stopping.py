"""Ctrl-C and SIGTERM: what is saved, what is said, and that a run then goes on as if nothing had been."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from command import TINY, execute, fedslice, without_seconds
from fedslice.config import Plan, assignments, request, resolve
from fedslice.core.errors import RunWarning
from fedslice.runs import checkpoint
from fedslice.signals import Stopped, Stopwatch, deferred
from fedslice.training import experiment as experiments

# Processes that are forked off one in which everything is imported: each is a real one, and starts in no time.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["fedslice.cli"])

LONG = ("hotcold", "--rounds", 10**6, "--cohort", 6, "--eval-every", 2, "--checkpoint-seconds", 10**6, "--set", *TINY)
SIGNALS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]


def command(folder: Path, words: tuple[object, ...], prepare: Callable[[Path], None] | None) -> None:
    """One command in a process of its own, with what it says in a file."""
    import torch

    torch.set_num_threads(1)
    os.chdir(folder)
    if prepare is not None:
        prepare(folder)
    done = fedslice(*words)
    (folder / "said").write_text(done.err)
    sys.exit(done.code)


def start(folder: Path, *words: object, prepare: Callable[[Path], None] | None = None) -> Any:
    process = SERVER.Process(target=command, args=(folder, words, prepare))
    process.start()
    return process


def wait(process: Any, moment: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while process.is_alive() and not moment() and time.monotonic() < until:
        time.sleep(0.005)
    assert process.is_alive()


def end(process: Any, folder: Path) -> tuple[int, str]:
    """The exit code and the last line."""
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode, (folder / "said").read_text().splitlines()[-1]


def rows(run: Path) -> int:
    log = run / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def saved(run: Path) -> int:
    return int(checkpoint.load(run / "checkpoint.safetensors")[1]["round"])


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_a_signal_saves_the_round_at_hand_and_the_last_line_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    process = start(tmp_path, "run", *LONG, "--out", "r")
    wait(process, lambda: rows(tmp_path / "r") >= 3)
    os.kill(process.pid, number)
    found, said = end(process, tmp_path)
    assert found == code
    at = saved(tmp_path / "r")
    assert said == (
        f"fedslice: {word}; round {at} of 1000000 is saved in r, and the same command with --resume goes on from there."
    )
    assert rows(tmp_path / "r") == at // 2 + 1
    assert not (tmp_path / "r" / "finished.json").exists()


def test_a_comparison_that_is_stopped_saves_the_run_at_hand(tmp_path: Path) -> None:
    process = start(tmp_path, "compare", *LONG, "--recipes", "fedavg,fedsubavg", "--out", "c")
    wait(process, lambda: rows(tmp_path / "c" / "fedavg-seed0") >= 2)
    os.kill(process.pid, signal.SIGTERM)
    code, said = end(process, tmp_path)
    at = saved(tmp_path / "c" / "fedavg-seed0")
    assert code == 143
    assert f"round {at} of 1000000 is saved in c/fedavg-seed0" in said
    assert not (tmp_path / "c" / "fedsubavg-seed0").exists()


def first_evaluation_takes_long(folder: Path) -> None:
    def never(*_: object) -> dict[str, float]:
        (folder / "here").touch()
        time.sleep(600)
        raise AssertionError("nobody stopped it")

    experiments.evaluate = never  # type: ignore[assignment]


def first_round_takes_long(folder: Path) -> None:
    def never(*_: object) -> Any:
        (folder / "here").touch()
        time.sleep(600)
        raise AssertionError("nobody stopped it")

    experiments.play_round = never


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_before_the_first_round_there_is_nothing_to_save_and_nothing_is_waited_for(
    tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    process = start(tmp_path, "run", *LONG, "--out", "r", prepare=first_evaluation_takes_long)
    wait(process, (tmp_path / "here").exists)
    os.kill(process.pid, number)
    said = f"fedslice: {word}."
    assert end(process, tmp_path) == (code, said)


def test_a_second_ctrl_c_ends_at_once_and_says_what_there_is(tmp_path: Path) -> None:
    process = start(tmp_path, "run", *LONG, "--out", "r", prepare=first_round_takes_long)
    wait(process, (tmp_path / "here").exists)
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGTERM)  # as a scheduler does, to the process and to its group: it is no haste
    process.join(0.3)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    said = "r has no checkpoint, and the same command with --resume begins the run again."
    assert end(process, tmp_path) == (143, f"fedslice: ended by SIGTERM; {said}")


def plan(rounds: int = 12, **more: Any) -> Plan:
    said = {"task": "hotcold", "cohort": 6, "rounds": rounds, "eval_every": 5, "set": assignments(TINY)}
    return resolve(request(said | more))


def ask(number: int, at: int, done: int) -> None:
    if done == at:
        os.kill(os.getpid(), number)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return without_seconds(execute(plan(), tmp_path_factory.mktemp("whole") / "run", resume=False))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_stopped_after_every_round_comes_to_the_same_metrics(
    tmp_path: Path, whole: list[dict[str, Any]], number: signal.Signals
) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT)]
    for at in range(1, 12):
        with pytest.raises(Stopped) as stopped:
            execute(plan(), tmp_path, resume=True, on_round=partial(ask, number, at))
        assert (stopped.value.saved, stopped.value.code) == (at, 128 + number)
        assert saved(tmp_path) == at
    with pytest.raises(Stopped, match="is finished"):
        execute(plan(), tmp_path, resume=True, on_round=partial(ask, number, 12))
    assert without_seconds(execute(plan(), tmp_path, resume=True)) == whole
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT)] == before


def test_a_log_is_never_cut_without_a_word(tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    """A killed run leaves rows behind its checkpoint: they are counted, and come out the same."""

    def kill(at: int, row: dict[str, Any]) -> None:
        if row["round"] == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plan(), tmp_path, resume=True, on_row=partial(kill, 5))
    with (
        pytest.warns(RunWarning, match="had 2 rows and no checkpoint; what was not saved is computed again"),
        pytest.raises(Stopped),
    ):
        execute(plan(), tmp_path, resume=True, on_round=partial(ask, signal.SIGTERM, 7))
    with pytest.raises(KeyboardInterrupt):
        execute(plan(), tmp_path, resume=True, on_row=partial(kill, 10))
    with pytest.warns(RunWarning, match="had 1 row after its checkpoint of round 7; what"):
        assert without_seconds(execute(plan(), tmp_path, resume=True)) == whole


def test_a_checkpoint_is_due_after_any_round_and_not_only_after_an_evaluation(tmp_path: Path) -> None:
    def look(done: int) -> None:
        if done == 4:
            assert saved(tmp_path) == 3
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plan(), tmp_path, resume=False, checkpoint_seconds=0, on_round=look)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred() as request:
            os.kill(os.getpid(), signal.SIGINT)
            assert request.number is None
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_time_in_which_the_program_was_stopped_is_no_computing_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"perf_counter": 100.0, "process_time": 7.0}
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(time, name, lambda name=name: clocks[name])
    with deferred():
        watch, steady = Stopwatch(), Stopwatch()
        clocks.update(perf_counter=102.0, process_time=8.0)
        assert steady.seconds() == 2.0
        os.kill(os.getpid(), signal.SIGCONT)  # which follows every SIGSTOP and Ctrl-Z
        clocks.update(perf_counter=3702.0, process_time=9.0)
        assert watch.seconds() == 2.0
        clocks.update(perf_counter=100.5)
        assert watch.seconds() == 0.5
        assert Stopwatch().seconds() == 0.0
