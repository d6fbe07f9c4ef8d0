"""Make an exhibit: check what is asked for, run what is missing, and put the paper's numbers beside the measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedslice import tasks
from fedslice.core.errors import UserError, unknown
from fedslice.papers import compression, counts, example, figures, spectrum, training, words
from fedslice.papers.exhibits import Exhibit, Kind, Setup
from fedslice.papers.files import load, present
from fedslice.papers.jobs import Order
from fedslice.papers.workers import cores

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
    console: Console,
    only: Sequence[str] = (),
    recipes: Sequence[str] = (),
) -> Document:
    """The exhibit's document: settings, commands, run directories, values and verdicts.

    ``jobs`` runs go on at once, by default one per core; ``scale`` shortens them. ``only`` names tasks, or setups of
    them, and ``recipes`` methods: the rest of the exhibit is left out, if any are named.
    """
    exhibit = present(exhibit)
    found, setups = load(exhibit)
    if seeds < 1:
        raise UserError(f"seeds={seeds}; give 1 or more.")
    if not (math.isfinite(scale) and 0 < scale <= 1):
        raise UserError(f"scale={scale:g}; give a number above 0, up to 1 for the paper's own size.")
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs={jobs}; give 1 or more.")
    if data is not None and not data.exists():
        raise UserError(f"--data {data} does not exist, expected a folder with the data sets.")
    order = Order(data, out, seeds, scale, jobs or cores(), console)
    wanted = _with_recipes(_with_setups(found, setups, only), recipes)
    if data is None:
        _check_data(exhibit, wanted, setups, console)
    return make(exhibit, wanted, setups, order)


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


def failures(document: Document) -> str | None:
    """A sentence about the runs of an exhibit that could not be made, with the first reason; ``None`` if all were."""
    found: dict[str, str | None] = {}
    for row in document["rows"]:
        for cell in row.get("cells", [row]):  # where nothing is trained a row is what a cell is elsewhere
            for one in cell.get("runs", [cell]):
                found[one["command"]] = one.get("error")
    errors = [error for error in found.values() if error is not None]
    if not errors:
        return None
    return f"{len(errors)} of {len(found)} runs could not be made. The first: {errors[0]}"


def _check_data(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], console: Console) -> None:
    """Without data: refuse an exhibit that has nothing else to show, or say what will be missing."""
    used = list(dict.fromkeys(setup for line in exhibit.row for setup in line.setups))
    needy = [one for one in used if setups[one].data and tasks.get(setups[one].task).needs_data]
    if not needy:
        return
    which = f"{name}: {', '.join(needy)}"
    if len(needy) == len(used):
        raise UserError(f"{which} cannot be made without data; say where they are with --data.")
    console.print(f"{which} cannot be made without --data, and will be missing", soft_wrap=True, highlight=False)


def _with_setups(exhibit: Exhibit, setups: Mapping[str, Setup], wanted: Sequence[str]) -> Exhibit:
    """The rows of some tasks, or some setups."""
    used = [name for line in exhibit.row for name in line.setups]
    _check("task or setup of this exhibit", wanted, {*used, *(setups[name].task for name in used)})
    kept = [
        line.model_copy(update={"setups": own})
        for line in exhibit.row
        if (own := tuple(name for name in line.setups if not wanted or {name, setups[name].task} & set(wanted)))
    ]
    return exhibit.model_copy(update={"row": tuple(kept)})


def _with_recipes(exhibit: Exhibit, wanted: Sequence[str]) -> Exhibit:
    """The cells of some recipes, and what is said of these alone."""
    _check("recipe of this exhibit", wanted, {cell.recipe for line in exhibit.row for cell in line.cells})
    if not wanted:
        return exhibit
    kept = []
    for line in exhibit.row:
        cells = tuple(cell for cell in line.cells if cell.recipe in wanted)
        named = {cell.name for cell in cells}
        claims = tuple(claim for claim in line.claims if {claim.first, claim.second} <= named)
        if cells:
            kept.append(line.model_copy(update={"cells": cells, "claims": claims}))
    return exhibit.model_copy(update={"row": tuple(kept)})


def _check(what: str, wanted: Sequence[str], known: set[str]) -> None:
    for name in wanted:
        if name not in known:
            raise unknown(what, name, known)
