"""Tables of exhibits of accuracy: at the end, over simulated time, and by class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedslice.papers.sheets import (
    claim_sheet,
    curve_sheet,
    heading,
    score,
    seeds,
    short_heading,
    span,
    unless_nothing_ran,
    verdict,
)
from fedslice.schema import find, value
from fedslice.sheets import Sheet

Document = dict[str, Any]


@unless_nothing_ran
def accuracy(row: Document) -> Iterator[Sheet]:
    """The last scores and their cost, the way there, and what the paper says of them."""
    cells = row["cells"]
    given = any(cell["paper"]["final"] is not None for cell in cells)
    paper, judged = (["paper"], ["verdict"]) if given else ([], [])
    title = f"{heading(row)}: {find(row['metric']).words} after {row['rounds']:,} rounds"
    columns = ["recipe", *paper, "by seed", "mean", "best", "up", "simulated", *judged]
    yield Sheet.of_words(title, columns, [_last(cell, given) for cell in cells], prose=given)
    yield curve_sheet(row, short_heading(row))
    yield from claim_sheet(row, ".3f")


def _last(cell: Document, given: bool) -> list[str]:
    paper = [score(cell["paper"]["final"])] if given else []
    judged = [verdict(cell["verdicts"].get("final"))] if given else []
    scores = [seeds(cell["final"]), score(cell["final"]["mean"]), score(cell["best"]["mean"])]
    costs = [value(name, cell[name]["mean"]) for name in ("up_bytes", "clock")]
    return [cell["cell"], *paper, *scores, *costs, *judged]


@unless_nothing_ran
def time(row: Document) -> Iterator[Sheet]:
    """The time to each target, as a share of FedAvg's, and what the paper says of it."""
    columns = ["recipe", *(f"to {target:g}" for target in row["targets"])]
    title = f"{heading(row)}: simulated time to {find(row['metric']).words}, and its share of FedAvg's (T2A)"
    rows = [[cell["cell"], *(_target(one) for one in cell["targets"])] for cell in row["cells"]]
    yield Sheet.of_words(title, columns, rows, prose=False)
    yield from claim_sheet(row, ".1%")


def _target(found: Document) -> str:
    times = found["clock"]["by_seed"]
    reached = sum(one is not None for one in times)
    if reached < len(times):
        return f"reached by {reached} of {len(times)}"
    return f"{value('clock', found['clock']['mean'])}  {value('t2a', found['t2a']['mean'])}"


@unless_nothing_ran
def classes(row: Document) -> Iterator[Sheet]:
    """Every class's accuracy, the paper's numbers beside it, and what the paper says of the rare classes."""
    cells = row["cells"]
    labels = max(([one["class"] for one in cell["classes"]] for cell in cells), key=len)
    title = f"{heading(row)}: test accuracy by class after {row['rounds']:,} rounds, mean over seeds"
    rows = [
        [cell["cell"], *([_short(one) for one in cell["classes"]] or ["-"] * len(labels)), _short(cell["final"])]
        for cell in cells
    ]
    yield Sheet.of_words(title, ["recipe", *labels, "all"], rows, prose=False)
    given = [
        [cell["cell"], one["class"], span(one, ".3f"), seeds(one), score(one["mean"]), verdict(one["verdict"])]
        for cell in cells
        for one in cell["classes"]
        if one["paper"] is not None
    ]
    if given:
        columns = ["recipe", "class", "paper", "by seed", "mean", "verdict"]
        yield Sheet.of_words(f"{short_heading(row)}: the classes the paper speaks of", columns, given)
    rare = ", ".join(map(str, row["rare"]))
    yield from claim_sheet(row, ".3f", f" of the mean over the rare classes ({rare})")


def _short(found: Document) -> str:
    return "-" if found["mean"] is None else f"{found['mean']:.3f}"
