"""Looking: at a task, at runs while they go on and when they are done, and at what there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fedslice import console, recipes, tasks
from fedslice.commands.app import Data, Json, Page, Settings, TargetText, TaskName, app, said, say, show
from fedslice.compare import Target
from fedslice.config import build_task, request
from fedslice.errors import UserError
from fedslice.measure.conditioning import conditioning
from fedslice.measure.heat import describe
from fedslice.measure.instruments import is_measured
from fedslice.recipe import PARTS
from fedslice.runs.events import export
from fedslice.runs.reading import Run, find, read
from fedslice.watch import watch as follow

Places = Annotated[
    list[str], typer.Argument(metavar="RUN_DIR…", help="Run directories, or directories that hold some.")
]


@app.command()
def inspect(
    task: TaskName,
    data: Data = None,
    set_: Settings = None,
    conditioned: Annotated[
        bool,
        typer.Option(
            "--conditioning", help="Condition numbers at the initial model; hundreds of passes over the data."
        ),
    ] = False,
    ridge: Annotated[float, typer.Option(help="λ of λ/2·‖x‖² in every client's loss, for --conditioning.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Seed of the initial model.")] = None,
    as_json: Json = False,
) -> None:
    """Show a task's clients, samples, feature heat and slice sizes."""
    asked = request(said(task, set_, data=data, seed=seed))
    built = build_task(asked)
    document = describe(built)
    if conditioned:
        document["conditioning"] = conditioning(built, built.initial(asked.seed), ridge=ridge)
    elif ridge:
        raise UserError(f"--ridge {ridge} belongs to --conditioning; add it, or leave the ridge out.")
    show(document, as_json, console.inspect_tables)


@app.command()
def report(
    run_dirs: Places,
    out: Page = "report.html",
    target: TargetText = None,
    baseline: Annotated[
        str | None, typer.Option(help="Method whose simulated time to the target counts as one; needs --target.")
    ] = None,
    figures: Annotated[str | None, typer.Option(help="Folder for the same charts as files of their own.")] = None,
    kind: Annotated[Literal["svg", "png", "pdf"], typer.Option("--format", help="What --figures writes.")] = "svg",
) -> None:
    """Write one page that shows runs: curves, tables, settings. It needs nothing but a browser."""
    runs = [read(place) for place in find(map(Path, run_dirs))]
    metrics = [name for run in runs for row in run.rows[-1:] for name in row if is_measured(name)]
    aim = Target.parse(target, dict.fromkeys(metrics)) if target is not None else None
    if baseline is not None and aim is None:
        raise UserError(f"--baseline {baseline} needs --target; add for example --target test_auc=0.6.")
    _write(runs, Path(out), aim, baseline)
    if figures is not None:
        from fedslice.report.figures import save

        made = save(runs, Path(figures), kind=kind, target=_pair(aim))
        say(f"figures: {len(made)} in {figures}")


@app.command()
def watch(
    run_dirs: Places,
    metric: Annotated[str | None, typer.Option(help="What to draw, for example test_auc.")] = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write what the runs have logged as TensorBoard event files.")
    ] = None,
) -> None:
    """Follow runs in the terminal until the last one ends."""
    places = [Path(place) for place in run_dirs]
    follow(places, Console(highlight=False, markup=False, emoji=False), metric=metric, every=every)
    if tensorboard is not None:
        export([read(place) for place in find(places)], Path(tensorboard))
        say(f"event files: {tensorboard}")


@app.command(name="list")
def list_(as_json: Json = False) -> None:
    """Show the recipes with their parts, the parts with their settings, and the tasks with the data they need."""
    document = {
        "recipes": [
            {"recipe": name, **{place: part.label for place, part in recipe.parts().items()}}
            for name, recipe in recipes.RECIPES.items()
        ],
        "parts": [
            {"place": place, "part": label, "settings": kind.setting_names()}
            for place, kinds in PARTS.items()
            for label, kind in kinds.items()
        ],
        "tasks": [
            {"task": name, "about": entry.about, "needs": entry.needs, "settings": list(entry.options.model_fields)}
            for name, entry in tasks.TASKS.items()
        ],
    }
    show(document, as_json, console.list_tables)


def write_report(places: Sequence[Path], out: str | None, target: Target | None, baseline: str | None = None) -> None:
    """The report of a command that trained, if one was asked for."""
    if out is not None:
        _write([read(place) for place in places], Path(out), target, baseline)


def _write(runs: Sequence[Run], out: Path, target: Target | None, baseline: str | None) -> None:
    from fedslice.report.page import write  # charts take a while to load, and most commands draw none

    write(runs, out, target=_pair(target), baseline=baseline)
    say(f"report: {out}")


def _pair(target: Target | None) -> tuple[str, float] | None:
    return None if target is None else (target.metric, target.value)
