"""A comparison: recipes and seeds on one task, and when each reaches a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from fedslice.config import Request, known_settings, request
from fedslice.core.errors import UserError, unknown
from fedslice.measure.instruments import is_measured
from fedslice.metrics import Directions, lower_is_better
from fedslice.settings import is_setting, no_setting

Document = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A metric and the value to reach: from above if less of it is better, else from below.

    ``lower`` says whether less is better; ``None`` leaves that to the metric's name, as for a metric that was never
    declared.
    """

    metric: str
    value: float
    lower: bool | None = None

    @classmethod
    def parse(cls, text: str, known: Iterable[str], declared: Directions | None = None) -> Target:
        """From ``metric=value``, where the metric is one of the known."""
        name, _, number = text.partition("=")
        if name not in known:
            raise unknown("metric", name, known)
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"--target {text!r}: {number!r} is not a number; write for example {name}=0.6.")
        return cls(name, value, (declared or {}).get(name))

    @property
    def from_above(self) -> bool:
        """Whether less of the metric is better."""
        return lower_is_better(self.metric) if self.lower is None else self.lower

    def reached(self, row: Document) -> bool:
        """Return whether this row reaches it; a metric that is undefined or infinite there does not."""
        found = row.get(self.metric)
        if found is None or not abs(found) < math.inf:
            return False
        return bool(found <= self.value if self.from_above else found >= self.value)


def requests(said: Mapping[str, Any], names: Iterable[str], seeds: int) -> list[Request]:
    """One request per recipe and seed; a setting, or a cohort, goes to the recipes that have it."""
    if seeds < 1:
        raise UserError(f"seeds={seeds}; give 1 or more.")
    names = list(names)
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"recipe {name!r} is named {names.count(name)} times; name each recipe once.")
    known = {name: known_settings(request({**said, "recipe": name})) for name in names}
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
            | {"recipe": name, "seed": first + number}
            | {"set": {key: value for key, value in settings.items() if is_setting(key, own)}}
        )
        for name, own in known.items()
        for number in range(seeds)
    ]


def table(runs: Iterable[Document], target: Target | None, baseline: str | None = None) -> list[Document]:
    """One row per recipe: means over seeds with standard deviations. A target is reached if every seed reached it.

    ``rounds_to_target`` counts to the first evaluation that shows the target. ``diverged`` counts the runs that ended
    diverged. What such a run measured at its end is no result, so the recipe has none, and a target is reached only
    before the divergence. With a ``baseline``, ``t2a`` is as :func:`relate` has it.
    """
    groups: dict[str, list[Document]] = {}
    for run in runs:
        groups.setdefault(run["recipe"], []).append(run)
    rows = [_summary(recipe, group, target) for recipe, group in groups.items()]
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


def _summary(recipe: str, runs: Sequence[Document], target: Target | None) -> Document:
    row: Document = {"recipe": recipe, "seeds": [run["seed"] for run in runs]}
    hits = [_hit(run, target) for run in runs]
    reached = [hit for hit in hits if hit is not None]
    row["target"] = None if target is None else f"{target.metric}={target.value}"
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
        if any(value is None for value in values) or (row["diverged"] and is_measured(key)):
            row[key] = None
            continue
        row[key] = mean(values)
        if len(values) > 1 and is_measured(key):
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
