"""Run an experiment into a run directory: log, checkpoint, resume, and never do finished work again."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedslice.config import Plan
from fedslice.core.errors import RunWarning, UserError
from fedslice.measure.instruments import score_columns
from fedslice.runs.checkpoint import REMEDY
from fedslice.runs.directory import METRICS, RunDirectory, State
from fedslice.runs.reading import check_rows
from fedslice.signals import Request, Stopped, deferred
from fedslice.training.engines.choose import Choice
from fedslice.training.experiment import Experiment, Row

OnEngine = Callable[[Choice], None]
OnRow = Callable[[Row], None]
OnRound = Callable[[int], None]


def default_directory(plan: Plan) -> Path:
    """A directory that belongs to this configuration and no other."""
    digest = hashlib.sha256(json.dumps(plan.config, sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs") / f"{plan.task.name}-{plan.recipe_name}-seed{plan.seed}-{digest}"


def execute(
    plan: Plan,
    out: Path,
    *,
    resume: bool,
    checkpoint_seconds: float = 30.0,
    on_engine: OnEngine = lambda _: None,
    on_row: OnRow = lambda _: None,
    on_round: OnRound = lambda _: None,
) -> dict[str, Any]:
    """The run's document: task, recipe, seed, source, metrics, and when it diverged, if it did.

    If anything is left to do, ``on_engine`` is told the engine, and ``on_round`` the number of rounds done: at first
    those of the checkpoint, then every one. A checkpoint is taken after a round when the last one is
    ``checkpoint_seconds`` old. Whatever instant a run is killed at, it resumes from the last checkpoint, or begins
    again if there is none, and comes to the same metrics. Ctrl-C and SIGTERM end it after the round at hand, with a
    checkpoint and :class:`Stopped`; a second Ctrl-C ends it at once.
    """
    # This and the engine's first step refuse what cannot run before a directory is made; a finished run is only read.
    waiting = RunDirectory(out)
    experiment = None if waiting.finished else plan.experiment(waiting.scratch)
    if experiment is not None:
        on_engine(experiment.engine)
    with RunDirectory.open(out, plan.config, resume=resume) as run:
        if experiment is not None and not run.finished:
            _train(plan, experiment, run, checkpoint_seconds, on_row, on_round)
        return {
            "task": plan.task.name,
            "recipe": plan.recipe_name,
            "seed": plan.seed,
            "source": plan.task.source,
            "metrics": run.metrics(),
            "diverged": run.diverged,
        }


def _train(
    plan: Plan, experiment: Experiment, run: RunDirectory, every: float, on_row: OnRow, on_round: OnRound
) -> None:
    """All remaining rounds, logged and saved, to the mark that the run is complete."""
    saved = _resume(experiment, run)
    on_round(experiment.round)
    run.origin(plan.command)
    run.columns(score_columns(plan.task, plan.measure))
    run.panels(experiment.panels())
    keeper = _Keeper(experiment, run, every, saved)

    def after_round(done: int) -> None:
        on_round(done)
        if not experiment.evaluates:  # else the row belongs to the state, and comes first
            keeper.look(request)

    def record(row: Row) -> None:
        run.log(row)
        on_row(row)

    rows = experiment.stream(after_round)
    if experiment.round == 0:
        record(next(rows))  # before the first round there is nothing to save, and nothing to wait for
    with deferred() as request:
        try:
            for row in rows:
                record(row)
                keeper.look(request)
            run.checkpoint(experiment.round, *experiment.state_dict())
            run.panels(experiment.panels())
            if table := experiment.clients():
                run.clients(table)
            diverged = experiment.diverged
            run.finish(None if diverged is None else diverged._asdict())
        except KeyboardInterrupt:
            if request.number is None:  # somebody else's
                raise
            raise Stopped(request.number, keeper.state, keeper.saved) from None
    if request.number is not None:
        raise Stopped(request.number, f"the run in {run.path} is finished.", experiment.round)


class _Keeper:
    """Takes the checkpoints of a run, and ends it where it was asked to end."""

    def __init__(self, experiment: Experiment, run: RunDirectory, every: float, saved: int):
        self._experiment = experiment
        self._run = run
        self._every = every
        self._last = time.monotonic()
        self.saved = saved

    def look(self, request: Request) -> None:
        """After a round: save it if that is due or asked for."""
        asked, done = request.number, self._experiment.round
        if done == self._experiment.rounds:  # what comes next saves it
            return
        if asked is not None or time.monotonic() - self._last >= self._every:
            self._run.checkpoint(done, *self._experiment.state_dict())
            self._last, self.saved = time.monotonic(), done
        if asked is not None:
            raise Stopped(asked, self.state, self.saved)

    @property
    def state(self) -> str:
        """What is on disk, and how to go on."""
        if not self.saved:
            return f"{self._run.path} has no checkpoint, and the same command with --resume begins the run anew."
        return (
            f"round {self.saved} of {self._experiment.rounds} is saved in {self._run.path}, and the same command with "
            "--resume goes on from there."
        )


def _resume(experiment: Experiment, run: RunDirectory) -> int:
    """Bring the experiment to where the checkpoint has it; its round, 0 if there is none."""

    def accept(state: State, rows: list[Row]) -> None:
        try:
            experiment.load_state_dict(state[1], state[2])
        except UserError as error:
            raise UserError(f"checkpoint {run.checkpoint_path} does not fit this run: {error}; {REMEDY}") from error
        _check_log(run.path, rows, experiment)

    state = run.resume(accept)
    if run.cut:
        rows = "1 row" if run.cut == 1 else f"{run.cut} rows"
        since = f"after its checkpoint of round {experiment.round}" if state is not None else "and no checkpoint"
        warnings.warn(
            f"{run.path} had {rows} {since}; what was not saved is computed again.",
            RunWarning,
            stacklevel=2,
        )
    return experiment.round


def _check_log(path: Path, rows: list[Row], experiment: Experiment) -> None:
    """The rows are those of the evaluations up to the experiment's round."""
    found = [row["round"] for row in check_rows(path, rows)]
    done = range(experiment.round + 1)
    wanted = [t for t in done if t % experiment.eval_every == 0 or t == experiment.rounds]
    for line, (there, expected) in enumerate(zip_longest(found, wanted), start=1):
        if there != expected:
            raise UserError(
                f"{path / METRICS}, line {line} is {_round(there)}, expected {_round(expected)} before the checkpoint "
                f"of round {experiment.round}; restore both from one copy, or start the run again in another --out."
            )


def _round(number: int | None) -> str:
    return "absent" if number is None else f"round {number}"
