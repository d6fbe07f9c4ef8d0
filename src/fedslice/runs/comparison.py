"""A comparison: recipes and seeds on one task, and when each reaches a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import polars as pl

from fedslice.config import known_settings, named_recipe, request
from fedslice.core.errors import UserError
from fedslice.runs.results import end_sheet, legend, target_sheet
from fedslice.runs.run import Run
from fedslice.runs.settings import RunSettings
from fedslice.runs.stopping import Target
from fedslice.schema import Column, Columns, find
from fedslice.settings import is_setting, no_setting
from fedslice.sheets import Sheet, html

if TYPE_CHECKING:
    from fedslice.recipe import Recipe

Document = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs of several recipes and seeds on one task: what :func:`fedslice.compare` returns.

    Args:
        runs: The runs, by recipe and then by seed.
        target: The target, if one was given.
        baseline: The recipe whose simulated time to the target counts as one.
        keep: Whatever must live as long as this object.
    """

    runs: list[Run]
    target: Target | None = None
    baseline: str | None = None
    keep: object = field(default=None, compare=False)

    @property
    def task(self) -> str:
        """The task's name."""
        return self.runs[0].task

    @property
    def columns(self) -> dict[str, Column]:
        """The schema of the logs' columns."""
        return {name: column for run in reversed(self.runs) for name, column in run.columns.items()}

    @cached_property
    def rows(self) -> list[Document]:
        """A row per recipe, as :func:`table` has it."""
        return table((run.document() for run in self.runs), self.target, self.baseline, self.columns)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """A row per recipe: its costs until the target, and what it has at the end, as means over seeds."""
        rows = [{key: value for key, value in row.items() if not isinstance(value, list)} for row in self.rows]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return pl.DataFrame({name: [row.get(name) for row in rows] for name in names}, strict=False)

    def sheets(self) -> list[Sheet]:
        """Return the tables: until the target, if there is one, and at the end."""
        rows, columns = self.rows, self.columns
        metrics = [name for name in rows[0] if not name.endswith("_std") and find(name, columns).measured]
        found = [end_sheet(rows, metrics, columns)]
        if self.target is not None:
            every = cadence(run.document() for run in self.runs)
            found.insert(0, target_sheet(rows, self.target, columns, every, self.baseline))
        return found

    def report(self, path: str | Path) -> Path:
        """Write the page of all runs, which needs nothing but a browser, and return where it is."""
        from fedslice.report.page import write

        write(self.runs, Path(path), target=self.target, baseline=self.baseline)
        return Path(path)

    def document(self) -> Document:
        """Return what ``fedslice compare --json`` prints."""
        return {"task": self.task, "runs": [run.document() for run in self.runs], "table": self.rows}

    def __repr__(self) -> str:
        return str(self.frame)

    def _repr_html_(self) -> str:
        sheets = self.sheets()
        return "\n".join([*map(html, sheets), f"<p>{legend(sheets)}</p>"])


def requests(said: Mapping[str, Any], recipes: Sequence[str | Recipe], seeds: int) -> list[RunSettings]:
    """One request per recipe and seed; a setting, or a cohort, goes to the recipes that have it."""
    if seeds < 1:
        raise UserError(f"seeds={seeds}; give 1 or more.")
    names = [named_recipe(one)[1] for one in recipes]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"recipe {name!r} is named {names.count(name)} times; name each recipe once.")
    known = {name: known_settings(request({**said, "recipe": one})) for name, one in zip(names, recipes, strict=True)}
    owners = dict.fromkeys(owner for own in known.values() for owner in own)
    every = {owner: [name for own in known.values() for name in own.get(owner, ())] for owner in owners}
    settings, first = said.get("set", {}), said.get("seed", 0)
    for key in settings:
        if not is_setting(key, every):
            raise no_setting(key, every)
    if "cohort" in said and "cohort" not in every["select"]:
        raise UserError(f"cohort={said['cohort']} but none of the recipes takes a cohort; leave it out.")
    return [
        request(
            {key: value for key, value in said.items() if key != "cohort" or "cohort" in own["select"]}
            | {"recipe": one, "seed": first + number}
            | {"set": {key: value for key, value in settings.items() if is_setting(key, own)}}
        )
        for own, one in zip(known.values(), recipes, strict=True)
        for number in range(seeds)
    ]


def table(
    runs: Iterable[Document], target: Target | None, baseline: str | None = None, columns: Columns | None = None
) -> list[Document]:
    """One row per recipe: means over seeds with standard deviations. A target is reached if every seed reached it.

    ``rounds_to_target`` counts to the first evaluation that shows the target. ``diverged`` counts the runs that ended
    diverged. What such a run measured at its end is no result, so the recipe has none, and a target is reached only
    before the divergence. With a ``baseline``, ``t2a`` is as :func:`relate` has it.
    """
    groups: dict[str, list[Document]] = {}
    for run in runs:
        groups.setdefault(run["recipe"], []).append(run)
    rows = [_summary(recipe, group, target, columns or {}) for recipe, group in groups.items()]
    if baseline is not None:
        relate(rows, baseline)
    return rows


def cadence(runs: Iterable[Document]) -> int:
    """Return the rounds from one evaluation to the next, the most of several runs; 1 for runs without a second one."""
    return max(
        (run["metrics"][1]["round"] - run["metrics"][0]["round"] for run in runs if run["metrics"][1:]), default=1
    )


def relate(rows: Sequence[Document], baseline: str) -> None:
    """Add ``t2a``: the simulated time to the target as a share of the baseline's (FedDD, section 5)."""
    its = next(row for row in rows if row["recipe"] == baseline).get("clock_to_target")
    for row in rows:
        own = row.get("clock_to_target")
        row["t2a"] = own / its if own is not None and its else None


def _summary(recipe: str, runs: Sequence[Document], target: Target | None, columns: Columns) -> Document:
    row: Document = {"recipe": recipe, "seeds": [run["seed"] for run in runs]}
    hits = [_hit(run, target) for run in runs]
    reached = [hit for hit in hits if hit is not None]
    row["target"] = None if target is None else str(target)
    row["reached"] = len(reached)
    row["diverged"] = sum(run.get("diverged") is not None for run in runs)
    row["rounds_to_target_by_seed"] = [None if hit is None else hit["round"] for hit in hits]
    costs = [("rounds", "round"), ("up_bytes", "up_bytes"), ("down_bytes", "down_bytes")]
    costs += [("clock", "clock")] if all("clock" in run["metrics"][-1] for run in runs) else []
    for name, key in costs:
        values = [hit[key] for hit in reached]
        row[f"{name}_to_target"] = mean(values) if len(reached) == len(runs) else None
        if 1 < len(reached) == len(runs):
            row[f"{name}_to_target_std"] = _deviation(values)
    last = [run["metrics"][-1] for run in runs]
    for key in last[0]:
        values = [found[key] for found in last]
        if any(value is None for value in values) or (row["diverged"] and find(key, columns).measured):
            row[key] = None
            continue
        row[key] = mean(values)
        if len(values) > 1 and find(key, columns).measured:
            row[f"{key}_std"] = _deviation(values)
    return row


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation, NaN if one of the values is."""
    return stdev(values) if all(map(math.isfinite, values)) else math.nan


def _hit(run: Document, target: Target | None) -> Document | None:
    """The first row of a run that reaches the target, before the run diverged."""
    diverged = run.get("diverged")
    sound = (row for row in run["metrics"] if diverged is None or row["round"] < diverged["round"])
    return next((row for row in sound if target is not None and target.reached(row)), None)
