"""From what a user asks for (options, an experiment file) to a task, a recipe and a resolved configuration."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedslice import recipes, tasks
from fedslice.core.errors import UserError, unknown
from fedslice.core.part import Part
from fedslice.disk import read_bytes, reason
from fedslice.recipe import PARTS, Recipe, setting_names
from fedslice.select.base import USUAL_COHORT
from fedslice.settings import TASK, assigned, first_problem, flat, owners, pairs, written
from fedslice.task import Task
from fedslice.tasks.entry import Options, Seed
from fedslice.training.devices import Devices, devices
from fedslice.training.engines.choose import ENGINES
from fedslice.training.experiment import Experiment, device_by_name

Whole = Annotated[int, Field(ge=1, le=10**9)]


class Request(BaseModel):
    """One run as asked for; what is not said comes from the task's own settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task: str
    recipe: str = "fedavg"
    rounds: Whole | None = None
    cohort: Whole | None = None
    seed: Seed = 0
    data: str | None = None
    out: str | None = None
    eval_every: Whole | None = None
    engine: str = "auto"
    chunk: Whole | None = None
    device: str = "cpu"
    measure: list[str] = Field(default_factory=list)
    devices: str | None = None
    wire: bool = False
    set: dict[str, Any] = Field(default_factory=dict)

    def command(self, verb: str = "run") -> str:
        """What to type for this."""
        options = self.model_dump(exclude={"task", "set"}, exclude_unset=True, exclude_none=True)
        words = ["fedslice", verb, self.task]
        for name, value in options.items():
            option = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                words += [option] * value
                continue
            for one in value if isinstance(value, list) else [value]:
                words += [option, str(one)]
        settings = [f"{key}={written(value)}" for key, value in self.set.items()]
        return shlex.join([*words, *(["--set", *settings] if settings else [])])


@dataclass(frozen=True)
class Plan:
    """A run with everything decided: what it is made of, and ``config``, which determines its result.

    ``notes`` are sentences about what was decided otherwise than a user may expect.
    """

    task: Task
    recipe: Recipe
    recipe_name: str
    rounds: int
    seed: int
    eval_every: int
    engine: str
    chunk: int | None
    device: str
    measure: list[str]
    devices: Devices | None
    wire: bool
    config: dict[str, Any]
    command: str
    notes: tuple[str, ...] = ()

    def experiment(self, scratch: Path | None = None) -> Experiment:
        """The experiment, at its first round, with a folder for what is too large for a checkpoint."""
        return Experiment(
            self.task,
            self.recipe,
            rounds=self.rounds,
            seed=self.seed,
            eval_every=self.eval_every,
            engine=self.engine,
            chunk=self.chunk,
            device=self.device,
            measure=self.measure,
            devices=self.devices,
            wire=self.wire,
            scratch=scratch,
        )


def request(given: Mapping[str, Any]) -> Request:
    """Check the fields of a request."""
    for name in given:
        if name not in Request.model_fields:
            raise unknown("key", name, Request.model_fields)
    if "task" not in given:
        raise UserError(f"no task is named; add for example task = {next(iter(tasks.TASKS))!r}.")
    try:
        return Request(**given)
    except ValidationError as error:
        raise UserError(f"{first_problem(error)}.") from None


def read_file(path: Path) -> dict[str, Any]:
    """The fields of a TOML experiment file."""
    try:
        content = tomllib.loads(read_bytes(path).decode("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; give a task's name or a TOML experiment file.") from None
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} is not a TOML experiment file ({reason(error)}).") from None
    try:
        fields = request(content).model_dump(exclude_unset=True)
        return fields | ({"set": flat(fields["set"], (TASK, *PARTS))} if "set" in fields else {})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def assignments(words: Iterable[str]) -> dict[str, Any]:
    """The settings that ``--set`` gives."""
    return pairs(words, "--set")


