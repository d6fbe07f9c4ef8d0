"""The tables of a task: what each method reached and at what cost, and how the runs were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from fedslice.compare import Target, cadence, relate, table
from fedslice.console import value
from fedslice.core.errors import UserError
from fedslice.measure.instruments import is_score
from fedslice.report.gather import Group, Method, number
from fedslice.report.naming import differing, flatten, short_keys
from fedslice.runs.reading import Run

Document = dict[str, Any]

_COSTS = ("up_bytes", "down_bytes", "clock")
_HEADINGS = {"up_bytes": "uploaded", "down_bytes": "downloaded", "clock": "simulated time", "seconds": "computing time"}
_SPREAD = ": mean over seeds ± standard deviation"


@dataclass(frozen=True)
class Cell:
    """A number as text, or words."""

    text: str
    detail: str = ""
    best: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table whose first column names its rows."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]
    numbers: bool = True  # right-aligned after the first column


def heading(name: str) -> str:
    """A column of the log in words."""
    return _HEADINGS.get(name, name.replace("_", " "))


def summary(group: Group, target: Target | None, baseline: str | None = None) -> list[Document]:
    """One row per method that has begun, as `compare.table` has it."""
    rows = [table(_documents(method), target)[0] for method in group.begun]
    if baseline is not None and (name := _baseline(group, baseline)) is not None:
        relate(rows, name)
    return [
        {key: None if isinstance(cell, float) and isnan(cell) else cell for key, cell in row.items()} for row in rows
    ]


def target_sheet(group: Group, rows: Sequence[Document], target: Target, baseline: str | None = None) -> Sheet:
    """What it took to get there; a mean needs every seed to have arrived."""
    names = ["rounds", *(name for name in _COSTS if any(f"{name}_to_target" in row for row in rows))]
    columns = {
        heading(name): _marked(
            [(row.get(f"{name}_to_target"), row.get(f"{name}_to_target_std")) for row in rows], name, lower=True
        )
        for name in names
    }
    if any("t2a" in row for row in rows):
        columns[f"time relative to {baseline}"] = [Cell(value("t2a", row.get("t2a"))) for row in rows]
    columns["seeds that reached it"] = [Cell(f"{row['reached']} of {len(row['seeds'])}") for row in rows]
    caption = f"Until {heading(target.metric)} {'≤' if target.from_above else '≥'} {target.value:g}"
    every = cadence(document for method in group.begun for document in _documents(method))
    seen = f"; seen at evaluations, every {every:,} rounds" if every > 1 else ""
    return _sheet(f"{caption}{_SPREAD if _several(rows) else ''}{seen}", rows, columns)


def end_sheet(group: Group, rows: Sequence[Document]) -> Sheet:
    """What each method has at its end; the best is marked only among methods that have come equally far."""
    together = len({row["round"] for row in rows}) == 1
    columns: dict[str, list[Cell]] = {"rounds": [Cell(value("round", row["round"])) for row in rows]}
    for name in group.metrics:
        cells = [(row.get(name), row.get(f"{name}_std")) for row in rows]
        compared = together and is_score(name)
        columns[heading(name)] = _marked(cells, name, lower=group.lower_is_better(name) if compared else None)
    for name in (*_COSTS, "rejected", "seconds"):
        if any(row.get(name) for row in rows):
            columns[heading(name)] = [Cell(value(name, row.get(name))) for row in rows]
    sheet = _sheet(f"At the end{_SPREAD if _several(rows) else ''}", rows, columns)
    marks = {method.name: "unfinished" if method.unfinished else "" for method in group.methods}
    named = [[Cell(first.text, marks[first.text]), *rest] for first, *rest in sheet.rows]
    return Sheet(sheet.caption, sheet.columns, named)


def legend(sheets: Sequence[Sheet]) -> str:
    """What ± and bold numbers in these tables mean, as far as there are any."""
    cells = [cell for sheet in sheets for row in sheet.rows for cell in row[1:]]
    words = []
    if any(cell.detail for cell in cells):
        words.append("± is the standard deviation over seeds: how far single runs lie from their mean.")
        if any(cell.best for cell in cells):
            words.append("Bold: the best mean, and every other whose interval of one ± overlaps with the best's.")
    elif any(cell.best for cell in cells):
        words.append("Bold: the best. One seed cannot tell a better method from luck.")
    return " ".join(words)


def settings_sheets(group: Group) -> list[Sheet]:
    """What all methods share, and what they do not."""
    settings = [method.settings for method in group.methods]
    keys = short_keys(path for one in settings for path in one)
    changing = differing(settings)
    same = [[Cell(keys[path]), Cell(said)] for path, said in settings[0].items() if path not in changing]
    shared = Sheet("The same for all methods", ["setting", "value"], same, numbers=False)
    rows = [
        [Cell(method.name), *(Cell(method.settings.get(path, "-")) for path in changing)] for method in group.methods
    ]
    different = Sheet("Different", ["method", *(keys[path] for path in changing)], rows, numbers=False)
    return [sheet for sheet in (different, shared) if sheet.rows and len(sheet.columns) > 1]


def environment_sheet(group: Group) -> Sheet:
    """On what the runs ran; where they ran on several, all that was found."""
    found: dict[str, dict[str, None]] = {}
    for run in group.runs:
        for path, said in flatten(run.environment).items():
            found.setdefault(path, {})[said] = None
    keys = short_keys(found)
    rows = [[Cell(keys[path]), Cell("; ".join(said))] for path, said in found.items()]
    return Sheet("Environment", ["what", "found"], rows, numbers=False)


def runs_sheet(group: Group) -> Sheet:
    """Every run, with how far it has come."""
    rows = [
        [Cell(method.name), Cell(str(run.seed)), Cell(state(run, repeated=run in method.repeated)), Cell(run.path.name)]
        for method in group.methods
        for run in (*method.runs, *method.repeated)
    ]
    return Sheet("Runs", ["method", "seed", "state", "directory"], rows, numbers=False)


def state(run: Run, *, repeated: bool = False) -> str:
    """How far a run has come."""
    if repeated:
        return "left out: the same seed and settings are there already"
    if not run.rows:
        return "no evaluation yet"
    return "finished" if run.finished else f"unfinished: round {run.rows[-1]['round']:,} of {run.rounds:,}"


def _documents(method: Method) -> list[Document]:
    """Runs whose rows have every column, a number or None; costs, of which means are taken, a number or NaN."""
    names = dict.fromkeys(["round", "up_bytes", "down_bytes"])
    names |= dict.fromkeys(name for run in method.begun for row in run.rows for name in row)
    costs = [name for name in _COSTS if name in names]
    documents = []
    for run in method.begun:
        rows = [{name: number(row, name) for name in names} for row in run.rows]
        metrics = [row | {name: nan for name in costs if row[name] is None} for row in rows]
        documents.append({"recipe": method.name, "seed": run.seed, "metrics": metrics, "diverged": run.diverged})
    return documents


def _baseline(group: Group, baseline: str) -> str | None:
    """The method of this name, or the only one with this recipe, if its group has one."""
    named = [method.name for method in group.begun if method.name == baseline]
    named = named or [method.name for method in group.begun if method.settings["recipe"] == baseline]
    if len(named) > 1:
        raise UserError(
            f"baseline {baseline!r} stands for several methods ({'; '.join(named)}); give one of these names."
        )
    return named[0] if named else None


def _several(rows: Sequence[Document]) -> bool:
    return any(len(row["seeds"]) > 1 for row in rows)


def _marked(cells: Sequence[tuple[float | None, float | None]], name: str, *, lower: bool | None) -> list[Cell]:
    """Means with their deviations. The best is marked, and with it all whose interval overlaps with the best's.

    Nothing is marked where ``lower``, which says whether less is better, is None, and where all numbers look alike. A
    method that sends nothing (all data in one place) has not won by it, so costs of zero are not compared.
    """
    texts = [value(name, found) for found, _ in cells]
    able = {place: found for place, (found, _) in enumerate(cells) if found or _counts(name, found)}
    best: set[int] = set()
    if lower is not None and len({texts[place] for place in able}) > 1:
        sign = 1 if lower else -1
        first = min(able, key=lambda place: sign * (able[place] or 0.0))
        best = {place for place in able if texts[place] == texts[first] or _overlap(cells[place], cells[first])}
    details = ["" if spread is None else f"±{value(name, spread)}" for _, spread in cells]
    return [Cell(text, detail, place in best) for place, (text, detail) in enumerate(zip(texts, details, strict=True))]


def _overlap(one: tuple[float | None, float | None], other: tuple[float | None, float | None]) -> bool:
    """Do the intervals of one standard deviation around two means touch? One seed has no deviation."""
    return abs((one[0] or 0.0) - (other[0] or 0.0)) <= (one[1] or 0.0) + (other[1] or 0.0)


def _counts(name: str, found: float | None) -> bool:
    return found is not None and name not in _COSTS


def _sheet(caption: str, rows: Sequence[Document], columns: dict[str, list[Cell]]) -> Sheet:
    body = [[Cell(row["recipe"]), *(column[place] for column in columns.values())] for place, row in enumerate(rows)]
    return Sheet(caption, ["method", *columns], body)
