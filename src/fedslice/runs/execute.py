"""Run an experiment into a run directory: log, checkpoint, resume, and never do finished work again."""

from __future__ import annotations

import hashlib
import json
import re
import time
import warnings
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from fedslice.config import Plan
from fedslice.core.errors import RunWarning, UserError
from fedslice.data.vocabulary import dumps
from fedslice.measure.instruments import run_columns
from fedslice.runs.callbacks import Callback, Callbacks, Row, RunState
from fedslice.runs.checkpoint import REMEDY
from fedslice.runs.directory import METRICS, RunDirectory, State
from fedslice.runs.reading import check_rows, read
from fedslice.runs.run import Run
from fedslice.runs.weights import Layout
from fedslice.signals import Stopped, deferred
from fedslice.training.experiment import Experiment


def default_directory(plan: Plan) -> Path:
    """A directory that belongs to this configuration and no other."""
    digest = hashlib.sha256(json.dumps(plan.config, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{plan.config['task']['name']}-{plan.recipe_name}-seed{plan.settings.seed}-{digest}"
    return Path("runs") / re.sub(r"[^\w.+=-]+", "-", name)


def execute(
    plan: Plan,
    out: Path,
    *,
    resume: bool,
    checkpoint_seconds: float = 30.0,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train what is left of a run, and return it.

    A checkpoint is taken after a round when the last one is ``checkpoint_seconds`` old. Whatever instant a run is
    killed at, it resumes from the last checkpoint, or begins again if there is none, and comes to the same metrics.
    Ctrl-C and SIGTERM end it after the round at hand, with a checkpoint and :class:`Stopped`; a second Ctrl-C ends it
    at once. What callbacks are told, and what their exceptions do, is said in :class:`Callback`.
    """
    # This and the engine's first step refuse what cannot run before a directory is made; a finished run is only read.
    waiting = RunDirectory(out)
    experiment = None if waiting.finished else plan.experiment(waiting.scratch)
    if experiment is not None:
        _ = experiment.engine
    with RunDirectory.open(out, plan.config, resume=resume) as run:
        if experiment is not None and not run.finished:
            _Training(plan, experiment, run, checkpoint_seconds, callbacks).play()
        else:
            _tell_finished(plan, run, callbacks)
    return read(out)


def _tell_finished(plan: Plan, run: RunDirectory, callbacks: Sequence[Callback]) -> None:
    """A run that is complete already: there is a start and an end, and nothing between."""
    rows = run.metrics()
    state = _state(plan, run, rows, None)
    state.round = int(rows[-1]["round"]) if rows else 0
    told = Callbacks(callbacks, state)
    told.start()
    told.end(None)


def _state(plan: Plan, run: RunDirectory, rows: list[Row], experiment: Experiment | None) -> RunState:
    def model() -> dict[str, object]:
        if experiment is None:
            found = read(run.path).model
        else:
            found = {name: value.detach().cpu().clone() for name, value in experiment.model.items()}
            found = Layout.of(plan.task).state_dict(found)
        return dict(found)

    return RunState(
        task=plan.config["task"]["name"],
        recipe=plan.recipe_name,
        seed=plan.settings.seed,
        rounds=plan.settings.rounds,
        config=plan.config,
        directory=run.path,
        columns=run_columns(plan.task, plan.settings.measure),
        round=0 if experiment is None else experiment.round,
        rows=rows,
        finished=experiment is None,
        engine=None if experiment is None else experiment.engine,
        _model=model,  # type: ignore[arg-type]
        _stop=(lambda _: None) if experiment is None else experiment.end,
    )


class _Training:
    """All remaining rounds of a run, logged and saved, to the mark that it is complete."""

    def __init__(
        self, plan: Plan, experiment: Experiment, run: RunDirectory, every: float, callbacks: Sequence[Callback]
    ):
        self._plan = plan
        self._experiment = experiment
        self._run = run
        self._every = every
        self._given = callbacks
        self._held: Exception | None = None  # of a callback, until the row of its round is on disk

    def play(self) -> None:
        """Play and finish."""
        plan, experiment, run = self._plan, self._experiment, self._run
        self._saved = _resume(experiment, run)
        self._last = time.monotonic()
        run.origin(plan.asked.command(), plan.asked.stored())
        run.columns(list(run_columns(plan.task, plan.settings.measure).values()))
        run.panels(experiment.panels())
        Layout.of(plan.task).write(run.layout_path)
        if plan.task.vocabularies:
            run.vocabularies(dumps(plan.task.vocabularies))
        self._told = Callbacks(self._given, _state(plan, run, run.metrics(), experiment))
        error: BaseException | None = None
        try:
            self._told.start()
            self._rounds()
        except BaseException as problem:
            error = problem
            if self._told.failed is not None and isinstance(problem, Exception):
                problem.add_note(f"{self._told.failed} raised this after round {experiment.round}; {self.state}")
            raise
        finally:
            self._told.end(error)

    def _rounds(self) -> None:
        experiment, run = self._experiment, self._run
        rows = experiment.stream(self._after_round)
        self._stop_if_due()
        if experiment.round == 0:
            self._record(next(rows))  # before the first round there is nothing to save, and nothing to wait for
        with deferred() as self._request:
            try:
                for row in rows:
                    self._record(row)
                    self._look()
                run.checkpoint(experiment.round, *experiment.state_dict())
                run.panels(experiment.panels())
                if table := experiment.clients():
                    run.clients(table)
                diverged = experiment.diverged
                ended = experiment.round < experiment.rounds
                run.finish(
                    None if diverged is None else diverged._asdict(),
                    {"round": experiment.round, "reason": experiment.ended} if ended else None,
                )
            except KeyboardInterrupt:
                if self._request.number is None:  # somebody else's
                    raise
                raise Stopped(self._request.number, self.state, self._saved) from None
        if self._request.number is not None:
            raise Stopped(self._request.number, f"the run in {run.path} is finished.", experiment.round)

    def _after_round(self, done: int) -> None:
        try:
            self._told.round(done)
        except Exception as error:
            if not self._experiment.evaluates:
                self._save()
                raise
            self._held = error  # the row belongs to the state that is saved, and comes first
        if not self._experiment.evaluates:
            self._look()

    def _record(self, row: Row) -> None:
        """Log a row and tell of it; an exception of a callback ends the run with this round saved."""
        self._run.log(row)
        try:
            if self._held is not None:
                raise self._held
            self._told.evaluation(row)
        except Exception:
            if self._experiment.round:
                self._save()
            raise
        self._stop_if_due()

    def _stop_if_due(self) -> None:
        """End where a condition holds for the log as it is, which a resumed run may have reached already."""
        for stop in self._plan.stop:
            if reason := stop.reason(self._told.run.rows):
                self._experiment.end(reason)
                return

    def _look(self) -> None:
        """After a round: save it if that is due or asked for."""
        asked, experiment = self._request.number, self._experiment
        if experiment.round == experiment.rounds or experiment.ended is not None:  # what comes next saves it
            return
        if asked is not None or time.monotonic() - self._last >= self._every:
            self._save()
        if asked is not None:
            raise Stopped(asked, self.state, self._saved)

    def _save(self) -> None:
        self._run.checkpoint(self._experiment.round, *self._experiment.state_dict())
        self._last, self._saved = time.monotonic(), self._experiment.round

    @property
    def state(self) -> str:
        """A sentence on what is saved, and how to continue."""
        if not self._saved:
            return f"{self._run.path} has no checkpoint, and the same command with --resume begins the run again."
        return (
            f"round {self._saved} of {self._experiment.rounds} is saved in {self._run.path}, and the same command with "
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
    last = experiment.rounds if experiment.ended is None else experiment.round
    wanted = [t for t in done if t % experiment.eval_every == 0 or t == last]
    for line, (there, expected) in enumerate(zip_longest(found, wanted), start=1):
        if there != expected:
            raise UserError(
                f"{path / METRICS}, line {line} is {_round(there)}, expected {_round(expected)} before the checkpoint "
                f"of round {experiment.round}; restore both from one copy, or start the run again in another --out."
            )


def _round(number: int | None) -> str:
    return "absent" if number is None else f"round {number}"
