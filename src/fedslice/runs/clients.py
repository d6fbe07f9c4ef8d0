"""The table of clients that a run leaves: written by `RunDirectory.clients`, read here, and trusted in nothing."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

from fedslice.core.errors import UserError
from fedslice.disk import open_regular, reason
from fedslice.runs.directory import CLIENTS, CONFIG

_COUNTS = ("train_samples", "test_samples")
_FIRST = ("client", *_COUNTS)


def read_clients(path: Path) -> list[dict[str, Any]]:
    """A run's clients: the name of each, its samples, and its scores, which are ``None`` where they are undefined."""
    if not (path / CONFIG).exists():
        raise UserError(f"{path} holds no run (no {CONFIG} in it); give a run directory.")
    file = path / CLIENTS
    if not file.exists():
        raise UserError(
            f"{path} has no {CLIENTS}, which a run with --measure personal, stale or tuned writes when it ends; "
            "make such a run, or let it end."
        )
    try:
        with io.TextIOWrapper(open_regular(file), encoding="utf-8", newline="") as lines:
            header, *rows = list(csv.reader(lines, strict=True)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read ({reason(error)}); make the run again in another --out.") from None
    if tuple(header[: len(_FIRST)]) != _FIRST or len(header) == len(_FIRST) or len(set(header)) < len(header):
        raise UserError(
            f"{file}, line 1 has the columns {', '.join(header)!r:.80}, expected {', '.join(_FIRST)} and scores; make "
            "the run again in another --out."
        )
    if not rows:
        raise UserError(f"{file} names no client; make the run again in another --out.")
    return [_row(file, number, header, row) for number, row in enumerate(rows, start=2)]


def _row(file: Path, number: int, header: list[str], row: list[str]) -> dict[str, Any]:
    if len(row) != len(header):
        raise UserError(
            f"{file}, row {number} has {len(row)} cells, expected {len(header)}; make the run again in another --out."
        )
    client, *cells = row
    return {"client": client} | {
        name: _number(file, number, name, cell) for name, cell in zip(header[1:], cells, strict=True)
    }


def _number(file: Path, number: int, name: str, cell: str) -> float | None:
    if cell == "" and name not in _COUNTS:
        return None
    try:
        value = int(cell) if name in _COUNTS else float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (name in _COUNTS and value < 0):
        raise UserError(
            f"{file}, row {number}: {name} is {cell!r:.40}, expected a number; make the run again in another --out."
        )
    return value
