"""From what a user asks for (options, an experiment file) to a task, a recipe and a resolved configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedslice import recipes, tasks
from fedslice.errors import UserError, unknown
from fedslice.experiment import Experiment
from fedslice.recipe import Recipe, first_problem, option_names
from fedslice.task import Task

Whole = Annotated[int, Field(ge=1)]


class Request(BaseModel):
    """One run as asked for; what is not said comes from the task's own settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task: str
    recipe: str = "fedavg"
    rounds: Whole | None = None
    cohort: Whole | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    data: str | None = None
    out: str | None = None
    eval_every: Whole | None = None
    engine: str = "auto"
    chunk: Whole | None = None
    device: str = "cpu"
    set: dict[str, Any] = Field(default_factory=dict)


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
    config: dict[str, Any]

    def experiment(self) -> Experiment:
        """The experiment, at its first round."""
        return Experiment(
            self.task,
            self.recipe,
            rounds=self.rounds,
            seed=self.seed,
            eval_every=self.eval_every,
            engine=self.engine,
            chunk=self.chunk,
            device=self.device,
        )


def request(given: Mapping[str, Any]) -> Request:
    """Check the fields of a request."""
    for name in given:
        if name not in Request.model_fields:
            raise unknown("key", name, Request.model_fields)
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
    entry = tasks.get(asked.task)
    task_options, recipe_options = split_options(asked)
    recipe = recipes.get(asked.recipe).with_options(recipe_options)
    task = _build(asked.task, tuple(sorted(task_options.items())), asked.data)
    rounds, eval_every = asked.rounds or entry.rounds, asked.eval_every or entry.eval_every
    config = {
        "task": {"name": asked.task, "source": task.source, **entry.options(**task_options).model_dump()},
        "recipe": {"name": asked.recipe, **recipe.settings()},
        "rounds": rounds,
        "seed": asked.seed,
        "eval_every": eval_every,
        "engine": asked.engine,
        "chunk": asked.chunk,
        "device": asked.device,
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
        config,
    )


def split_options(asked: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sort ``set`` into options of the task and settings of the recipe, over the task's usual settings."""
    entry = tasks.get(asked.task)
    base = recipes.get(asked.recipe)
    own = set(entry.options.model_fields)
    task_options = {key: value for key, value in asked.set.items() if key in own}
    said = {key: value for key, value in asked.set.items() if key not in own}
    if asked.cohort is not None:
        said["cohort"] = asked.cohort
    replaced = base.with_options({key: said[key] for key in base.parts() if key in said})
    known = option_names(replaced.parts())
    for key in said:
        if key.rpartition(".")[2] not in known:
            raise unknown("setting", key, [*known, *own])
    usual = {key: value for key, value in entry.settings.items() if key in known}
    return task_options, usual | said


@lru_cache(maxsize=4)
def _build(name: str, options: tuple[tuple[str, Any], ...], data: str | None) -> Task:
    """Building a task reads its data; the runs of a comparison share it."""
    return tasks.get(name).build(dict(options), Path(data) if data is not None else None)


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
