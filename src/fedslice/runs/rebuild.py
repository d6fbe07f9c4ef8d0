"""A run's task and plan, made again: for what a checkpoint alone cannot answer.

Code of the user's is imported only if it is named by whoever asks: what a run directory says of it is not run.
"""

from __future__ import annotations

from typing import Any

from fedslice.address import is_address
from fedslice.config import Plan, build_task, request, resolve
from fedslice.core.errors import UserError, shown
from fedslice.runs.identity import describe, parameters
from fedslice.runs.run import Run, option
from fedslice.task import Task
from fedslice.tasks import TASKS

_IDENTITY = ("name", "source", "data", "parameters", "loss", "metrics")  # of a task's configuration, no settings

# Settings that the clients' models do not depend on, and names of code, which are not taken from a directory.
_NOT_REPEATED = ("task", "model", "out", "metrics", "stop", "warm_start")


def rebuilt_task(run: Run, task: Any = None, model: Any = None, data: str | None = None) -> Task:
    """Return the task of a run.

    Args:
        run: The run.
        task: The task, if it is one of the user's own.
        model: The model, if it is one of the user's own in a built-in task.
        data: Where the data are, if they have moved.
    """
    there = run.config["task"]
    own = "data" in there
    if own != (task is not None):
        raise (
            _unnamed(run, "task")
            if own
            else UserError(
                f"{run.directory} was made with the built-in task {run.task!r}; leave task={shown(task)} out."
            )
        )
    if not own and "parameters" in there and model is None:
        raise _unnamed(run, "model")
    if not own and run.task not in TASKS:
        raise UserError(f"{run.directory}: {run.task!r} is no built-in task of this version.")
    settings = {} if own else {key: value for key, value in there.items() if key not in _IDENTITY}
    place = data if data is not None or own else option(run.command, "--data") or run.settings.get("data")
    given = {"task": task if own else run.task, "model": model, "data": place, "set": settings}
    made = build_task(request({key: value for key, value in given.items() if value is not None}))
    if made.source != there.get("source"):
        raise UserError(
            f"{run.directory} was trained on {there.get('source')!r}, found {made.source!r}; say with --data where its "
            "data are."
        )
    here = describe(made) if own else {"parameters": parameters(made)}
    for name in ("data", "parameters"):
        if name in there and there[name] != here[name]:
            raise UserError(
                f"{run.directory} was made with other {name} of task {run.task!r}: fingerprint {there[name]} there and "
                f"{here[name]} here."
            )
    return made


def rebuilt(run: Run, task: Any = None, recipe: Any = None, model: Any = None, data: str | None = None) -> Plan:
    """Return the plan of a run, made again from its settings; it determines the same result.

    Args:
        run: The run.
        task: The task, if it is one of the user's own.
        recipe: The recipe, if it is one of the user's own.
        model: The model, if it is one of the user's own in a built-in task.
        data: Where the data are, if they have moved.
    """
    made = rebuilt_task(run, task, model, data)
    if recipe is None and is_address(run.settings.get("recipe")):
        raise _unnamed(run, "recipe")
    named = {"task": task or run.task, "recipe": recipe, "model": model, "data": data}
    given = {key: value for key, value in run.settings.items() if key not in _NOT_REPEATED}
    plan = resolve(request(given | {name: value for name, value in named.items() if value is not None}))
    there, here = run.config["recipe"], plan.config["recipe"]
    for place in {**there, **here}:
        if place != "name" and there.get(place) != here.get(place):
            raise UserError(
                f"{run.directory} was made with another recipe: {place} is {shown(there.get(place))} there and "
                f"{shown(here.get(place))} here; name it with recipe= or --recipe."
            )
    assert plan.task.shapes == made.shapes
    return plan


def _unnamed(run: Run, kind: str) -> UserError:
    name = run.settings.get(kind)
    called = f", {name!r}" if is_address(name) else ""
    return UserError(
        f"{run.directory} was made with a {kind} of your own{called}. Code is run only if you name it: give it with "
        f"--{kind} MODULE:NAME, or with {kind}= in Python."
    )
