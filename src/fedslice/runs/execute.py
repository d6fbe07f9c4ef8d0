"""Run an experiment into a run directory: log, checkpoint, resume, and never do finished work again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedslice.config import Plan
from fedslice.engines.choose import Choice
from fedslice.experiment import Row
from fedslice.runs.directory import RunDirectory

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
    """The run's document: task, recipe, seed, source and metrics.

    If anything is left to do, ``on_engine`` is told the engine, and ``on_round`` the number of rounds done: at first
    those of the checkpoint, then every one. A checkpoint is taken after an evaluation when the last one is
    ``checkpoint_seconds`` old. Whatever instant a run is killed at, it resumes from the last checkpoint, or begins
    again if there is none, and comes to the same metrics.
    """
    # This and the engine's first step refuse what cannot run before a directory is made; a finished run is only read.
    waiting = RunDirectory(out)
    experiment = None if waiting.finished else plan.experiment(waiting.scratch)
    if experiment is not None:
        on_engine(experiment.engine)
    with RunDirectory.open(out, plan.config, resume=resume) as run:
        if experiment is not None and not run.finished:
            state = run.resume()
            if state is not None:
                experiment.load_state_dict(state[1], state[2])
                del state  # it may be as large as all that the experiment itself keeps
            on_round(experiment.round)
            run.origin(plan.command)
            run.panels(experiment.panels())
            saved = time.monotonic()
            for row in experiment.stream(on_round):
                run.log(row)
                on_row(row)
                if 0 < experiment.round < experiment.rounds and time.monotonic() - saved >= checkpoint_seconds:
                    run.checkpoint(experiment.round, *experiment.state_dict())
                    saved = time.monotonic()
            run.checkpoint(experiment.round, *experiment.state_dict())
            run.panels(experiment.panels())
            if table := experiment.clients():
                run.clients(table)
            run.finish()
        return {
            "task": plan.task.name,
            "recipe": plan.recipe_name,
            "seed": plan.seed,
            "source": plan.task.source,
            "metrics": run.metrics(),
        }
