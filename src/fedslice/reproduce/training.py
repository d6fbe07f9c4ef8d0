"""Exhibits of training runs: rounds to a target, best scores, curves (S0 tables 2 and 3, figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from fedslice.compare import Target, lower_is_better
from fedslice.reproduce import verdicts
from fedslice.reproduce.exhibits import Cell, Exhibit, Line, Setup, Training
from fedslice.reproduce.jobs import Job, Order, job, scaled
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
    target: Target

    @property
    def missing(self) -> str | None:
        """The first run that could not be made, or has nothing to show."""
        for one in self.outcomes:
            if one.error is not None:
                return one.error
            if not self._scores(one):
                return f"{one.directory} has no finite {self.target.metric}."
        return None

    @property
    def hits(self) -> list[int | None]:
        """Rounds to the target by seed."""
        return [next((r["round"] for r in one.metrics if self.target.reached(r)), None) for one in self.outcomes]

    @property
    def best(self) -> list[float]:
        """The best score by seed."""
        pick = min if lower_is_better(self.target.metric) else max
        return [pick(self._scores(one)) for one in self.outcomes]

    def _scores(self, outcome: Outcome) -> list[float]:
        """Those that are finite; the others are logged as null."""
        name = self.target.metric
        return [row[name] for row in outcome.metrics if row.get(name) is not None]


def rows(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> list[Document]:
    """Run everything, then one row per line and reading."""
    asked = [
        job(setups[setup], cell, seed, order)
        for line in exhibit.row
        for setup in line.setups
        for cell in line.cells
        for seed in range(order.seeds)
    ]
    with Progress(order.console, name, asked, order.jobs) as progress:
        outcomes = run_all(asked, order.out, order.jobs, progress)
    return [_row(exhibit, line, setups[name], order, outcomes) for line in exhibit.row for name in line.setups]


def _row(exhibit: Exhibit, line: Line, setup: Setup, order: Order, outcomes: Mapping[str, Outcome]) -> Document:
    training = setup.trained
    target = Target(training.metric, training.target)
    cells = []
    for cell in line.cells:
        jobs = [job(setup, cell, seed, order) for seed in range(order.seeds)]
        cells.append(Measured(cell, jobs, [outcomes[one.key] for one in jobs], target))
    rounds = scaled(training.rounds, order.scale)
    scale = None if order.scale == 1 else f"scaled to {rounds} of {training.rounds} rounds"
    if scale and setup.population:
        scale += f" and {order.scale:g} of the clients"
    curves = exhibit.kind == "curves"
    source = next((one.source for cell in cells for one in cell.outcomes if one.source is not None), None)
    standin = setup.stands_in(source)
    return {
        "row": line.paper,
        "reading": setup.reading,
        "task": setup.task,
        "source": source,
        "standin": standin,
        "note": training.note,
        "target": f"{target.metric}={target.value:g}",
        "metric": target.metric,
        "rounds": rounds,
        "cells": [_cell(cell, exhibit.method, standin, scale, curves) for cell in cells],
        "claims": [] if curves else _claims(cells, exhibit.method, training, scale),
    }


def _cell(found: Measured, method: str | None, standin: str | None, scale: str | None, curves: bool) -> Document:
    cell, judged = found.cell, {}
    why = scale or ("other data" if standin else None)
    if not curves:
        judged = {"rounds": _judge_rounds(found, method, why), "best": _judge_best(found, method, why)}
    hits, best = ([], []) if found.missing else (found.hits, found.best)
    return {
        "cell": cell.name,
        "recipe": cell.recipe,
        "settings": found.jobs[0].request.set,
        "paper": {"rounds": cell.rounds, "best": cell.best},
        "runs": [_run(found, place, curves) for place in range(len(found.jobs))],
        "rounds_to_target": {"by_seed": hits, "mean": _mean(hits)},
        "best": {"by_seed": best, "mean": _mean(best)},
        "verdicts": {name: verdict.document() for name, verdict in judged.items() if verdict is not None},
    }


def _run(found: Measured, place: int, curves: bool) -> Document:
    asked, outcome = found.jobs[place].request, found.outcomes[place]
    name = found.target.metric
    run: Document = {
        "seed": asked.seed,
        "command": asked.model_copy(update={"out": outcome.directory}).command(),
        "directory": outcome.directory,
        "error": outcome.error,
    }
    return run | ({"curve": [[row["round"], row.get(name)] for row in outcome.metrics]} if curves else {})


def _judge_rounds(found: Measured, method: str | None, why: str | None) -> Verdict | None:
    cell = found.cell
    if cell.rounds is None:
        return None
    if found.missing or why:
        return _not_run(found.missing, why)
    if cell.reached is not None:
        return verdicts.reached(cell.reached, found.hits, cell.recipe == method)
    return verdicts.not_reached(cell.bound or 0, found.hits)


def _judge_best(found: Measured, method: str | None, why: str | None) -> Verdict | None:
    if found.cell.best is None:
        return None
    if found.missing or why:
        return _not_run(found.missing, why)
    return verdicts.scored(found.cell.best, found.best, found.cell.recipe == method)


def _not_run(missing: str | None, why: str | None) -> Verdict:
    return Verdict(INCOMPARABLE, f"not run: {missing}" if missing else why or "")


def _claims(cells: Sequence[Measured], method: str | None, training: Training, scale: str | None) -> list[Document]:
    """The orderings that the paper's numbers imply: its method's last cell against every other cell of the row."""
    own = [cell for cell in cells if cell.cell.recipe == method]
    if not own:
        return []
    found = []
    for other in cells:
        if other is not own[-1]:
            found += [_race(own[-1], other, training.rounds, scale), _contest(own[-1], other, scale)]
    return [claim for claim in found if claim is not None]


def _race(own: Measured, other: Measured, rounds: int, scale: str | None) -> Document | None:
    """Who reaches the target first, and by which factor."""
    ends = [cell.cell.reached or cell.cell.bound for cell in (own, other)]
    if ends[0] is None or ends[1] is None or (own.cell.reached is None and other.cell.reached is None):
        return None
    factor = ends[1] / ends[0]
    if max(factor, 1 / factor) <= verdicts.NEAR:
        words, first, second = "needs as many rounds as", own, other
        verdict = _unless(first, second, scale) or verdicts.alike(own.hits, other.hits)
    else:
        first, second = (own, other) if factor > 1 else (other, own)
        words, factor = "needs fewer rounds than", max(factor, 1 / factor)
        verdict = _unless(first, second, scale) or verdicts.sooner(factor, first.hits, second.hits, rounds)
    return _claim(first, words, second, factor, verdict)


def _contest(own: Measured, other: Measured, scale: str | None) -> Document | None:
    """Who has the higher best score, and by which gap."""
    if own.cell.best is None or other.cell.best is None:
        return None
    gap = own.cell.best - other.cell.best
    if abs(gap) <= verdicts.NEAR_SCORE:
        words, first, second = "scores as high as", own, other
        verdict = _unless(first, second, scale) or verdicts.level(own.best, other.best)
    else:
        first, second = (own, other) if gap > 0 else (other, own)
        words, gap = "scores higher than", abs(gap)
        verdict = _unless(first, second, scale) or verdicts.higher(gap, first.best, second.best)
    return _claim(first, words, second, gap, verdict)


def _unless(first: Measured, second: Measured, scale: str | None) -> Verdict | None:
    missing = first.missing or second.missing
    return _not_run(missing, scale) if missing or scale else None


def _claim(first: Measured, words: str, second: Measured, paper: float, verdict: Verdict) -> Document:
    name = f"{first.cell.name} {words} {second.cell.name}"
    measured = {"measured": verdict.measured, "at_least": verdict.at_least}
    return {"claim": name, "paper": paper, **measured, **verdict.document()}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None
