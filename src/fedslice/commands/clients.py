"""Looking at a run's clients one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fedslice.commands.app import Json, show
from fedslice.console import Document, Shown, value
from fedslice.loading import loading

if TYPE_CHECKING:
    from fedslice.metrics import Directions

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
        from fedslice.runs.reading import directions

    rows = read_clients(Path(run_dir))
    declared = directions(Path(run_dir))
    ranked = sorted(rows, key=lambda row: _goodness(row, declared))
    show({"run": run_dir, "clients": ranked}, as_json, _tables)


def _goodness(row: dict[str, Any], declared: Directions) -> tuple[bool, float]:
    """By the first score, which is the first instrument's; who has none comes last."""
    from fedslice.metrics import lower_is_better

    name, score = list(row.items())[3]
    if score is None:
        return True, 0.0
    return False, -score if lower_is_better(name, declared) else score


def _tables(document: Document) -> Shown:
    rows = document["clients"]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for place, name in enumerate(rows[0]):
        table.add_column(name.replace("_", "\n", 1), justify="right" if place else "left", no_wrap=True)
    for row in rows[:_SHOWN]:
        table.add_row(*(str(cell) if name == "client" else value(name, cell) for name, cell in row.items()))
    rest = f", the first {_SHOWN} of them (all with --json)" if len(rows) > _SHOWN else ""
    return [Text(f"{document['run']}: {len(rows):,} clients, the worst first{rest}"), table]
