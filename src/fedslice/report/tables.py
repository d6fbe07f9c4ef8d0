"""The tables of a task: what each method reached and at what cost, and how the runs were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from fedslice.compare import Target, lower_is_better, table
from fedslice.console import value
from fedslice.measure.instruments import is_score
from fedslice.report.gather import Group, Method, number
from fedslice.report.naming import differing, flatten, short_keys
from fedslice.runs.reading import Run

Document = dict[str, Any]

_COSTS = ("up_bytes", "down_bytes", "clock")
_HEADINGS = {"up_bytes": "uploaded", "down_bytes": "downloaded", "clock": "simulated time", "seconds": "computing time"}


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


def summary(group: Group, target: Target | None) -> list[Document]:
    """One row per method that has begun, as `compare.table` has it."""
    rows = [table(_documents(method), target)[0] for method in group.begun]
    return [
        {key: None if isinstance(cell, float) and isnan(cell) else cell for key, cell in row.items()} for row in rows
    ]


def target_sheet(rows: Sequence[Document], target: Target) -> Sheet:
    """What it took to get there; a mean needs every seed to have arrived."""
    names = ["rounds", *(name for name in _COSTS if any(f"{name}_to_target" in row for row in rows))]
    columns = [_marked([(row.get(f"{name}_to_target"), name) for row in rows], lower=True) for name in names]
    reached = [Cell(f"{row['reached']} of {len(row['seeds'])}") for row in rows]
    caption = f"Until {heading(target.metric)} {'≤' if lower_is_better(target.metric) else '≥'} {target.value:g}"
    return _sheet(
        caption, rows, {**dict(zip(map(heading, names), columns, strict=True)), "seeds that reached it": reached}
    )


def end_sheet(group: Group, rows: Sequence[Document]) -> Sheet:
    """What each method has at its end; the best is marked only among methods that have come equally far."""
    together = len({row["round"] for row in rows}) == 1
    columns: dict[str, list[Cell]] = {"rounds": [Cell(value("round", row["round"])) for row in rows]}
    for name in group.metrics:
        cells = [(row.get(name), name) for row in rows]
        score = together and is_score(name)
        marked = _marked(cells, lower=lower_is_better(name)) if score else [Cell(value(n, v)) for v, n in cells]
        spreads = [_deviation(row.get(f"{name}_std")) for row in rows]
        columns[heading(name)] = [Cell(c.text, s, c.best) for c, s in zip(marked, spreads, strict=True)]
    for name in (*_COSTS, "rejected", "seconds"):
        if any(row.get(name) for row in rows):
            columns[heading(name)] = [Cell(value(name, row.get(name))) for row in rows]
    several = any(len(row["seeds"]) > 1 for row in rows)
    caption = "At the end" + (": mean over seeds ± standard deviation" if several else "")
    sheet = _sheet(caption, rows, columns)
    marks = {method.name: "unfinished" if method.unfinished else "" for method in group.methods}
    named = [[Cell(first.text, marks[first.text]), *rest] for first, *rest in sheet.rows]
    return Sheet(sheet.caption, sheet.columns, named)


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


def _marked(cells: Sequence[tuple[float | None, str]], *, lower: bool) -> list[Cell]:
    """Numbers with the best marked, if at least two can be compared and differ in what is shown of them.

    A method that sends nothing (all data in one place) has not won by it, so costs of zero are not compared.
    """
    texts = [value(name, found) for found, name in cells]
    able = [(found, text) for (found, name), text in zip(cells, texts, strict=True) if found or _counts(name, found)]
    if len({text for _, text in able}) < 2:
        return [Cell(text) for text in texts]
    winner = (min if lower else max)(able)[1]
    return [Cell(text, best=text == winner) for text in texts]


def _counts(name: str, found: float | None) -> bool:
    return found is not None and name not in _COSTS


def _deviation(spread: float | None) -> str:
    return "" if spread is None else f"±{spread:.4f}"


def _sheet(caption: str, rows: Sequence[Document], columns: dict[str, list[Cell]]) -> Sheet:
    body = [[Cell(row["recipe"]), *(column[place] for column in columns.values())] for place, row in enumerate(rows)]
    return Sheet(caption, ["method", *columns], body)
