"""From runs to what is shown: runs of one task stand together, and those that differ by seed alone are one method."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedslice.core.errors import UserError, unknown
from fedslice.panel import LARGEST
from fedslice.report.naming import Settings, flatten, labels
from fedslice.runs.naming import rank
from fedslice.runs.run import Run
from fedslice.runs.stopping import Target
from fedslice.schema import Column, find

Row = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """Runs that differ in nothing but the seed, lowest seed first."""

    name: str
    settings: Settings
    runs: list[Run]
    repeated: list[Run] = field(default_factory=list)  # of a seed that is in ``runs`` already

    @property
    def begun(self) -> list[Run]:
        """Those with an evaluation to show."""
        return [run for run in self.runs if run.rows]

    @property
    def unfinished(self) -> bool:
        """Is there more to come?"""
        return not all(run.finished for run in self.runs)


@dataclass(frozen=True)
class Group:
    """All methods on one task."""

    title: str
    source: str
    methods: list[Method]

    @property
    def begun(self) -> list[Method]:
        """Methods with an evaluation to show."""
        return [method for method in self.methods if method.begun]

    @property
    def runs(self) -> list[Run]:
        """Every run, also those that repeat another."""
        return [run for method in self.methods for run in (*method.runs, *method.repeated)]

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics of the runs, in the order of their logs."""
        rows = [row for method in self.methods for run in method.runs for row in run.rows]
        names = dict.fromkeys(name for row in rows for name in row if self.column(name).measured)
        return [name for name in names if any(number(row, name) is not None for row in rows)]

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns of the logs, as the runs declare them."""
        return {name: column for run in reversed(self.runs) for name, column in run.columns.items()}

    def column(self, name: str) -> Column:
        """Return a column of the logs."""
        return find(name, self.columns)

    def metric(self, target: Target | None) -> str | None:
        """The one to look at first."""
        found = self.metrics
        scores = [name for name in found if name.startswith("test_")]
        wanted = [*([target.metric] if target else []), "test_auc", "test_accuracy", *scores, *found]
        return next((name for name in wanted if name in found), None)


def gather(runs: Sequence[Run]) -> list[Group]:
    """Tasks in the order of their first run; methods as :func:`fedslice.runs.naming.rank` sorts them."""
    if not runs:
        raise UserError("there is no run to report; give run directories, or a directory that holds some.")
    groups = _by(runs, lambda run: run.config["task"])
    titles = _titles([group[0].config["task"] for group in groups])
    return [
        Group(title, str(group[0].config["task"].get("source", "")), _methods(group))
        for title, group in zip(titles, groups, strict=True)
    ]


def aim(target: Target | str | None, groups: Sequence[Group]) -> Target | None:
    """The target, if any run can be held against it."""
    if target is None:
        return None
    known = {name: group.column(name) for group in groups for name in group.metrics}
    if isinstance(target, str):
        return Target.parse(target, known)
    if target.metric not in known and known:
        raise unknown("metric", target.metric, known)
    if not math.isfinite(target.value):
        raise UserError(f"the target {target} is not a number; give for example {target.metric}=0.6.")
    return target.declared(known)


def number(row: Row, name: str) -> float | None:
    """A finite number of a row, or None: a log that came from elsewhere may hold anything JSON can."""
    found = row.get(name)
    return found if found is not None and abs(found) <= LARGEST else None


def _methods(runs: Sequence[Run]) -> list[Method]:
    out: list[Method] = []
    for recipe in _by(sorted(runs, key=lambda run: rank(run.recipe, run.method)), lambda run: run.recipe):
        same = _by(recipe, lambda run: run.method)
        settings = [flatten(group[0].method) for group in same]
        for said, own, group in zip(labels(settings), settings, same, strict=True):
            kept, repeated = _seeds(group)
            name = f"{group[0].recipe}, {said}" if said else group[0].recipe
            out.append(Method(name, {"recipe": group[0].recipe, **own}, kept, repeated))
    return out


def _seeds(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """One run per seed, and the others: a seed that is there twice would count twice. The longer log is kept."""
    ahead = sorted(runs, key=lambda run: (run.seed, -len(run.rows)))
    kept = [run for place, run in enumerate(ahead) if place == 0 or ahead[place - 1].seed != run.seed]
    return kept, [run for run in ahead if all(run is not other for other in kept)]


def _titles(tasks: Sequence[dict[str, Any]]) -> list[str]:
    """A task's name; where tasks share it, with what differs: an option, or else the data they came from."""
    titles = [str(task["name"]) for task in tasks]
    for name in dict.fromkeys(titles):
        places = [place for place, title in enumerate(titles) if title == name]
        options = [flatten({k: v for k, v in tasks[place].items() if k not in ("name", "source")}) for place in places]
        if len(set(labels(options))) < len(places):
            options = [flatten({k: v for k, v in tasks[place].items() if k != "name"}) for place in places]
        for place, said in zip(places, labels(options), strict=True):
            titles[place] = f"{name}, {said}" if said else name
    return titles


def _by(runs: Sequence[Run], key: Callable[[Run], Any]) -> list[list[Run]]:
    """Runs with the same key, in the order in which each key came first."""
    out: dict[str, list[Run]] = {}
    for run in runs:
        out.setdefault(json.dumps(key(run), sort_keys=True), []).append(run)
    return list(out.values())
