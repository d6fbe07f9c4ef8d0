"""Settings that a paper leaves open, chosen by one rule before anything is reported.

A setup declares a grid per recipe, with the same number of tries for each. Every try is run with seeds that are never
reported. The chosen try is the one that

1. reaches the target in the fewest rounds, averaged over the seeds (a run that does not reach it counts as infinite),
2. then has the best score, averaged over the seeds (a try without a finite score comes last),
3. then stands first in the grid.

The rule looks at nothing else, and the reported runs begin after the choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from fedslice.core.errors import UserError
from fedslice.papers.exhibits import Cell, Setup
from fedslice.papers.jobs import Job, Order, job
from fedslice.papers.measured import Measured, by_seed
from fedslice.papers.workers import Outcome
from fedslice.schema import find

Document = dict[str, Any]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Try:
    """The runs of one point of a grid, and the settings that it gives a cell."""

    settings: Settings
    measured: Measured
    target: float | None

    @property
    def rounds(self) -> list[float | None]:
        """Rounds to the target by seed."""
        missing = self.target is None or self.measured.missing is not None
        return [None for _ in self.measured.jobs] if missing else self.measured.hits(self.target or 0.0)

    @property
    def best(self) -> list[float | None]:
        """The best score by seed; ``None`` without a finite one."""
        return [None for _ in self.measured.jobs] if self.measured.missing else list(self.measured.best)

    @property
    def rank(self) -> tuple[float, float]:
        """The sort key of the rule: the least is chosen."""
        sign = 1 if find(self.measured.metric).lower_is_better else -1
        hits = [math.inf if hit is None else hit for hit in self.rounds]
        scores = [math.inf if score is None else sign * score for score in self.best]
        return mean(hits), mean(scores)

    def document(self, chosen: bool) -> Document:
        """The settings and what came out, for a report."""
        return {
            "settings": dict(self.settings),
            "seeds": [job.request.seed for job in self.measured.jobs],
            "rounds_to_target": by_seed(self.rounds),
            "best": by_seed(self.best),
            "error": self.measured.missing,
            "chosen": chosen,
        }


@dataclass(frozen=True)
class Swept:
    """All tries of a cell; empty for a cell with no open setting."""

    tries: Sequence[Try] = ()

    @property
    def settings(self) -> Settings:
        """The settings of the chosen try."""
        return min(self.tries, key=lambda one: one.rank).settings if self.tries else {}

    def document(self) -> list[Document]:
        """Every try, in the grid's order."""
        chosen = self.settings
        return [one.document(one.settings is chosen) for one in self.tries]


def tried(setup: Setup, cell: Cell, order: Order) -> dict[int, tuple[Settings, list[Job]]]:
    """The runs of every try of a cell, by the try's place in the grid."""
    sweep = setup.trained.sweep
    if sweep is None:
        return {}
    if order.seeds > min(sweep.seeds):
        raise UserError(
            f"seeds={order.seeds} would report seed {min(sweep.seeds)}, which chooses the settings of "
            f"{setup.task} ({setup.reading}); give at most {min(sweep.seeds)}."
        )
    return {
        place: (settings, [job(setup, cell, seed, order, settings, sweep.rounds) for seed in sweep.seeds])
        for place, settings in enumerate(sweep.tries(cell.recipe))
    }


def swept(setup: Setup, cell: Cell, order: Order, outcomes: Mapping[str, Outcome]) -> Swept:
    """The tries of a cell with what came out of them."""
    training = setup.trained
    return Swept(
        tuple(
            Try(settings, Measured(cell, jobs, [outcomes[one.key] for one in jobs], training.metric), training.target)
            for settings, jobs in tried(setup, cell, order).values()
        )
    )
