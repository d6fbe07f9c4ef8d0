"""A table or figure of a paper as data: what is run for each of its cells, and the number the paper gives.

The files in ``settings/`` are the data: one per exhibit, and ``setups.toml`` for the experiments they share. A row of
an exhibit may have several *readings* (setups), where the paper leaves open what was run or its data are not public.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedslice.errors import UserError, unknown
from fedslice.recipe import first_problem

Kind = Literal["rounds", "curves", "statistics", "histogram", "trajectory"]
Rounds = Annotated[int, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
Model = TypeVar("Model", bound=BaseModel)
_SETUPS = "setups"


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Training(_Data):
    """How long a setup trains, what it aims at, and what single recipes are given beside the common settings."""

    rounds: Rounds
    eval_every: Rounds
    metric: str
    target: float
    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    note: str | None = None


class Setup(_Data):
    """One reading of an experiment."""

    task: str
    reading: str
    data: bool = False  # does it read files?
    standin: str | None = None  # what it runs on, if that is not what the paper ran on
    unless: str | None = None  # what the source of the data says if they are the paper's own after all
    part: str | None = None  # why the data at hand may be fewer than the paper's
    population: bool = False  # does --scale shrink its clients too?
    note: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    training: Training | None = None

    @property
    def trained(self) -> Training:
        """How it is trained, in an exhibit that trains."""
        if self.training is None:
            raise UserError(f"the setup of {self.task} ({self.reading}) says nothing of training; add it.")
        return self.training

    def stands_in(self, source: str | None) -> str | None:
        """What it ran on, if that is not what the paper ran on."""
        return None if self.unless and source and self.unless in source else self.standin

    def settings(self, cell: Cell, scale: float) -> dict[str, Any]:
        """What a cell's runs are given under ``set``."""
        own = self.training.recipes.get(cell.recipe, {}) if self.training else {}
        return self.options(scale) | own | cell.set

    def options(self, scale: float) -> dict[str, Any]:
        """The settings that all recipes share, with a population that may be scaled."""
        return self.set | ({"scale": scale} if self.population and scale != 1 else {})


class Cell(_Data):
    """A recipe and the paper's numbers for it: rounds to the target (or "1000+": not within 1,000), best score."""

    recipe: str
    set: dict[str, Any] = Field(default_factory=dict)
    rounds: Rounds | str | None = None
    best: Share | None = None

    @field_validator("rounds")
    @classmethod
    def _a_number_or_a_bound(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str) and not (value.endswith("+") and value[:-1].isdigit()):
            raise ValueError('write a number of rounds, or for example "1000+" if the target was not reached')
        return value

    @property
    def name(self) -> str:
        """How the cell is called: its recipe, and what sets it apart."""
        return " ".join([self.recipe, *(f"{key}={value}" for key, value in self.set.items())])

    @property
    def reached(self) -> int | None:
        """The paper's rounds to the target; ``None`` if it was not reached, or there is none."""
        return self.rounds if isinstance(self.rounds, int) else None

    @property
    def bound(self) -> int | None:
        """Within how many rounds the paper did not reach the target."""
        return int(self.rounds[:-1]) if isinstance(self.rounds, str) else None


class Column(_Data):
    """One column of a feature, whose ids are counted alone: a field of a one-hot encoding."""

    feature: str
    place: Annotated[int, Field(ge=0)]
    rows: Rounds
    samples: Literal["train", "all"]


class Line(_Data):
    """A row of an exhibit: the paper's name for it, and the setups that read it."""

    paper: str
    setups: tuple[str, ...] = Field(min_length=1, strict=False)
    cells: tuple[Cell, ...] = Field(default=(), strict=False)
    values: dict[str, float] = Field(default_factory=dict)
    column: Column | None = None
    reading: str | None = None


class Exhibit(_Data):
    """A table or a figure."""

    title: str
    kind: Kind
    method: str | None = None  # the recipe the paper argues for; orderings are judged against its last cell in a row
    notes: tuple[str, ...] = Field(default=(), strict=False)
    row: tuple[Line, ...] = Field(default=(), strict=False)


def names() -> list[str]:
    """The exhibits that can be made."""
    files = (file.name.removesuffix(".toml") for file in _folder().iterdir())
    return sorted(name.replace("-", "/") for name in files if name != _SETUPS)


def load(name: str) -> tuple[Exhibit, dict[str, Setup]]:
    """An exhibit with the setups that its rows name."""
    if name not in names():
        raise unknown("exhibit", name, names())
    content = _read(name)
    like = content.pop("like", None)
    if like is not None:  # a figure of a table's runs
        content = _read(like) | content
    exhibit = _checked(Exhibit, content, name)
    written = _read(_SETUPS)
    wanted = dict.fromkeys(setup for line in exhibit.row for setup in line.setups)
    return exhibit, {setup: _checked(Setup, _whole(setup, written), setup) for setup in wanted}


def _whole(name: str, written: Mapping[str, Any]) -> dict[str, Any]:
    """A setup with what it takes over from the one it is like."""
    if name not in written:
        raise unknown("setup", name, written)
    own = {key: value for key, value in written[name].items() if key != "like"}
    return _over(_whole(written[name]["like"], written), own) if "like" in written[name] else own


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _over(base[key], own[key])
        for key in base.keys() & own.keys()
        if isinstance(base[key], dict) and isinstance(own[key], dict)
    }
    return {**base, **own, **both}


def _checked(kind: type[Model], content: Mapping[str, Any], where: str) -> Model:
    try:
        return kind(**content)
    except ValidationError as error:
        raise UserError(f"{where}: {first_problem(error)}.") from None


def _folder() -> Traversable:
    return resources.files("fedslice.reproduce") / "settings"


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((_folder() / f"{name.replace('/', '-')}.toml").read_text(encoding="utf-8"))
