"""Make the runs of an exhibit that trains: first the sweeps, then the runs with the settings that these chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedslice.papers.exhibits import Cell, Exhibit, Line, Setup
from fedslice.papers.jobs import Job, Order, job, sampled, scaled
from fedslice.papers.measured import Measured, Reading
from fedslice.papers.progress import Progress
from fedslice.papers.sweep import Swept, swept, tried
from fedslice.papers.workers import Outcome, run_all

Cells = Mapping[tuple[str, str], Swept]  # by setup and cell


def readings(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> list[Reading]:
    """Return one reading per line and setup; every run that is missing is made."""
    tries = [
        one for key, cell in _cells(exhibit) for _, jobs in tried(setups[key[0]], cell, order).values() for one in jobs
    ]
    outcomes = _run(f"{name}, sweeps", tries, order) if tries else {}
    chosen = {key: swept(setups[key[0]], cell, order, outcomes) for key, cell in _cells(exhibit)}
    asked = [one for key, cell in _cells(exhibit) for one in _jobs(setups[key[0]], cell, order, chosen[key])]
    outcomes = _run(name, asked, order)
    return [
        _reading(line, setup, setups[setup], order, chosen, outcomes) for line in exhibit.row for setup in line.setups
    ]


def _cells(exhibit: Exhibit) -> Iterator[tuple[tuple[str, str], Cell]]:
    """Every cell of every reading, with its setup's name and its own."""
    for line in exhibit.row:
        for setup in line.setups:
            for cell in line.cells:
                yield (setup, cell.name), cell


def _run(title: str, jobs: Sequence[Job], order: Order) -> dict[str, Outcome]:
    with Progress(order.console, title, jobs, order.jobs) as progress:
        return run_all(jobs, order.out, order.jobs, progress)


def _jobs(setup: Setup, cell: Cell, order: Order, chosen: Swept) -> list[Job]:
    """The reported runs of a cell."""
    return [job(setup, cell, seed, order, chosen.settings) for seed in range(order.seeds)]


def _reading(
    line: Line, name: str, setup: Setup, order: Order, chosen: Cells, outcomes: Mapping[str, Outcome]
) -> Reading:
    training = setup.trained
    cells = []
    for cell in line.cells:
        sweep = chosen[name, cell.name]
        jobs = _jobs(setup, cell, order, sweep)
        cells.append(Measured(cell, jobs, [outcomes[one.key] for one in jobs], training.metric, sweep.document()))
    rounds = scaled(training.rounds, order.scale)
    scale = f"scaled to {rounds} of {training.rounds} rounds{setup.shrunk(order.scale)}" if order.scale != 1 else None
    return Reading(line, setup, cells, rounds, scale, sampled(training, order.scale))
