"""Runs as a reader finds them, finished or not: nothing is locked, and nothing in them is trusted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedslice.disk import read_bytes, reason
from fedslice.errors import UserError
from fedslice.panel import Panel
from fedslice.runs.directory import CONFIG, ENVIRONMENT, METRICS, ORIGIN, PANELS, RunDirectory
from fedslice.settings import first_problem

_LIST = TypeAdapter(list[Panel])


@dataclass(frozen=True)
class Run:
    """What a run directory says."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    command: str | None  # that makes this run again; older runs do not know it
    panels: list[Panel]
    rows: list[dict[str, Any]]
    finished: bool
    diverged: dict[str, Any] | None = (
        None  # of a finished run: the round, and how many updates were rejected of how many
    )

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.config["task"]["name"])

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return str(self.config["recipe"]["name"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    @property
    def rounds(self) -> int:
        """How many rounds it is to have."""
        return int(self.config["rounds"])


def find(places: Iterable[Path]) -> list[Path]:
    """The run directories among these and, where a place is none itself, right below it; each once."""
    found: dict[Path, None] = {}
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place} is not a directory; give run directories, or a directory that holds some.")
        here = [place] if _is_run(place) else sorted(entry for entry in place.iterdir() if _is_run(entry))
        if not here:
            raise UserError(f"{place} holds no run (no {CONFIG} in it or right below it); give run directories.")
        found |= dict.fromkeys(here)
    return list(found)


def read(path: Path) -> Run:
    """One run, as far as it has come."""
    config = _object(path / CONFIG)
    for key, kind in (("task", dict), ("recipe", dict), ("seed", int), ("rounds", int)):
        value = config.get(key)
        if not isinstance(value, kind) or (isinstance(value, dict) and not isinstance(value.get("name"), str)):
            raise UserError(f"{path / CONFIG}: {key!r} is {value!r:.60}, which no run of fedslice writes there.")
    origin = _object(path / ORIGIN) if (path / ORIGIN).exists() else {}
    environment = _object(path / ENVIRONMENT) if (path / ENVIRONMENT).exists() else {}
    run = RunDirectory(path)
    command = origin.get("command")
    return Run(
        path,
        config,
        environment,
        command if isinstance(command, str) else None,
        _panels(path / PANELS),
        check_rows(path, run.metrics()),
        run.finished,
        run.diverged,
    )


def _is_run(place: Path) -> bool:
    return place.is_dir() and (place / CONFIG).exists()


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({reason(error)}); give another run directory.") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object, which every run has there; give another run directory.")
    return found


def check_rows(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the log of the run at ``path``, seen to hold a round and numbers, as an experiment writes them."""
    for number, row in enumerate(rows, start=1):
        if type(row.get("round")) is not int:
            raise UserError(f"{path / METRICS}, line {number} is no row with a round; give another directory.")
        for name, value in row.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise UserError(f"{path / METRICS}, line {number}: {name} is {value!r:.60}, expected a number.")
    return rows


def _panels(path: Path) -> list[Panel]:
    if not path.exists():
        return []
    try:
        return _LIST.validate_json(read_bytes(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({reason(error)}); delete it, and the report leaves it out.") from None
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}; delete the file, and the report leaves it out.") from None
