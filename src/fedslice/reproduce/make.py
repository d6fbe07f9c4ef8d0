"""Make an exhibit: check what is asked for, run what is missing, and put the paper's numbers beside the measured."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from fedslice.errors import UserError, unknown
from fedslice.reproduce import compression, counts, example, figures, spectrum, training, words
from fedslice.reproduce.exhibits import Exhibit, Kind, Setup
from fedslice.reproduce.files import load
from fedslice.reproduce.jobs import Order

Document = dict[str, Any]

_MAKERS: dict[Kind, Callable[[str, Exhibit, Mapping[str, Setup], Order], list[Document]]] = {
    "rounds": training.rows,
    "curves": training.rows,
    "accuracy": figures.rows,
    "time": figures.rows,
    "classes": figures.rows,
    "compression": compression.rows,
    "words": words.rows,
    "spectrum": spectrum.rows,
    "statistics": counts.rows,
    "histogram": counts.rows,
    "trajectory": example.rows,
}


def reproduce(
    exhibit: str,
    *,
    data: Path | None,
    out: Path,
    seeds: int,
    scale: float,
    jobs: int | None,
    only: str | None,
    console: Console,
) -> Document:
    """The exhibit's document: settings, commands, run directories, values and verdicts.

    ``jobs`` runs go on at once, by default one per core; ``scale`` shortens them; ``only`` names a task, or one setup.
    """
    found, setups = load(exhibit)
    if seeds < 1:
        raise UserError(f"seeds={seeds}; give 1 or more.")
    if not (math.isfinite(scale) and 0 < scale <= 1):
        raise UserError(f"scale={scale:g}; give a number above 0, up to 1 for the paper's own size.")
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs={jobs}; give 1 or more.")
    order = Order(data, out, seeds, scale, jobs or os.cpu_count() or 1, console)
    return make(exhibit, found if only is None else _only(found, setups, only), setups, order)


def make(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> Document:
    """The document of an exhibit that need not be one of the papers'."""
    return {
        "exhibit": name,
        "title": exhibit.title,
        "kind": exhibit.kind,
        "notes": list(exhibit.notes),
        "seeds": list(range(order.seeds)),
        "scale": order.scale,
        "rows": _MAKERS[exhibit.kind](name, exhibit, setups, order),
    }


def _only(exhibit: Exhibit, setups: Mapping[str, Setup], task: str) -> Exhibit:
    """The rows of one task, or one setup."""
    used = [name for line in exhibit.row for name in line.setups]
    if task not in (known := {*used, *(setups[name].task for name in used)}):
        raise unknown("task or setup of this exhibit", task, known)
    kept = [
        line.model_copy(update={"setups": own})
        for line in exhibit.row
        if (own := tuple(name for name in line.setups if task in (name, setups[name].task)))
    ]
    return exhibit.model_copy(update={"row": tuple(kept)})
