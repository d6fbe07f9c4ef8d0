"""An entry of the table of tasks: how a task is built, its options, its data, its default settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedslice.core.errors import UserError
from fedslice.settings import concerned, first_problem
from fedslice.task import Task
from fedslice.training.settings import Seed

__all__ = ["Entry", "Options", "Seed", "data_folder"]


class Options(BaseModel):
    """Options of a task; one that it does not know, or of another type, is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True)
class Entry:
    """A task by name."""

    name: str
    about: str
    needs: str
    options: type[Options]
    make: Callable[[Any, Path | None], Task]
    rounds: int = 100
    eval_every: int = 10
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the recipe: cohort, learning rate, …
    needs_data: bool = False  # whether, by its default options, it cannot do without --data

    def check(self, options: Mapping[str, Any]) -> Options:
        """The options, filled up with defaults; a wrong one is told in a sentence."""
        try:
            return self.options(**options)
        except ValidationError as error:
            raise UserError(f"task {self.name}: {first_problem(error)}.", concerned(error, options)) from None

    def build(self, options: Mapping[str, Any], data: Path | None) -> Task:
        """The task with these options."""
        return self.make(self.check(options), data)


def data_folder(name: str, data: Path | None, needs: str) -> Path:
    """The place of the data, which the user must name."""
    if data is None:
        raise UserError(f"task {name!r} needs data ({needs}); say where they are with --data.")
    return data
