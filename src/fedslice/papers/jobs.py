"""From a cell of an exhibit to runs: what is asked for, by which command, and in what order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from fedslice import recipes, tasks
from fedslice.config import request
from fedslice.papers.exhibits import Cell, Setup, Training
from fedslice.runs.settings import RunSettings
from fedslice.settings import TASK

LEAST_ROUNDS = 10  # of a scaled run


@dataclass(frozen=True)
class Order:
    """Options for making an exhibit."""

    data: Path | None
    out: Path
    seeds: int
    scale: float
    jobs: int
    console: Console

    def request(self, setup: Setup, settings: dict[str, Any], **fields: Any) -> RunSettings:
        """A request for a setup's task; its data are named only if it reads any."""
        data = {"data": str(_place(self.data, setup.folders))} if setup.data and self.data is not None else {}
        return request({"task": setup.task, "set": settings, **data, **fields})


def _place(data: Path, folders: Sequence[str]) -> Path:
    """The data set's own folder, where two have files of the same names: the first there is, or the first to expect."""
    if not folders:
        return data
    return next((data / name for name in folders if (data / name).is_dir()), data / folders[0])


@dataclass(frozen=True)
class Job:
    """One run. Two cells that ask for the same run have equal keys."""

    request: RunSettings
    metric: str
    cell: str  # what tells it from others of its recipe

    @cached_property
    def key(self) -> str:
        """Everything that was asked for."""
        return json.dumps(self.request.model_dump(), sort_keys=True)

    @cached_property
    def group(self) -> str:
        """Runs of a group work on one task, which is loaded once."""
        entry = tasks.TASKS.get(self.request.task)
        own = entry.options.model_fields if entry else {}
        settings = {key.removeprefix(f"{TASK}."): value for key, value in sorted(self.request.set.items())}
        return json.dumps([self.request.task, {name: value for name, value in settings.items() if name in own}])

    @property
    def title(self) -> str:
        """The name of the job in progress displays."""
        return f"{self.cell} on {self.request.task}, seed {self.request.seed}"

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.request.rounds

    @property
    def work(self) -> float:
        """The amount of training: samples of a client's step, summed over the run; a selection may have a budget."""
        settings, recipe = self.request.set, recipes.RECIPES.get(self.request.recipe)
        share = settings.get("budget", 1) if recipe and "budget" in recipe.select.setting_names() else 1
        clients = settings.get("cohort") or settings.get("clients") or 1
        return self.rounds * clients * share * int(settings.get("batch_size") or 1)


def job(
    setup: Setup,
    cell: Cell,
    seed: int,
    order: Order,
    chosen: Mapping[str, Any] | None = None,
    length: int | None = None,
) -> Job:
    """The run of a cell with one seed; a try of a sweep has settings and a length of its own."""
    training = setup.trained
    whole = length or cell.length or training.rounds
    rounds = scaled(whole, order.scale)
    settings = setup.settings(cell, order.scale, chosen)
    if "warmup" in settings:
        settings = settings | {"warmup": _shortened(settings["warmup"], rounds, whole)}
    sampling = sampled(training, order.scale)
    more: dict[str, Any] = {"devices": training.devices} if training.devices else {}
    more |= {"measure": list(training.measure)} if training.measure else {}
    asked = order.request(
        setup,
        settings,
        recipe=cell.recipe,
        rounds=rounds,
        eval_every=min(training.eval_every, rounds) if sampling is None else math.gcd(training.eval_every, sampling),
        seed=seed,
        **more,
    )
    name = " ".join([cell.name, *(f"{key}={value:g}" for key, value in (chosen or {}).items())])
    return Job(asked, training.metric, name)


def scaled(rounds: int, scale: float) -> int:
    """Rounds of a scaled run: the share asked for, and no fewer than make a curve."""
    return rounds if scale == 1 else max(LEAST_ROUNDS, round(rounds * scale))


def sampled(training: Training, scale: float) -> int | None:
    """Rounds of sampling of a scaled run; it is evaluated after them, whatever their number."""
    if training.sampling is None:
        return None
    return _shortened(training.sampling, scaled(training.rounds, scale), training.rounds)


def _shortened(part: int, rounds: int, whole: int) -> int:
    """A part of a whole run, in a run of so many rounds."""
    return max(1, part * rounds // whole)


def by_group(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Jobs by the task they load, in each group the longest first."""
    groups: dict[str, list[Job]] = {}
    for one in sorted(jobs, key=lambda job: -job.work):
        groups.setdefault(one.group, []).append(one)
    return groups
