"""Tables of runs: the metrics of one, and when each of several methods reached a target and what it has at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedslice.runs.stopping import Target
from fedslice.schema import Columns, find, value
from fedslice.sheets import Cell, Sheet

Document = dict[str, Any]

_COSTS = ("up_bytes", "down_bytes", "clock")
_SPREAD = ": mean over seeds ± standard deviation"
_RUN_ROWS = 20  # lines of a run's table: a screenful


def run_sheet(caption: str, rows: Sequence[Document], columns: Columns) -> Sheet:
    """The metrics of one run, at most a screenful of rows, with the main costs; what was rejected if anything was."""
    last = rows[-1] if rows else {}
    costs = [name for name in (*_COSTS, "up_words", "rejected", "seconds") if name in last]
    shown_costs = [name for name in costs if name != "rejected" or last[name]]
    names = ["round", *(name for name in last if find(name, columns).measured), *shown_costs]
    step = max(1, -(-len(rows) // _RUN_ROWS))
    shown = [*rows[:-1:step], *rows[-1:]]
    cells = [[Cell(value(name, row.get(name), columns)) for name in names] for row in shown]
    return Sheet(caption, [find(name, columns).words for name in names], cells)


def target_sheet(
    rows: Sequence[Document], target: Target, columns: Columns, every: int = 1, baseline: str | None = None
) -> Sheet:
    """Return the table of costs to the target; a mean needs every seed to have reached it.

    Args:
        rows: As :func:`fedslice.runs.comparison.table` has them.
        target: The target.
        columns: The columns of the logs.
        every: Rounds between evaluations.
        baseline: The method whose simulated time counts as one.
    """
    names = ["rounds", *(name for name in _COSTS if any(f"{name}_to_target" in row for row in rows))]
    body = {
        find(name, columns).words: _compared(
            [(row.get(f"{name}_to_target"), row.get(f"{name}_to_target_std")) for row in rows], name, columns, True
        )
        for name in names
    }
    if any("t2a" in row for row in rows):
        body[f"time relative to {baseline}"] = [Cell(value("t2a", row.get("t2a"))) for row in rows]
    body["seeds that reached it"] = [Cell(f"{row['reached']} of {len(row['seeds'])}") for row in rows]
    seen = f"; seen at evaluations, every {every:,} rounds" if every > 1 else ""
    sign = {"<=": "≤", ">=": "≥"}.get(target.sign, target.sign)
    caption = f"Until {find(target.metric, columns).words} {sign} {target.value:g}"
    return _sheet(f"{caption}{_SPREAD if _several(rows) else ''}{seen}", rows, body)


def end_sheet(rows: Sequence[Document], metrics: Sequence[str], columns: Columns, remarks: Sequence[str] = ()) -> Sheet:
    """Return the table of last values; the best is marked only among methods with as many rounds.

    Args:
        rows: As :func:`fedslice.runs.comparison.table` has them.
        metrics: The columns that tell something about the model.
        columns: The columns of the logs.
        remarks: A word beside each method's name.
    """
    together = len({row["round"] for row in rows}) == 1
    body: dict[str, list[Cell]] = {"rounds": [Cell(value("round", row["round"])) for row in rows]}
    for name in metrics:
        column = find(name, columns)
        cells = [(row.get(name), row.get(f"{name}_std")) for row in rows]
        lower = column.lower_is_better if together and column.kind == "score" else None
        body[column.words] = [
            Cell("diverged") if row["diverged"] else cell
            for row, cell in zip(rows, _compared(cells, name, columns, lower), strict=True)
        ]
    for name in (*_COSTS, "rejected", "seconds"):
        if any(row.get(name) for row in rows):
            body[find(name, columns).words] = [Cell(value(name, row.get(name), columns)) for row in rows]
    sheet = _sheet(f"At the end{_SPREAD if _several(rows) else ''}", rows, body)
    marks = list(remarks) or [""] * len(rows)
    named = [[Cell(first.text, mark), *rest] for (first, *rest), mark in zip(sheet.rows, marks, strict=True)]
    return Sheet(sheet.caption, sheet.columns, named)


def legend(sheets: Sequence[Sheet], *, marks: bool = True) -> str:
    """Return the legend of ± and, where ``marks`` are shown, of bold numbers, if these tables have any."""
    cells = [cell for sheet in sheets for row in sheet.rows for cell in row[1:]]
    words = []
    marked = marks and any(cell.best for cell in cells)
    if any(cell.detail for cell in cells):
        words.append("± is the standard deviation over seeds: how far single runs lie from their mean.")
        if marked:
            words.append("Bold: the best mean, and every other whose interval of one ± overlaps with the best's.")
    elif marked:
        words.append("Bold: the best. One seed cannot tell a better method from luck.")
    return " ".join(words)


def _several(rows: Sequence[Document]) -> bool:
    return any(len(row["seeds"]) > 1 for row in rows)


def _compared(
    cells: Sequence[tuple[float | None, float | None]], name: str, columns: Columns, lower: bool | None
) -> list[Cell]:
    """Means with their deviations. The best is marked, and with it all whose interval overlaps with the best's.

    Nothing is marked where ``lower``, which says whether less is better, is None, and where all numbers look alike. A
    method that sends nothing (all data in one place) has not won by it, so costs of zero are not compared.
    """
    texts = [value(name, found, columns) for found, _ in cells]
    able = {
        place: found for place, (found, _) in enumerate(cells) if found or (found is not None and name not in _COSTS)
    }
    best: set[int] = set()
    if lower is not None and len({texts[place] for place in able}) > 1:
        sign = 1 if lower else -1
        first = min(able, key=lambda place: sign * (able[place] or 0.0))
        best = {place for place in able if texts[place] == texts[first] or _overlap(cells[place], cells[first])}
    details = ["" if spread is None else f"±{value(name, spread, columns)}" for _, spread in cells]
    return [Cell(text, detail, place in best) for place, (text, detail) in enumerate(zip(texts, details, strict=True))]


def _overlap(one: tuple[float | None, float | None], other: tuple[float | None, float | None]) -> bool:
    """Do the intervals of one standard deviation around two means touch? One seed has no deviation."""
    return abs((one[0] or 0.0) - (other[0] or 0.0)) <= (one[1] or 0.0) + (other[1] or 0.0)


def _sheet(caption: str, rows: Sequence[Document], columns: dict[str, list[Cell]]) -> Sheet:
    body = [[Cell(row["recipe"]), *(column[place] for column in columns.values())] for place, row in enumerate(rows)]
    return Sheet(caption, ["method", *columns], body)
