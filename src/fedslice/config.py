"""From what a user asks for (options, an experiment file) to a task, a recipe and a resolved configuration."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedslice import recipes, tasks
from fedslice.devices import Devices, devices
from fedslice.engines.choose import ENGINES
from fedslice.errors import UserError, unknown
from fedslice.experiment import Experiment
from fedslice.recipe import Recipe, first_problem, option_names
from fedslice.task import Task
from fedslice.tasks.entry import Options, Seed

DEVICES = ("cpu", "cuda", "mps")
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
    set: dict[str, Any] = Field(default_factory=dict)

    def command(self, verb: str = "run") -> str:
        """What to type for this."""
        options = self.model_dump(exclude={"task", "set"}, exclude_unset=True, exclude_none=True)
        words = ["fedslice", verb, self.task]
        for name, value in options.items():
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{name.replace('_', '-')}", str(one)]
        settings = [f"{key}={_text(value)}" for key, value in self.set.items()]
        return shlex.join([*words, *(["--set", *settings] if settings else [])])


@dataclass(frozen=True)
class Plan:
    """A run with everything decided: what it is made of, and ``config``, which determines its result."""

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
    config: dict[str, Any]
    command: str

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
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; give a task's name or a TOML experiment file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} is not a TOML experiment file ({error}).") from None
    try:
        return request(content).model_dump(exclude_unset=True)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def assignments(words: Iterable[str]) -> dict[str, Any]:
    """``key=value`` words; a value is read as TOML would (numbers, true, false), ``none``, or as text."""
    out: dict[str, Any] = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not key:
            raise UserError(f"--set {word!r} is not key=value; write for example --set lr=0.1.")
        out[key] = _value(text)
    return out


def resolve(asked: Request) -> Plan:
    """Decide everything; every mistake a user can make in a request shows here, before anything is written."""
    for kind, name, known in (
        ("engine", asked.engine, ("auto", *ENGINES)),
        ("device", asked.device.partition(":")[0], DEVICES),
    ):
        if name not in known:
            raise unknown(kind, name, known)
    entry = tasks.get(asked.task)
    task_options, recipe_options = split_options(asked)
    recipe = recipes.get(asked.recipe).with_options(recipe_options)
    task = build_task(asked)
    hardware = None if asked.devices is None else devices(asked.devices, len(task.federation), asked.seed)
    rounds, eval_every = asked.rounds or entry.rounds, asked.eval_every or entry.eval_every
    config = {
        "task": {**entry.check(task_options).model_dump(), "name": asked.task, "source": task.source},
        "recipe": {"name": asked.recipe, **recipe.settings()},
        "rounds": rounds,
        "seed": asked.seed,
        "eval_every": eval_every,
        "engine": asked.engine,
        "chunk": asked.chunk,
        "device": asked.device,
        "measure": asked.measure,
        **({} if hardware is None else {"devices": hardware.digest}),
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
        config,
        asked.command(),
    )


def build_task(asked: Request) -> Task:
    """The task with its options; the runs of a comparison share it."""
    task_options, _ = split_options(asked)
    return _build(asked.task, tasks.get(asked.task).check(task_options), asked.data, torch.get_default_dtype())


def setting_names(asked: Request) -> list[str]:
    """The keys that ``set`` may hold for this task and this recipe with its replaced parts."""
    base = recipes.get(asked.recipe)
    replaced = base.with_options({place: asked.set[place] for place in base.parts() if place in asked.set})
    return [*option_names(replaced.parts()), *tasks.get(asked.task).options.model_fields]


def is_setting(key: str, names: Iterable[str]) -> bool:
    """Is this key, which may name the part it belongs to (``local.lr``), one of the names?"""
    return key.rpartition(".")[2] in names


def split_options(asked: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sort ``set`` into options of the task and settings of the recipe, over the task's usual settings."""
    entry = tasks.get(asked.task)
    known = setting_names(asked)
    for key in asked.set:
        if not is_setting(key, known):
            raise unknown("setting", key, known)
    own = entry.options.model_fields
    task_options = {key: value for key, value in asked.set.items() if key in own}
    said = {key: value for key, value in asked.set.items() if key not in own}
    if asked.cohort is not None:
        if "cohort" not in known:
            raise UserError(f"cohort={asked.cohort} but recipe {asked.recipe!r} takes no cohort; leave it out.")
        said["cohort"] = asked.cohort
    usual = {key: value for key, value in entry.settings.items() if key in known}
    return task_options, usual | said


@lru_cache(maxsize=4)
def _build(name: str, options: Options, data: str | None, precision: torch.dtype) -> Task:  # noqa: ARG001
    """A task has the precision that was usual when it was made, so a task kept for another precision is another one."""
    return tasks.get(name).make(options, Path(data) if data is not None else None)


def _text(value: Any) -> str:
    """The inverse of :func:`_value`."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and not isinstance(_value(value), str):
        return f"'{value}'"  # text that would be read as something else
    return str(value)


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
