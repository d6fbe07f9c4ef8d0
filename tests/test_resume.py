"""A run that is killed at any moment resumes to the metrics of a run that was left alone."""

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from command import ENVIRONMENT, SCRIPT, execute, fedslice, without_seconds
from fedslice.config import assignments, request, resolve
from fedslice.runs import checkpoint

# Processes that are forked off one in which everything is imported: each is a real one, and starts in no time.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["fedslice.cli", "fedslice.runs.execute"])

ROUNDS = 120
BASE = ("run", "hotcold", "--rounds", ROUNDS, "--eval-every", 4, "--checkpoint-seconds", 0, "--json")
SIZES = ("--set", "clients=12", "items=30", "samples=8", "factors=2", "iterations=1", "batch_size=2")
RECIPES = {
    "fedsubavg": ("--recipe", "fedsubavg", "--cohort", 4, *SIZES),
    "feddd": ("--recipe", "feddd", *SIZES, "full_every=7"),  # every client remembers a model and a mask
    "flss": ("--recipe", "flss", "--cohort", 4, *SIZES, "warmup=30", "rank=4", "every=3"),  # the codec has a basis
}


def call(words: tuple[object, ...]) -> None:
    """One command, on one thread: in a process of its own."""
    import torch

    torch.set_num_threads(1)
    done = fedslice(*words)
    assert done.code == 0, done.err


def rows(run: Path) -> int:
    log = run / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def finish(run: Path, *words: object) -> list[dict[str, Any]]:
    """Let a command come to its end in a process of its own; the metrics it left."""
    process = SERVER.Process(target=call, args=((*words, "--out", run),))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert (run / "finished.json").exists()
    return without_seconds({"metrics": [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]})


def kill(run: Path, words: tuple[object, ...], moment: Callable[[], bool], later: float) -> None:
    """Start or resume a run and kill it a little later than the moment; it may have finished by then."""
    process = SERVER.Process(target=call, args=((*words, "--out", run, "--resume"),))
    process.start()
    until = time.monotonic() + 60
    while process.is_alive() and not moment() and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(later)
    process.kill()
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """The metrics of a recipe's run that nobody disturbs."""
    return cache(lambda recipe: finish(tmp_path_factory.mktemp("whole") / recipe, *BASE, *RECIPES[recipe]))


@pytest.mark.parametrize("recipe", RECIPES)
def test_killed_at_random_moments(tmp_path: Path, whole: Callable[[str], list[dict[str, Any]]], recipe: str) -> None:
    expected = whole(recipe)
    assert [row["round"] for row in expected] == list(range(0, ROUNDS + 1, 4))
    words = (*BASE, *RECIPES[recipe])
    draw = random.Random(recipe)
    run = tmp_path / "killed"
    for _ in range(2):  # very early: before the directory, in the middle of its making, or soon after
        kill(run, words, lambda: True, draw.uniform(0, 0.1))
    resumed = 0
    for wanted in (1, *sorted(draw.sample(range(2, 28), 4))):
        kill(run, words, lambda wanted=wanted: rows(run) >= wanted, draw.uniform(0, 0.02))
        resumed += (run / "checkpoint.safetensors").exists() and not (run / "finished.json").exists()
    assert resumed
    assert finish(run, *words, "--resume") == expected


@pytest.mark.parametrize("recipe", RECIPES)
def test_stopped_after_any_round(tmp_path: Path, recipe: str) -> None:
    """The same without chance: between the first evaluation and its first checkpoint, beside one, before the last."""
    given = assignments(str(word) for word in RECIPES[recipe] if "=" in str(word))
    said = {"task": "hotcold", "recipe": recipe, "rounds": 60, "eval_every": 4, "set": given}
    plan = resolve(request(said if recipe == "feddd" else said | {"cohort": 4}))
    expected = execute(plan, tmp_path / "whole", resume=False)
    stopped = tmp_path / "stopped"
    for last in (1, 3, 4, 5, 33, 59, 60):
        with pytest.raises(KeyboardInterrupt):
            execute(plan, stopped, resume=True, checkpoint_seconds=0, on_round=partial(stop, last))
    again = execute(plan, stopped, resume=True)
    assert without_seconds(again) == without_seconds(expected)


def test_panels_are_the_same_after_a_resume_to_the_last_letter(tmp_path: Path) -> None:
    """Rounds that were saved as a tensor of fractions come back as whole numbers."""
    given = assignments(str(word) for word in RECIPES["flss"] if "=" in str(word))
    plan = resolve(request({"task": "hotcold", "recipe": "flss", "rounds": 45, "cohort": 4, "set": given}))
    execute(plan, tmp_path / "whole", resume=False)
    with pytest.raises(KeyboardInterrupt):
        execute(plan, tmp_path / "stopped", resume=True, checkpoint_seconds=0, on_round=partial(stop, 43))
    execute(plan, tmp_path / "stopped", resume=True)
    panels = [(tmp_path / name / "panels.json").read_text() for name in ("whole", "stopped")]
    assert panels[0] == panels[1]
    assert '"round": 34,' in panels[0]


def stop(last: int, done: int) -> None:
    if done == last:
        raise KeyboardInterrupt


def test_an_interrupted_run_resumes(tmp_path: Path, whole: Callable[[str], list[dict[str, Any]]]) -> None:
    words = (*BASE, *RECIPES["fedsubavg"])
    run = tmp_path / "interrupted"
    command = [SCRIPT, *map(str, words), "--out", run]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=tmp_path
    )
    until = time.monotonic() + 60
    while rows(run) < 5 and time.monotonic() < until:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    said = [line for line in err.splitlines() if "  round " not in line]
    (sentence,) = said
    found = re.fullmatch(
        rf"fedslice: interrupted; round (\d+) of {ROUNDS} is saved in {re.escape(str(run))}, and the same command with "
        r"--resume goes on from there\.",
        sentence,
    )
    assert found
    assert checkpoint.load(run / "checkpoint.safetensors")[1]["round"] == int(found[1])
    assert not (run / "finished.json").exists()
    assert finish(run, *words, "--resume") == whole("fedsubavg")
