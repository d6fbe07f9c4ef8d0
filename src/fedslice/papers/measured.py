"""The runs of an exhibit that trains, read by row, cell and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from fedslice.papers.exhibits import Cell, Line, Setup
from fedslice.papers.jobs import Job
from fedslice.papers.verdicts import INCOMPARABLE, Verdict
from fedslice.papers.workers import Outcome
from fedslice.runs.stopping import Target
from fedslice.schema import find

Document = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """The runs of a cell, one per seed; ``missing`` says why there is nothing to judge.

    ``tries`` are the documents of the sweep that chose the cell's settings, if there was one.
    """

    cell: Cell
    jobs: Sequence[Job]
    outcomes: Sequence[Outcome]
    metric: str
    tries: Sequence[Document] = ()

    @property
    def missing(self) -> str | None:
        """The first run that could not be made, or has nothing to show."""
        for one in self.outcomes:
            if one.error is not None:
                return one.error
            if not self._scores(one, sound=True):
                when = "" if one.diverged is None else f" before it diverged in round {one.diverged}"
                return f"{one.directory} has no finite {self.metric}{when}."
        return None

    @property
    def best(self) -> list[float]:
        """The best score by seed, before a run diverged."""
        pick = min if find(self.metric).lower_is_better else max
        return [pick(score for _, score in self._scores(one, sound=True)) for one in self.outcomes]

    def hits(self, target: float, column: str = "round") -> list[float | None]:
        """Rounds to the target by seed, or another column's value at that round."""
        aim = Target(self.metric, target)
        return [next((row[column] for row in _sound(one) if aim.reached(row)), None) for one in self.outcomes]

    def score(self, share: float) -> list[float]:
        """The score after a share of the rounds, by seed: the last that is finite until then, or else the first."""
        out = []
        for one in self.outcomes:
            until = share * one.metrics[-1]["round"]
            scores = self._scores(one)
            out.append(next((score for at, score in reversed(scores) if at <= until), scores[0][1]))
        return out

    def around(self, after: int) -> list[tuple[float, float, float]]:
        """By seed: the score after so many rounds, the worst since, and the last one; as losses, less being better."""
        sign = 1 if find(self.metric).lower_is_better else -1
        out = []
        for one in self.outcomes:
            losses = [(at, sign * score) for at, score in self._scores(one)]
            before = [loss for at, loss in losses if at <= after]
            since = [loss for at, loss in losses if at > after] or before[-1:]
            out.append((before[-1], max(since), since[-1]))
        return out

    def last(self, column: str) -> list[Any]:
        """Return the last value of a column, by seed."""
        return [one.metrics[-1].get(column) for one in self.outcomes]

    def document(self, curves: bool) -> Document:
        """Return the cell with its runs, and their curves if they are shown."""
        return {
            "cell": self.cell.name,
            "recipe": self.cell.recipe,
            "settings": self.jobs[0].request.set,
            "sweep": list(self.tries),
            "runs": [self._run(place, curves) for place in range(len(self.jobs))],
        }

    def _run(self, place: int, curves: bool) -> Document:
        asked, outcome = self.jobs[place].request, self.outcomes[place]
        run: Document = {
            "seed": asked.seed,
            "command": asked.model_copy(update={"out": outcome.directory}).command(),
            "directory": outcome.directory,
            "error": outcome.error,
        }
        run |= {} if outcome.diverged is None else {"diverged": outcome.diverged}
        return run | ({"curve": [[row["round"], row.get(self.metric)] for row in outcome.metrics]} if curves else {})

    def _scores(self, outcome: Outcome, *, sound: bool = False) -> list[tuple[int, float]]:
        """Rounds and scores, where they are finite; the others are logged as null. Sound ones precede a divergence."""
        rows = _sound(outcome) if sound else outcome.metrics
        return [(row["round"], row[self.metric]) for row in rows if row.get(self.metric) is not None]


def _sound(outcome: Outcome) -> list[dict[str, Any]]:
    """The rows before the run diverged."""
    return [row for row in outcome.metrics if outcome.diverged is None or row["round"] < outcome.diverged]


@dataclass(frozen=True)
class Reading:
    """A row of an exhibit in one setup, with what was measured; ``scale`` says in words if it was scaled."""

    line: Line
    setup: Setup
    cells: Sequence[Measured]
    rounds: int
    scale: str | None
    sampling: int | None = None

    @property
    def source(self) -> str | None:
        """The source of the data."""
        return next((one.source for cell in self.cells for one in cell.outcomes if one.source is not None), None)

    @property
    def incomparable(self) -> str | None:
        """Why a number of the paper can not be held against these runs, whatever became of them."""
        return self.scale or ("other data" if self.setup.stands_in(self.source) else None)

    def document(self) -> Document:
        """Return the fields that rows of all kinds of exhibits have."""
        return {
            "row": self.line.paper,
            "reading": self.setup.reading,
            "task": self.setup.task,
            "source": self.source,
            "standin": self.setup.stands_in(self.source),
            "note": self.setup.remark,
            "metric": self.setup.trained.metric,
            "rounds": self.rounds,
        }


def by_seed(values: Sequence[float | None]) -> Document:
    """Values and their mean, if each seed has one."""
    known = [value for value in values if value is not None]
    return {"by_seed": list(values), "mean": mean(known) if known and len(known) == len(values) else None}


def not_run(missing: str | None, why: str | None) -> Verdict:
    """There is nothing to judge, or nothing to judge it by."""
    return Verdict(INCOMPARABLE, f"not run: {missing}" if missing else why or "")


def unless(first: Measured, second: Measured, scale: str | None) -> Verdict | None:
    """Why an ordering of two cells can not be judged, if so: other data are no reason."""
    missing = first.missing or second.missing
    return not_run(missing, scale) if missing or scale else None
