"""Runs as they are just now: how far each has come, and whether somebody is writing it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedslice.plot import DARK
from fedslice.runs.directory import FINISHED as FINISHED_FILE
from fedslice.runs.directory import LOCK, METRICS
from fedslice.runs.naming import rank, short_names
from fedslice.runs.reading import find, read
from fedslice.runs.run import Run

RUNNING, STOPPED, FINISHED = "running", "stopped", "finished"


@dataclass(frozen=True)
class Sight:
    """A run as it is seen just now."""

    run: Run
    name: str
    state: str
    colour: str

    @property
    def now(self) -> dict[str, Any]:
        """The newest row."""
        return self.run.rows[-1] if self.run.rows else {"round": 0}

    @property
    def left(self) -> float | None:
        """Seconds to go, if the remaining rounds take as long as those before."""
        done, seconds = self.now["round"], self.now.get("seconds")
        if self.state != RUNNING or done <= 0 or seconds is None:
            return None
        return float(seconds / done * (self.run.rounds - done))


class Watcher:
    """Looks at runs again and again, and reads only those that changed.

    Runs of one method share the colour that a report of the same runs gives it; a method that appears later gets the
    next one.
    """

    def __init__(self, places: Sequence[Path]):
        self._places = places
        self._known: dict[Path, tuple[object, Run]] = {}
        self._colours: dict[str, str] = {}

    def look(self) -> list[Sight]:
        """All runs at these places."""
        found = [(self._read(path, held(path)), path) for path in find(self._places)]
        runs = [run for (run, _), _ in found]
        tasks = list(dict.fromkeys(_task(run) for run in runs))
        for run in sorted(runs, key=lambda run: (tasks.index(_task(run)), rank(run.recipe, run.method))):
            self._colours.setdefault(_method(run), DARK[len(self._colours) % len(DARK)])
        return [
            Sight(run, name, state, self._colours[_method(run)])
            for ((run, state), _), name in zip(found, _names(runs), strict=True)
        ]

    def _read(self, path: Path, held: bool) -> tuple[Run, str]:
        """The lock is looked at first: a run says that it is finished before it lets go of it."""
        mark = tuple(_mark(path / name) for name in (METRICS, FINISHED_FILE))
        if self._known.get(path, (None,))[0] != mark:
            self._known[path] = mark, read(path)
        run = self._known[path][1]
        return run, FINISHED if run.finished else RUNNING if held else STOPPED


def _task(run: Run) -> str:
    return json.dumps(run.config["task"], sort_keys=True)


def _method(run: Run) -> str:
    return json.dumps([run.config["task"], run.recipe, run.method], sort_keys=True)


def held(path: Path) -> bool:
    """Does a process write this run? Asked with a shared lock: who watches must not look like who writes."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def _names(runs: Sequence[Run]) -> list[str]:
    """Recipe and seed, where they tell the runs apart."""
    names = [f"{run.recipe} seed {run.seed}" for run in runs]
    return names if len(set(names)) == len(names) else short_names([run.directory for run in runs])
