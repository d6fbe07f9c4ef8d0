"""Settings of a run, each listed once: Python, experiment files, the command line and run directories read them here.

This module loads without torch, so that ``--help`` can show them.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from fedslice.settings import written
from fedslice.training.settings import ExperimentSettings, Whole


def _own(value: Any) -> Any:
    """A name, or an object of the user's."""
    if isinstance(value, bool | int | float | list) or value == "":
        raise ValueError("expected a name")
    return _path(value)


def _path(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _list(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else [value]


Own = Annotated[Any, BeforeValidator(_own)]
PathName = Annotated[str, BeforeValidator(_path)]


class RunSettings(ExperimentSettings):
    """One run as asked for; what is not said comes from the task's own settings.

    ``task``, ``recipe``, ``model``, ``metrics``, ``devices``, ``warm_start`` and ``stop`` are names, or in Python the
    objects themselves. A name of one's own object is ``MODULE:NAME`` or ``path/to/file.py:NAME``.
    """

    task: Own
    recipe: Own = Field(
        "fedavg",
        description="A method by name (see fedslice list recipes), or one of your own as MODULE:NAME or FILE.py:NAME.",
        json_schema_extra={"metavar": "NAME"},
    )
    cohort: Whole | None = Field(
        None, description="Clients per round.", json_schema_extra={"metavar": "N", "usual": "the task's own"}
    )
    data: PathName | None = Field(
        None,
        description="Folder or file with the data in its official layout.",
        json_schema_extra={"metavar": "PATH"},
    )
    out: PathName | None = Field(
        None,
        description="Run directory.",
        json_schema_extra={"metavar": "DIR", "usual": "a directory of its own below runs"},
    )
    model: Own | None = Field(
        None,
        description="A model of your own in place of the task's: MODULE:NAME or FILE.py:NAME.",
        json_schema_extra={"metavar": "NAME"},
    )
    metrics: Annotated[list[Own], BeforeValidator(_list)] = Field(
        [],
        description="A metric of your own beside the task's: MODULE:NAME or FILE.py:NAME.",
        json_schema_extra={"metavar": "NAME", "option": "--metric"},
    )
    devices: Own | None = Field(
        None,
        description="Simulated devices, for a clock: feddd, or a CSV file with one per client.",
        json_schema_extra={"metavar": "NAME"},
    )
    warm_start: Own | None = Field(
        None,
        description="Model to start from: a safetensors file.",
        json_schema_extra={"metavar": "FILE"},
    )
    stop: Annotated[list[Own], BeforeValidator(_list)] = Field(
        [],
        description="When to stop early: 'test_auc >= 0.7', or 'test_auc patience=5' (evaluations without a gain).",
        json_schema_extra={"metavar": "CONDITION"},
    )
    set: dict[str, Any] = Field({}, description="Settings of task and recipe; see fedslice list.")

    def command(self, verb: str = "run") -> str:
        """Return what to type for this; for objects of a Python program, the call."""
        given = {name: getattr(self, name) for name in self.model_fields_set if getattr(self, name) is not None}
        ordered = {name: given[name] for name in (*FIRST, *type(self).model_fields) if name in given}
        if not all(_typed(value) for name, value in ordered.items() if name != "set"):
            return self._call(ordered)
        words = ["fedslice", verb, self.task]
        for name, value in ordered.items():
            if name in ("task", "set"):
                continue
            option = option_of(name)
            if isinstance(value, bool):
                words += [option] * value
                continue
            for one in value if isinstance(value, list) else [value]:
                words += [option, str(one)]
        settings = [f"{key}={written(value)}" for key, value in self.set.items()]
        return shlex.join([*words, *(["--set", *settings] if settings else [])])

    def stored(self) -> dict[str, Any]:
        """Return what a run directory keeps of this: the fields that were given and that JSON can hold."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        given["set"] = {key: value for key, value in self.set.items() if value is None or _typed(value)}
        return {name: value for name, value in given.items() if name == "set" or value is None or _typed(value)}

    def _call(self, given: dict[str, Any]) -> str:
        """The call in Python."""
        words = [f"{name}={_repr(value)}" for name, value in given.items() if name not in ("task", "recipe")]
        return f"fedslice.run({', '.join([_repr(self.task), _repr(self.recipe), *words])})"


FIRST = ("recipe", "rounds", "cohort", "seed", "data", "out", "set")
"""The settings that stand first in help and in commands."""


def option_of(name: str) -> str:
    """Return the option of the command line for a setting."""
    extra = RunSettings.model_fields[name].json_schema_extra
    own = extra.get("option") if isinstance(extra, dict) else None
    return str(own) if own else f"--{name.replace('_', '-')}"


def _typed(value: Any) -> bool:
    """Whether a command line can say it."""
    if isinstance(value, list):
        return all(map(_typed, value))
    return isinstance(value, str | int | float | bool)


def _repr(value: Any) -> str:
    """A value in a call, on one line."""
    if isinstance(value, dict) and not all(map(_typed, value.values())):
        return "..."
    named = getattr(value, "name", None) if type(value).__name__ == "Task" else getattr(value, "__name__", None)
    if isinstance(named, str) and not isinstance(value, str):
        return named
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
