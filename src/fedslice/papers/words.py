"""Words that methods send at the size of the papers' networks (FLSS, tables 1, 4, 7 and 8), without days of training.

The words of a message do not depend on the data. So the real network takes a step on one picture per client; the codec
then encodes the update, packs it, decodes it and follows it, for as many rounds as the paper has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedslice.config import resolve
from fedslice.core.errors import UserError
from fedslice.papers import verdicts
from fedslice.papers.compression import words_since
from fedslice.papers.exhibits import Cell, Exhibit, Line, Setup
from fedslice.papers.jobs import Job, Order, job, sampled
from fedslice.papers.measured import not_run
from fedslice.papers.printed import printed
from fedslice.papers.progress import Progress
from fedslice.training.experiment import Experiment, Row

Document = dict[str, Any]


@dataclass(frozen=True)
class Books:
    """A run's metrics, of which every message was packed, or why there are none."""

    parameters: int | None = None
    metrics: Sequence[Row] = ()
    error: str | None = None


def rows(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> list[Document]:
    """One row per line and reading; one run per cell, as seeds make no difference, and cells may share it."""
    todo = {
        one.key: one
        for line in exhibit.row
        for setup in line.setups
        for one in (job(setups[setup], cell, 0, order) for cell in line.cells)
    }
    with Progress(order.console, name, todo.values(), lanes=1) as progress:
        done = {key: _run(one, progress) for key, one in todo.items()}
    out = []
    for line in exhibit.row:
        for setup in (setups[one] for one in line.setups):
            asked = [job(setup, cell, 0, order) for cell in line.cells]
            after = 0 if line.whole else sampled(setup.trained, order.scale) or 0
            cells = [_cell(*pair, done[pair[1].key], after, order) for pair in zip(line.cells, asked, strict=True)]
            out.append(_row(line, setup, cells, after, asked[0].rounds))
    return out


def _run(asked: Job, progress: Progress) -> Books:
    progress.begin(asked)
    books = _books(asked, progress)
    progress.end(asked, books.error)
    return books


def _books(asked: Job, progress: Progress) -> Books:
    try:
        plan = resolve(asked.request)
        experiment = Experiment(plan.task, plan.recipe, **plan.settings.experiment() | {"wire": True})
        progress.report(asked, 0, None)
        metrics = experiment.run(lambda done: progress.report(asked, done, None))
    except UserError as problem:
        return Books(error=str(problem))
    return Books(sum(shape.numel() for shape in plan.task.shapes.values()), metrics)


def _row(line: Line, setup: Setup, cells: list[Document], after: int, rounds: int) -> Document:
    return {
        "row": line.paper,
        "reading": setup.reading,
        "task": setup.task,
        "source": None,
        "standin": setup.standin,
        "note": setup.remark,
        "rounds": rounds,
        "after": after,
        "cells": cells,
    }


def _cell(cell: Cell, asked: Job, ledger: Books, after: int, order: Order) -> Document:
    words = packed = verdict = None
    if ledger.error is None:
        cohort = int(asked.request.set["cohort"])
        words = words_since(ledger.metrics, after, cohort)
        wire = [{"round": row["round"], "up_bytes": row["up_bytes"]} for row in ledger.metrics]
        packed = words_since(wire, after, cohort)
    if words is None or order.scale != 1:
        verdict = not_run(ledger.error, f"scaled to {asked.rounds} rounds").document()
    elif cell.words is not None:
        verdict = verdicts.sent(printed(cell.words), words).document()
    return {
        "cell": cell.name,
        "recipe": cell.recipe,
        "settings": asked.request.set,
        "command": asked.request.command(),
        "paper": {"words": cell.words},
        "parameters": ledger.parameters,
        "words": words,
        "packed": packed,
        "error": ledger.error,
        "verdict": verdict,
    }
