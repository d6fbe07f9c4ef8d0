"""Runs as a reader finds them, finished or not: nothing is locked, and nothing in them is trusted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedslice.core.errors import UserError
from fedslice.disk import read_bytes, reason
from fedslice.panel import LARGEST, Panel
from fedslice.runs.directory import COLUMNS, CONFIG, ENVIRONMENT, METRICS, ORIGIN, PANELS, RunDirectory
from fedslice.runs.run import Run
from fedslice.schema import Column
from fedslice.settings import first_problem

_LIST = TypeAdapter(list[Panel])
_COLUMNS = TypeAdapter(list[Column])
_DEEPEST = 50  # of a document: deeper than any run writes it
_ROUNDS = 10**9
_SEEDS = 2**63 - 1


def declared(path: Path) -> dict[str, Column]:
    """Return the columns of a run, as far as it says what they are."""
    file = path / COLUMNS
    if not file.exists():
        return {}
    try:
        found = _COLUMNS.validate_json(read_bytes(file))
    except (OSError, ValidationError) as error:
        what = reason(error) if isinstance(error, OSError) else first_problem(error)
        raise UserError(
            f"{file} holds no list of columns ({what}); delete the file, and columns are told by their names."
        ) from None
    return {one.name: one for one in found}


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
    for key in ("task", "recipe"):
        if not isinstance(config.get(key), dict) or not isinstance(config[key].get("name"), str):
            raise _strange(path, key, config.get(key))
    for key, low, high in (("seed", 0, _SEEDS), ("rounds", 1, _ROUNDS)):
        if type(config.get(key)) is not int or not low <= config[key] <= high:
            raise _strange(path, key, config.get(key))
    origin = _object(path / ORIGIN) if (path / ORIGIN).exists() else {}
    environment = _object(path / ENVIRONMENT) if (path / ENVIRONMENT).exists() else {}
    run = RunDirectory(path)
    command, settings = origin.get("command"), origin.get("settings")
    return Run(
        path,
        config,
        environment,
        command if isinstance(command, str) else None,
        _panels(path / PANELS),
        check_rows(path, run.metrics()),
        run.finished,
        run.diverged,
        declared(path),
        run.stopped,
        settings if isinstance(settings, dict) else {},
    )


def _strange(path: Path, key: str, value: Any) -> UserError:
    return UserError(f"{path / CONFIG}: {key!r} is {value!r:.60}, which no run of fedslice writes there.")


def _is_run(place: Path) -> bool:
    return place.is_dir() and (place / CONFIG).exists()


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_bytes(path))
        _check_plain(found, _DEEPEST)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({reason(error)}); give another run directory.") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object, which every run has there; give another run directory.")
    return found


def _check_plain(value: Any, deepest: int) -> None:
    """Refuse what JSON can hold and a page cannot: half a character, and a nesting without end."""
    match value:
        case str():
            value.encode()
        case dict() | list() if deepest == 0:
            raise ValueError(f"it is nested more than {_DEEPEST} deep")
        case dict():
            for key, entry in value.items():
                _check_plain(key, deepest)
                _check_plain(entry, deepest - 1)
        case list():
            for entry in value:
                _check_plain(entry, deepest - 1)


def check_rows(path: Path, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the log of the run at ``path``, seen to hold a round and numbers, as an experiment writes them.

    A number that no measurement gives (NaN, or beyond 1e300) is as good as none.
    """
    rows = []
    for number, row in enumerate(found, start=1):
        where = f"{path / METRICS}, line {number}"
        if type(row.get("round")) is not int:
            raise UserError(f"{where} is no row with a round; give another directory.")
        if not 0 <= row["round"] <= _ROUNDS:
            raise UserError(
                f"{where}: round is {_short(row['round'])}, expected 0 to {_ROUNDS}; give another directory."
            )
        for name, value in row.items():
            if not _encodable(name):
                raise UserError(f"{where} has a column {name!r:.60} that is no text; give another directory.")
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise UserError(f"{where}: {name:.60} is {value!r:.60}, expected a number.")
        rows.append({n: v if v is None or abs(v) <= LARGEST else None for n, v in row.items()})
    return rows


def _encodable(name: str) -> bool:
    """Whether it is text, and not half a character, which JSON can name."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _short(number: int) -> str:
    """A number with its size rather than hundreds of digits."""
    digits = str(abs(number))
    return str(number) if len(digits) <= 20 else f"a number of {len(digits)} digits"


def _panels(path: Path) -> list[Panel]:
    if not path.exists():
        return []
    try:
        return _LIST.validate_json(read_bytes(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({reason(error)}); delete it, and the report leaves it out.") from None
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}; delete the file, and the report leaves it out.") from None
