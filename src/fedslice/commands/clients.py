"""Looking at a run's clients one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedslice.commands.app import Json, show
from fedslice.console import Shown
from fedslice.loading import loading
from fedslice.schema import Columns, find, value
from fedslice.sheets import Cell, Sheet, terminal

_SHOWN = 40  # lines of the table; a program is told all


def clients(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="The directory of a run that has ended.")],
    as_json: Json = False,
) -> None:
    """Show the scores of each client's own model, the worst first.

    They are there for runs with --measure personal, stale or tuned.
    """
    with loading():
        from fedslice.runs.clients import read_clients
        from fedslice.runs.reading import declared

    rows = read_clients(Path(run_dir))
    columns = declared(Path(run_dir))
    ranked = sorted(rows, key=lambda row: _goodness(row, columns))
    show(lambda: {"run": run_dir, "clients": ranked}, as_json, lambda: _tables(run_dir, ranked, columns))


def _goodness(row: dict[str, Any], columns: Columns) -> tuple[bool, float]:
    """Sort key: the first score, which is the first instrument's; a client without one comes last."""
    name, score = list(row.items())[3]
    if score is None:
        return True, 0.0
    return False, -score if find(name, columns).lower_is_better else score


def _tables(run_dir: str, rows: Sequence[dict[str, Any]], columns: Columns) -> Shown:
    names = list(rows[0])
    cells = [
        [Cell(str(row[name]) if name == "client" else value(name, row[name], columns)) for name in names]
        for row in rows[:_SHOWN]
    ]
    rest = f", the first {_SHOWN} of them (all with --json)" if len(rows) > _SHOWN else ""
    sheet = Sheet(
        f"{run_dir}: {len(rows):,} clients, the worst first{rest}", [find(n, columns).words for n in names], cells
    )
    return [Text(sheet.caption), terminal(sheet, tall=True)]