def resolve(asked: Request) -> Plan:
    """Decide everything; every mistake a user can make in a request shows here, before anything is written."""
    if asked.engine not in ("auto", *ENGINES):
        raise unknown("engine", asked.engine, ("auto", *ENGINES))
    device_by_name(asked.device)
    entry, settled = tasks.get(asked.task), settle(asked)
    task = _build(asked.task, settled.options, asked.data, torch.get_default_dtype())
    recipe, notes = _with_a_cohort(settled, task)
    hardware = None if asked.devices is None else devices(asked.devices, len(task.federation), asked.seed)
    rounds, eval_every = asked.rounds or entry.rounds, asked.eval_every or entry.eval_every
    config = {
        "task": {**settled.options.model_dump(), "name": asked.task, "source": task.source},
        "recipe": {"name": asked.recipe, **recipe.settings()},
        "rounds": rounds,
        "seed": asked.seed,
        "eval_every": eval_every,
        "engine": asked.engine,
        "chunk": asked.chunk,
        "device": asked.device,
        "measure": asked.measure,
        **({} if hardware is None else {"devices": hardware.digest}),
        **({"wire": True} if asked.wire else {}),
    }
    return Plan(
        task,
        recipe,
        asked.recipe,
        rounds,
        asked.seed,
        eval_every,
        asked.engine,
        asked.chunk,
        asked.device,
        asked.measure,
        hardware,
        asked.wire,
        config,
        asked.command(),
        notes,
    )


def build_task(asked: Request) -> Task:
    """The task with its options; the runs of a comparison share it."""
    return _build(asked.task, settle(asked).options, asked.data, torch.get_default_dtype())


@dataclass(frozen=True)
class Settled:
    """What the settings of a request come to; ``cohort_given`` tells an own cohort from a usual one."""

    options: Options
    recipe: Recipe
    cohort_given: bool


def settle(asked: Request) -> Settled:
    """Give each setting of a request to its owner, over the usual settings of the task."""
    entry, base = tasks.get(asked.task), recipes.get(asked.recipe)
    parts, said = _parts(asked)
    names = known_settings(asked)
    if asked.cohort is not None:
        if "cohort" not in names["select"]:
            raise UserError(f"cohort={asked.cohort} but recipe {asked.recipe!r} takes no cohort; leave it out.")
        spelling = "cohort" if "select.cohort" in said else "select.cohort"  # beside another one it is refused
        said[spelling] = asked.cohort
    own = assigned(said, names, f" for recipe {asked.recipe!r}")
    usual = assigned({key: value for key, value in entry.settings.items() if owners(key, names)}, names)
    for given, other in (("iterations", "epochs"), ("epochs", "iterations")):
        if own["local.sampler"].get(given) is not None:
            usual["local.sampler"].pop(other, None)
    if parts["local"].inside()["optimizer"].label != base.local.optimizer.label:
        usual["local.optimizer"].pop("lr", None)  # one optimizer's learning rate is not another's
    options = entry.check(own[TASK])
    recipe = base.rebuilt(parts, {owner: usual[owner] | own[owner] for owner in names if owner != TASK})
    return Settled(options, recipe, own["select"].get("cohort") is not None)


def known_settings(asked: Request) -> dict[str, Collection[str]]:
    """The names that ``set`` may hold for this task and this recipe with its replaced parts, by owner."""
    return {**setting_names(_parts(asked)[0]), TASK: tasks.get(asked.task).options.model_fields}


def _parts(asked: Request) -> tuple[dict[str, Part], dict[str, Any]]:
    """The parts of the recipe, with those that the task or the request replaces, and the settings that are left."""
    usual = {key: value for key, value in tasks.get(asked.task).settings.items() if key in PARTS}
    return recipes.get(asked.recipe).replaced(usual | asked.set)


def _with_a_cohort(settled: Settled, task: Task) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe with a cohort that the task can fill: one that nobody asked for is cut, and a note says so."""
    recipe, clients = settled.recipe, len(task.federation)
    expected = getattr(settled.options, "clients", clients)
    having = f"{clients} client{'s' * (clients > 1)}"
    having += f", as {expected - clients} of {expected} have no training sample" if expected > clients else ""
    notes = (f"The task has {having}.",) if expected > clients else ()
    if "cohort" not in recipe.select.setting_names():
        return recipe, notes
    size = recipe.select.settings()["cohort"] or USUAL_COHORT
    if size > clients and "repeats" not in recipe.select.provides:
        if not settled.cohort_given:
            notes = (f"The task has {having}. The cohort is {clients}, not {size} as usual.",)
            size = clients
        elif "pools" not in recipe.select.provides:
            raise UserError(f"cohort={size} but the task has {having}; give {clients} or fewer.", {"cohort"})
    return recipe.with_options({"select.cohort": size}), notes


@lru_cache(maxsize=4)
def _build(name: str, options: Options, data: str | None, precision: torch.dtype) -> Task:  # noqa: ARG001
    """A task has the precision that was usual when it was made, so a task kept for another precision is another one."""
    return tasks.get(name).make(options, Path(data) if data is not None else None)
