"""From what a user asks for (options, an experiment file) to a task, a recipe and a resolved configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedslice import address, recipes, tasks
from fedslice.core.component import Component, defaults
from fedslice.core.errors import UserError, shown, unknown
from fedslice.core.part import Part
from fedslice.core.slice import Values
from fedslice.disk import read_bytes, reason
from fedslice.measure.instruments import run_columns
from fedslice.metrics import called
from fedslice.recipe import PARTS, Recipe, setting_names
from fedslice.runs import identity, stopping, warm
from fedslice.runs.settings import RunSettings
from fedslice.runs.stopping import Stop
from fedslice.select.base import USUAL_COHORT
from fedslice.settings import TASK, assigned, flat, owners, pairs
from fedslice.task import Task
from fedslice.tasks.entry import Entry, Options
from fedslice.training.devices import Devices, devices
from fedslice.training.engines.choose import ENGINES
from fedslice.training.experiment import Experiment, device_by_name
from fedslice.training.settings import checked


@dataclass(frozen=True)
class Plan:
    """A run with everything decided.

    Args:
        asked: The settings as they were given.
        settings: The same with the rounds and evaluations decided.
        task: The task.
        recipe: The recipe.
        recipe_name: What it is called.
        devices: Simulated devices.
        stop: When the run ends early: the first of these conditions that holds.
        warm_start: Values of the trained parameters to start from.
        config: What determines the result.
        notes: Sentences about what was decided otherwise than a user may expect.
    """

    asked: RunSettings
    settings: RunSettings
    task: Task
    recipe: Recipe
    recipe_name: str
    devices: Devices | None
    stop: tuple[Stop, ...]
    warm_start: Values | None
    config: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Recipe and seed."""
        return f"{self.recipe_name} seed {self.settings.seed}"

    def experiment(self, scratch: Path | None = None) -> Experiment:
        """The experiment, at its first round, with a folder for what is too large for a checkpoint."""
        return Experiment(
            self.task,
            self.recipe,
            devices=self.devices,
            warm_start=self.warm_start,
            scratch=scratch,
            **self.settings.experiment(),
        )


