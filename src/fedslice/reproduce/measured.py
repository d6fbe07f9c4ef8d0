"""The runs of an exhibit that trains: made once, then read by row, cell and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from fedslice.compare import Target
from fedslice.metrics import lower_is_better
from fedslice.reproduce.exhibits import Cell, Exhibit, Line, Setup
from fedslice.reproduce.jobs import Job, Order, job, sampled, scaled
from fedslice.reproduce.progress import Progress
from fedslice.reproduce.verdicts import INCOMPARABLE, Verdict
from fedslice.reproduce.workers import Outcome, run_all

Document = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """The runs of a cell, one per seed; ``missing`` says why there is nothing to judge."""

    cell: Cell
    jobs: Sequence[Job]
    outcomes: Sequence[Outcome]
    metric: str

    @property
    def missing(self) -> str | None:
        """The first run that could not be made, or has nothing to show."""
        for one in self.outcomes:
            if one.error is not None:
                return one.error
            if not self._scores(one):
                return f"{one.directory} has no finite {self.metric}."
        return None

    @property
    def best(self) -> list[float]:
        """The best score by seed."""
        pick = min if lower_is_better(self.metric) else max
        return [pick(score for _, score in self._scores(one)) for one in self.outcomes]

    def hits(self, target: float, column: str = "round") -> list[float | None]:
        """Rounds to the target by seed, or another column's value at that round."""
        aim = Target(self.metric, target)
        return [next((row[column] for row in one.metrics if aim.reached(row)), None) for one in self.outcomes]

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
        sign = 1 if lower_is_better(self.metric) else -1
        out = []
        for one in self.outcomes:
            losses = [(at, sign * score) for at, score in self._scores(one)]
            before = [loss for at, loss in losses if at <= after]
            since = [loss for at, loss in losses if at > after] or before[-1:]
            out.append((before[-1], max(since), since[-1]))
        return out

    def last(self, column: str) -> list[Any]:
        """What stands in a column at the end, by seed."""
        return [one.metrics[-1].get(column) for one in self.outcomes]

    def document(self, curves: bool) -> Document:
        """What it is, and its runs, with their curves if they are to be seen."""
        return {
            "cell": self.cell.name,
            "recipe": self.cell.recipe,
            "settings": self.jobs[0].request.set,
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
        return run | ({"curve": [[row["round"], row.get(self.metric)] for row in outcome.metrics]} if curves else {})

    def _scores(self, outcome: Outcome) -> list[tuple[int, float]]:
        """Rounds and scores, where they are finite; the others are logged as null."""
        return [(row["round"], row[self.metric]) for row in outcome.metrics if row.get(self.metric) is not None]


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
        """Where the data came from."""
        return next((one.source for cell in self.cells for one in cell.outcomes if one.source is not None), None)

    @property
    def incomparable(self) -> str | None:
        """Why a number of the paper can not be held against these runs, whatever became of them."""
        return self.scale or ("other data" if self.setup.stands_in(self.source) else None)

    def document(self) -> Document:
        """What all kinds of exhibits say of a row."""
        return {
            "row": self.line.paper,
            "reading": self.setup.reading,
            "task": self.setup.task,
            "source": self.source,
            "standin": self.setup.stands_in(self.source),
            "note": self.setup.trained.note,
            "metric": self.setup.trained.metric,
            "rounds": self.rounds,
        }


def readings(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> list[Reading]:
    """Run everything, then one reading per line and setup."""
    asked = [
        job(setups[setup], cell, seed, order)
        for line in exhibit.row
        for setup in line.setups
        for cell in line.cells
        for seed in range(order.seeds)
    ]
    with Progress(order.console, name, asked, order.jobs) as progress:
        outcomes = run_all(asked, order.out, order.jobs, progress)
    return [_reading(line, setups[setup], order, outcomes) for line in exhibit.row for setup in line.setups]


def _reading(line: Line, setup: Setup, order: Order, outcomes: Mapping[str, Outcome]) -> Reading:
    training = setup.trained
    cells = []
    for cell in line.cells:
        jobs = [job(setup, cell, seed, order) for seed in range(order.seeds)]
        cells.append(Measured(cell, jobs, [outcomes[one.key] for one in jobs], training.metric))
    rounds = scaled(training.rounds, order.scale)
    scale = f"scaled to {rounds} of {training.rounds} rounds{setup.shrunk(order.scale)}" if order.scale != 1 else None
    return Reading(line, setup, cells, rounds, scale, sampled(training, order.scale))


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
