"""Training: one run, or a comparison of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedslice import console
from fedslice.commands.app import (
    Json,
    Report,
    TargetText,
    TaskName,
    blaming,
    complete_recipe,
    complete_recipes,
    errors,
    recipes_in,
    said_settings,
    say,
    show,
    writable,
)
from fedslice.commands.look import write_report
from fedslice.commands.options import option, with_settings
from fedslice.core.errors import run_warnings
from fedslice.loading import loading

if TYPE_CHECKING:
    from fedslice.config import Plan
    from fedslice.runs.callbacks import Callback

Resume = Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")]
CheckpointSeconds = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Time between checkpoints.")]
EventFolder = Annotated[
    str | None, typer.Option("--tensorboard", metavar="DIR", help="Write TensorBoard event files below this folder.")
]
MLflowName = Annotated[str | None, typer.Option("--mlflow", metavar="NAME", help="Log to this experiment of MLflow.")]
WandBName = Annotated[
    str | None, typer.Option("--wandb", metavar="NAME", help="Log to this project of Weights & Biases.")
]


@with_settings()
def run(
    task: TaskName,
    said: dict[str, Any],
    set_: list[str] | None = None,
    resume: Resume = False,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    tensorboard: EventFolder = None,
    mlflow: MLflowName = None,
    wandb: WandBName = None,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Train one task with one recipe."""
    with loading():
        from fedslice.api import train
        from fedslice.config import request, resolve
        from fedslice.runs.execute import default_directory

    asked = request(said_settings(task, set_, said))
    watch = _Watch(tensorboard, mlflow, wandb)
    with _sentences(), blaming(task, set_):
        plan = resolve(asked)
        place = Path(asked.out) if asked.out else default_directory(plan)
        writable("--report", report, made=[place])
        (found,) = train([plan], [place], resume, checkpoint_seconds, watch)
    show(found.document, as_json, lambda: console.run_tables(found))
    say(f"run directory: {place}")
    write_report([place], report, None)


@with_settings(
    "recipe",
    seed=option("seed", "First seed."),
    out=option("out", "Directory for all runs.", "runs"),
)
def compare(
    task: TaskName,
    said: dict[str, Any],
    set_: list[str] | None = None,
    recipe_names: Annotated[
        str,
        typer.Option(
            "--recipes", metavar="NAME,…", help="Recipes, separated by commas.", autocompletion=complete_recipes
        ),
    ] = "fedavg,fedsubavg",
    target: TargetText = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Recipe whose simulated time to the target counts as one; needs --devices.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Number of seeds: 0, 1, … or from --seed on.")] = 1,
    resume: Resume = False,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    tensorboard: EventFolder = None,
    mlflow: MLflowName = None,
    wandb: WandBName = None,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Train one task with several recipes and seeds.

    The tables show when each recipe reaches a target, and what it has at the end.
    """
    with loading():
        from fedslice.api import compared

    fields, names = said_settings(task, set_, said), recipes_in(recipe_names)
    watch = _Watch(tensorboard, mlflow, wandb)
    with _sentences():
        with blaming(task, set_):
            asked = compared(fields, names, seeds, target, baseline)
        writable("--report", report, made=asked.places)
        found = asked.train(resume, checkpoint_seconds, watch)
    show(found.document, as_json, lambda: console.compare_tables(found))
    say(f"run directories: {asked.places[0].parent}")
    write_report(asked.places, report, found.target, baseline)


class _Watch:
    """The callbacks of a command: progress, and the trackers that were asked for."""

    def __init__(self, tensorboard: str | None, mlflow: str | None, wandb: str | None):
        from fedslice.runs.trackers import MLflow, TensorBoard, WandB

        trackers = [(TensorBoard, tensorboard), (MLflow, mlflow), (WandB, wandb)]
        self._trackers: list[Callback] = [kind(name) for kind, name in trackers if name is not None]

    def __call__(self, number: int, of: int, plan: Plan) -> Sequence[Callback]:
        """Progress that tells a run by its number if it is one of several."""
        title = plan.title if of == 1 else f"run {number} of {of}: {plan.title}"
        return [console.Follow(errors, title), *self._trackers]


def _sentences() -> Any:
    """Print warnings about a run as sentences."""
    return run_warnings(lambda sentence: say(f"fedslice: {sentence}"))
