"""A table or figure of a paper as data: what is run for each of its cells, and the number the paper gives.

A row of an exhibit may have several *readings* (setups), where the paper leaves open what was run or its data are not
public.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedslice.core.errors import UserError
from fedslice.papers.printed import printed

Kind = Literal[
    "rounds",
    "curves",
    "accuracy",
    "time",
    "classes",
    "compression",
    "words",
    "spectrum",
    "statistics",
    "histogram",
    "trajectory",
]
Rounds = Annotated[int, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
Span = Annotated[tuple[Share, ...], Field(min_length=1, max_length=2, strict=False)]  # a number, or from and to
LEAST_IMAGES = 2_000  # of a scaled run: a hundred clients with up to ten classes each


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Sweep(_Data):
    """A declared grid for settings that the paper leaves open, or that every method may choose for itself.

    ``grids`` has, by recipe, the values of each swept setting; all their combinations are tried, and every recipe has
    the same number of tries. ``seeds`` choose and are never reported.
    """

    seeds: tuple[Rounds, ...] = Field(min_length=1, strict=False)
    rounds: Rounds | None = None  # of a try, if fewer than the setup's
    grids: dict[str, dict[str, Annotated[tuple[float, ...], Field(min_length=1, strict=False)]]]

    def tries(self, recipe: str) -> list[dict[str, float]]:
        """The settings of every try of a recipe, none if it has no grid."""
        grid = self.grids.get(recipe)
        return [] if grid is None else [dict(zip(grid, point, strict=True)) for point in product(*grid.values())]

    @model_validator(mode="after")
    def _every_recipe_has_as_many_tries(self) -> Self:
        counts = {recipe: len(self.tries(recipe)) for recipe in self.grids}
        if len(set(counts.values())) > 1:
            raise ValueError(f"every recipe needs the same number of tries, found {counts}")
        return self


class Training(_Data):
    """Length and target of a setup's training, and settings of single recipes beside the common ones."""

    rounds: Rounds
    eval_every: Rounds
    metric: str
    target: float | None = None
    sampling: Rounds | None = None  # rounds that sample a subspace (FLSS's L), after which words are counted
    devices: str | None = None  # on which the time of a round is simulated
    measure: tuple[str, ...] = Field(default=(), strict=False)
    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    sweep: Sweep | None = None
    note: str | None = None