def request(given: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a run, checked one by one."""
    for name in given:
        if name not in RunSettings.model_fields:
            raise unknown("key", name, RunSettings.model_fields)
    if "task" not in given:
        raise UserError(f"no task is named; add for example task = {next(iter(tasks.TASKS))!r}.")
    return checked(RunSettings, given)


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


def resolve(asked: RunSettings) -> Plan:
    """Decide everything; every mistake a user can make in a request shows here, before anything is written."""
    if asked.engine not in ("auto", *ENGINES):
        raise unknown("engine", asked.engine, ("auto", *ENGINES))
    device_by_name(asked.device)
    settled = settle(asked)
    task = _task(asked, settled)
    recipe, notes = _with_a_cohort(settled, task)
    hardware = asked.devices if isinstance(asked.devices, Devices | None) else _devices(asked, len(task.federation))
    stops = [stopping.parse(one, run_columns(task, asked.measure)) for one in asked.stop]
    start = warm.read(asked.warm_start, task) if asked.warm_start is not None else None
    given = asked.model_fields_set
    decided = asked.model_copy(
        update={name: getattr(settled.entry, name) for name in ("rounds", "eval_every") if name not in given}
    )
    name = settled.recipe_name
    config = {
        "task": {**settled.options.model_dump(), "name": settled.entry.name, "source": task.source}
        | _identity(asked, settled, task),
        "recipe": {"name": name, **recipe.settings()},
        **{key: value for key, value in decided.experiment().items() if key != "wire" or value},
        **({} if hardware is None else {"devices": hardware.digest}),
        **({"stop": [str(one) for one in stops]} if stops else {}),
        **({} if start is None else {"warm_start": identity.tensors(start)}),
    }
    return Plan(asked, decided, task, recipe, name, hardware, tuple(stops), start, config, notes)


def build_task(asked: RunSettings) -> Task:
    """The task with its options; the runs of a comparison share it."""
    return _task(asked, settle(asked))


@dataclass(frozen=True)
class Settled:
    """The resolved settings of a request.

    ``cohort_given`` tells an own cohort from a usual one, and ``own`` an own task from one in the table.
    """

    entry: Entry
    options: Options
    recipe: Recipe
    recipe_name: str
    cohort_given: bool
    own: Task | None


def settle(asked: RunSettings) -> Settled:
    """Give each setting of a request to its owner, over the usual settings of the task."""
    (entry, own_task), (base, recipe_name) = _entry(asked.task), named_recipe(asked.recipe)
    parts, said = _parts(asked, entry, base)
    names: dict[str, Collection[str]] = {**setting_names(parts), TASK: entry.options.model_fields}
    if asked.cohort is not None:
        if "cohort" not in names["select"]:
            raise UserError(f"cohort={asked.cohort} but recipe {recipe_name!r} takes no cohort; leave it out.")
        spelling = "cohort" if "select.cohort" in said else "select.cohort"  # beside another one it is refused
        said[spelling] = asked.cohort
    own = assigned(said, names, f" for recipe {recipe_name!r}")
    usual = assigned({key: value for key, value in entry.settings.items() if owners(key, names)}, names)
    if not _is_named(asked.recipe):
        components = {owner: one for place, part in parts.items() for owner, one in part.tree(place)}
        usual = {key: _unset(components[key], own) if key in components else own for key, own in usual.items()}
    for given, other in (("iterations", "epochs"), ("epochs", "iterations")):
        if own["local.sampler"].get(given) is not None:
            usual["local.sampler"].pop(other, None)
    if parts["local"].inside()["optimizer"].label != base.local.optimizer.label:
        usual["local.optimizer"].pop("lr", None)  # one optimizer's learning rate is not another's
    options = entry.check(own[TASK])
    recipe = base.rebuilt(parts, {owner: usual[owner] | own[owner] for owner in names if owner != TASK})
    cohort_given = own["select"].get("cohort") is not None
    return Settled(entry, options, recipe, recipe_name, cohort_given, own_task)


def _entry(name: Any) -> tuple[Entry, Task | None]:
    """A task's entry, and the task itself if it is the user's own."""
    if not isinstance(name, Task) and not address.is_address(name):
        if not isinstance(name, str):
            raise UserError(f"task={shown(name)}: expected a task's name or a fedslice.Task.")
        return tasks.get(name), None
    task: Task = address.make(name, Task) if isinstance(name, str) else name
    return Entry(task.name, "", "", Options, lambda *_: task), task


class Named(NamedTuple):
    """A recipe with a name of one's own."""

    name: str
    recipe: Any


def named_recipe(given: Any) -> tuple[Recipe, str]:
    """Return a recipe and what it is called: its name, the last word of a reference, or its parts."""
    if isinstance(given, Named):
        return named_recipe(given.recipe)[0], given.name
    if isinstance(given, Recipe):
        return given, _by_parts(given)
    if address.is_address(given):
        return address.make(given, Recipe), given.rpartition(":")[2].rpartition(".")[2]
    if not isinstance(given, str):
        raise UserError(f"recipe={shown(given)}: expected a recipe's name or a fedslice.Recipe.")
    return recipes.get(given), given


def _is_named(given: Any) -> bool:
    """Whether a recipe is one of the table, and not the user's own."""
    return (
        _is_named(given.recipe)
        if isinstance(given, Named)
        else isinstance(given, str) and not address.is_address(given)
    )


def _unset(part: Component, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The task's usual settings, where a user's own part has its default: what it sets itself stays."""
    own, default = part.values(), defaults(type(part))
    return {name: value for name, value in usual.items() if own[name] == default.get(name)}


def _by_parts(recipe: Recipe) -> str:
    """The named recipe that equals it, or else the parts in which it differs from FedAvg."""
    for name, known in recipes.RECIPES.items():
        if known == recipe:
            return name
    usual = Recipe().parts()
    own = [part.label for place, part in recipe.parts().items() if part.label != usual[place].label]
    return "+".join(own) or "own"


def known_settings(asked: RunSettings) -> dict[str, Collection[str]]:
    """The names that ``set`` may hold for this task and this recipe with its replaced parts, by owner."""
    entry, _ = _entry(asked.task)
    return {**setting_names(_parts(asked, entry, named_recipe(asked.recipe)[0])[0]), TASK: entry.options.model_fields}


def _parts(asked: RunSettings, entry: Entry, base: Recipe) -> tuple[dict[str, Part], dict[str, Any]]:
    """The parts of the recipe, with those that the task or the request replaces, and the settings that are left."""
    usual = {key: value for key, value in entry.settings.items() if key in PARTS}
    return base.replaced(usual | asked.set)


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


def _task(asked: RunSettings, settled: Settled) -> Task:
    """The task, with a model and metrics of the user's own if there are any."""
    if settled.own is not None:
        if asked.data is not None:
            raise UserError(f"data={asked.data!r}: task {settled.entry.name!r} is your own and reads its data itself.")
        task = settled.own
    else:
        task = _build(asked.task, settled.options, asked.data, torch.get_default_dtype())
    if asked.model is None and not asked.metrics:
        return task
    return _changed(_Same(task), asked.model, tuple(asked.metrics))


@dataclass(frozen=True)
class _Same:
    """A task as a key: equal to itself alone."""

    task: Task

    def __hash__(self) -> int:
        return id(self.task)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.task is self.task


@lru_cache(maxsize=4)
def _changed(same: _Same, model: Any, metrics: tuple[Any, ...]) -> Task:
    task = same.task
    changes: dict[str, Any] = {}
    if model is not None:
        changes["model"] = address.load(model) if isinstance(model, str) else model
        if not callable(changes["model"]):
            raise UserError(f"model={shown(model)}: expected an nn.Module, or a class or function that makes one.")
    for given in metrics:
        function = address.load(given) if isinstance(given, str) else given
        if not callable(function):
            raise UserError(f"metrics: {shown(given)} is {shown(function)}, expected a function of outputs and labels.")
        changes.setdefault("metrics", dict(task.metrics))[called(function)] = function
    return replace(task, **{"model": task.model} | changes)


def _identity(asked: RunSettings, settled: Settled, task: Task) -> dict[str, str]:
    """Return fingerprints of a user's own task, which a resumed run must have again."""
    if settled.own is not None:
        return identity.describe(task)
    own = {"parameters": identity.parameters(task)} if asked.model is not None else {}
    return own | ({"metrics": ", ".join(task.metrics)} if asked.metrics else {})


def _devices(asked: RunSettings, clients: int) -> Devices:
    if not isinstance(asked.devices, str):
        raise UserError(f"devices={shown(asked.devices)}: expected a name, a CSV file or fedslice Devices.")
    return devices(asked.devices, clients, asked.seed)


@lru_cache(maxsize=4)
def _build(name: str, options: Options, data: str | None, precision: torch.dtype) -> Task:  # noqa: ARG001
    """A task has the precision that was usual when it was made, so a task kept for another precision is another one."""
    return tasks.get(name).make(options, Path(data) if data is not None else None)
