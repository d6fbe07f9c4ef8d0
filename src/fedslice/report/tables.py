"""The tables of a task: what each method reached and at what cost, and how the runs were made."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from typing import Any

from fedslice.core.errors import UserError
from fedslice.report.gather import Group, Method, number
from fedslice.report.naming import differing, flatten, short_keys
from fedslice.runs.comparison import cadence, relate, table
from fedslice.runs.results import end_sheet, target_sheet
from fedslice.runs.run import Run
from fedslice.runs.stopping import Target
from fedslice.sheets import Cell, Sheet

Document = dict[str, Any]

_COSTS = ("up_bytes", "down_bytes", "clock")


def summary(group: Group, target: Target | None, baseline: str | None = None) -> list[Document]:
    """One row per method that has begun, as `compare.table` has it."""
    rows = [table(_documents(method), target, columns=group.columns)[0] for method in group.begun]
    if baseline is not None and (name := _baseline(group, baseline)) is not None:
        relate(rows, name)
    return [
        {key: None if isinstance(cell, float) and isnan(cell) else cell for key, cell in row.items()} for row in rows
    ]


def target_table(group: Group, rows: Sequence[Document], target: Target, baseline: str | None = None) -> Sheet:
    """Return the table of costs to the target."""
    every = cadence(document for method in group.begun for document in _documents(method))
    return target_sheet(rows, target, group.columns, every, baseline)


def end_table(group: Group, rows: Sequence[Document]) -> Sheet:
    """Return the table of last values."""
    marks = {method.name: "unfinished" if method.unfinished else "" for method in group.methods}
    return end_sheet(rows, group.metrics, group.columns, [marks[row["recipe"]] for row in rows])


def settings_sheets(group: Group) -> list[Sheet]:
    """Return tables of the settings that all methods share, and of those that differ."""
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
        [
            Cell(method.name),
            Cell(str(run.seed)),
            Cell(state(run, repeated=run in method.repeated)),
            Cell(run.directory.name),
        ]
        for method in group.methods
        for run in (*method.runs, *method.repeated)
    ]
    return Sheet("Runs", ["method", "seed", "state", "directory"], rows, numbers=False)


def state(run: Run, *, repeated: bool = False) -> str:
    """Return the state of a run in words."""
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