class Setup(_Data):
    """One reading of an experiment."""

    task: str
    reading: str
    data: bool = False  # does it read files?
    folders: tuple[str, ...] = Field(default=(), strict=False)  # below --data, one of which holds them; else it itself
    standin: str | None = None  # what it runs on, if that is not what the paper ran on
    unless: str | None = None  # what the source of the data says if they are the paper's own after all
    stands_for: str | None = None  # the paper's own setup, in whose place this one is run
    differs: dict[str, str] = Field(default_factory=dict)  # settings that are not that setup's, each with a word on it
    part: str | None = None  # why the data at hand may be fewer than the paper's
    population: bool = False  # does --scale shrink its clients too?
    images: Rounds | None = None  # training images of an image task, which --scale shrinks too
    note: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    training: Training | None = None

    @property
    def trained(self) -> Training:
        """The training, in an exhibit that trains."""
        if self.training is None:
            raise UserError(f"the setup of {self.task} ({self.reading}) says nothing of training; add it.")
        return self.training

    @property
    def goal(self) -> float:
        """The target, in an exhibit of rounds to a target."""
        if self.trained.target is None:
            raise UserError(f"the setup of {self.task} ({self.reading}) has no target; add one.")
        return self.trained.target

    @property
    def remark(self) -> str | None:
        """A remark on its training: how it differs from the paper's, and its note."""
        unlike = "; ".join(dict.fromkeys(self.differs.values()))
        words = [f"Unlike the exhibit's own setup: {unlike}."] if unlike else []
        return " ".join([*words, *([self.trained.note] if self.trained.note else [])]) or None

    def stands_in(self, source: str | None) -> str | None:
        """Return the data it ran on, if they are not the paper's."""
        return None if self.unless and source and self.unless in source else self.standin

    def settings(self, cell: Cell, scale: float, chosen: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings of a cell's runs; ``chosen`` are those of a try."""
        own = self.training.recipes.get(cell.recipe, {}) if self.training else {}
        return self.options(scale) | own | dict(chosen or {}) | cell.set

    def options(self, scale: float) -> dict[str, Any]:
        """The settings that all recipes share, with clients or images that may be scaled."""
        if scale == 1:
            return self.set
        few = self.fewer_images(scale)
        return self.set | ({"scale": scale} if self.population else {}) | ({} if few is None else {"train": few})

    def fewer_images(self, scale: float) -> int | None:
        """Training images of a scaled run, of a setup that has images."""
        return None if self.images is None else min(self.images, max(LEAST_IMAGES, round(self.images * scale)))

    def shrunk(self, scale: float) -> str:
        """Return in words the share of the data that ``options`` leaves."""
        clients = f", {scale:g} of the clients" if self.population else ""
        few = self.fewer_images(scale)
        return clients + ("" if few is None else f", {few:,} of {self.images:,} images")


class Cell(_Data):
    """A recipe and the paper's numbers for it.

    They are rounds to the target (or "1000+": not within 1,000), the best score, the last score, the accuracy of single
    classes, the 32-bit words that a client sends ("35.14 M"), the seconds of a round, and shares of the energy in the
    first so many directions of the trajectory. A cell may be run for a ``length`` of its own.
    """

    recipe: str
    set: dict[str, Any] = Field(default_factory=dict)
    rounds: Rounds | str | None = None
    best: Share | None = None
    final: Share | None = None
    classes: dict[str, Span] = Field(default_factory=dict)
    words: str | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    shares: dict[str, Share] = Field(default_factory=dict)
    length: Rounds | None = None

    @field_validator("words")
    @classmethod
    def _a_printed_number(cls, value: str | None) -> str | None:
        if value is not None:
            printed(value)
        return value

    @field_validator("rounds")
    @classmethod
    def _a_number_or_a_bound(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str) and not (value.endswith("+") and value[:-1].isdigit()):
            raise ValueError('write a number of rounds, or for example "1000+" if the target was not reached')
        return value

    @property
    def name(self) -> str:
        """The name of the cell: its recipe, and the settings that distinguish it."""
        return " ".join([self.recipe, *(f"{key}={value}" for key, value in self.set.items())])

    @property
    def reached(self) -> int | None:
        """The paper's rounds to the target; ``None`` if it was not reached, or there is none."""
        return self.rounds if isinstance(self.rounds, int) else None

    @property
    def bound(self) -> int | None:
        """Within how many rounds the paper did not reach the target."""
        return int(self.rounds[:-1]) if isinstance(self.rounds, str) else None


class Claim(_Data):
    """A statement of a paper about two cells, where it shows pictures and no table.

    ============ ===================================================================================================
    says         of ``first`` and ``second``
    ============ ===================================================================================================
    above        the first scores higher, by ``by``, or by the gap of the best scores, if the paper tells
    alike        they score about the same
    falls        the score falls from the first to the second, by ``by`` to ``to``
    slower       so many rounds take the first more time
    sooner       the first takes less time to a target; of the second's it saves the share ``by``, or ``by`` to ``to``
    alone        the first comes to the target, the second does not
    recovers     after the rounds of sampling its score worsens, and then gets better than it was (first alone)
    ============ ===================================================================================================

    Scores are compared after a share ``at`` of the rounds. What is said of time holds for ``target``, or for every
    target of the row.
    """

    first: str
    says: Literal["above", "alike", "falls", "slower", "sooner", "alone", "recovers"]
    second: str
    by: Annotated[float, Field(ge=0, lt=1)] | None = None
    to: Annotated[float, Field(ge=0, lt=1)] | None = None
    at: Annotated[float, Field(gt=0, le=1)] = 1.0
    target: Share | None = None

    @property
    def timed(self) -> bool:
        """Does it speak of targets?"""
        return self.says in ("sooner", "alone")


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
    claims: tuple[Claim, ...] = Field(default=(), strict=False)
    targets: tuple[Share, ...] = Field(default=(), strict=False)  # times to which are compared
    whole: bool = False  # are words counted from the first round on, and not after the sampling?
    values: dict[str, float] = Field(default_factory=dict)
    column: Column | None = None
    reading: str | None = None

    @model_validator(mode="after")
    def _claims_speak_of_what_is_there(self) -> Self:
        cells = [cell.name for cell in self.cells]
        for claim in self.claims:
            for name in (claim.first, claim.second):
                if name not in cells:
                    raise ValueError(f"a claim speaks of {name!r}, which is none of {', '.join(cells)}")
            if (claim.timed and not self.targets) or claim.target not in (None, *self.targets):
                raise ValueError(f"a claim needs a target that the row has, found {claim.target}")
        return self


class Exhibit(_Data):
    """A table or a figure."""

    title: str
    kind: Kind
    method: str | None = None  # the recipe the paper argues for; orderings are judged against its last cell in a row
    notes: tuple[str, ...] = Field(default=(), strict=False)
    row: tuple[Line, ...] = Field(default=(), strict=False)
