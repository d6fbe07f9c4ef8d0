"""Looking: at what there is, at a task, and at runs while they go on and when they are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedslice import console, index, registry
from fedslice.commands.app import (
    Data,
    Json,
    Settings,
    TargetText,
    TaskName,
    blaming,
    complete_recipe,
    said,
    say,
    show,
    writable,
)
from fedslice.core.errors import UserError
from fedslice.loading import loading
from fedslice.schema import find as column_of

if TYPE_CHECKING:
    from fedslice.runs.run import Run
    from fedslice.runs.stopping import Target

Places = Annotated[list[str], typer.Argument(metavar="RUN_DIR", help="Run directories, or directories that hold some.")]


def inspect(
    task: TaskName,
    data: Data = None,
    set_: Settings = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Show instead what this recipe makes a client reveal, at enrolment and in each round.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    privacy: Annotated[
        bool,
        typer.Option(
            "--privacy", help="Show instead what the server learns with --recipe (or fedsubavg), and with more privacy."
        ),
    ] = False,
    devices: Annotated[
        str | None, typer.Option(metavar="NAME", help="Devices, for a --recipe that needs some; see fedslice run.")
    ] = None,
    conditioned: Annotated[
        bool,
        typer.Option(
            "--conditioning", help="Condition numbers at the initial model; hundreds of passes over the data."
        ),
    ] = False,
    ridge: Annotated[
        float, typer.Option(metavar="λ", help="λ of λ/2·‖x‖² in every client's loss, for --conditioning.")
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the initial model.", show_default="0")] = None,
    as_json: Json = False,
) -> None:
    """Show a task's clients, samples, feature heat and slice sizes.

    With --recipe it shows instead what a client of that recipe reveals: every field of every message. With --privacy it
    says in plain words what the server learns, and what it learns if heat or updates are kept from it.
    """
    if privacy:
        if conditioned or ridge:
            raise UserError("--conditioning looks at a task alone; leave --privacy out.")
        chosen = recipe or "fedsubavg"
        _inspect_privacy(said(task, set_, recipe=chosen, data=data, seed=seed, devices=devices), task, set_, as_json)
        return
    if recipe is not None:
        if conditioned or ridge:
            raise UserError("--conditioning looks at a task alone; leave --recipe out.")
        _inspect_recipe(said(task, set_, recipe=recipe, data=data, seed=seed, devices=devices), task, set_, as_json)
        return
    if devices is not None:
        raise UserError(f"--devices {devices} belongs to --recipe; add one, or leave the devices out.")
    with loading():
        from fedslice.config import build_task, request
        from fedslice.measure.conditioning import conditioning
        from fedslice.measure.heat import describe

    asked = request(said(task, set_, data=data, seed=seed))
    with blaming(task, set_):
        built = build_task(asked)
    document = describe(built)
    if conditioned:
        document["conditioning"] = conditioning(built, built.initial(asked.seed), ridge=ridge)
    elif ridge:
        raise UserError(f"--ridge {ridge} belongs to --conditioning; add it, or leave the ridge out.")
    show(lambda: document, as_json, lambda: console.inspect_tables(document))


def _inspect_recipe(fields: dict[str, Any], task: str, set_: list[str] | None, as_json: bool) -> None:
    with loading():
        from fedslice.config import request, resolve
        from fedslice.training.reveal import reveal

    asked = request(fields)
    with blaming(task, set_):
        plan = resolve(asked)
        rows = reveal(plan.experiment())
    document = {"task": plan.task.name, "recipe": plan.recipe_name, "rows": [row.document() for row in rows]}
    show(lambda: document, as_json, lambda: console.reveal_tables(document))


def _inspect_privacy(fields: dict[str, Any], task: str, set_: list[str] | None, as_json: bool) -> None:
    with loading():
        from fedslice.config import request, resolve
        from fedslice.training.learned import learned

    asked = request(fields)
    with blaming(task, set_):
        plan = resolve(asked)
        begun = learned(plan.recipe, lambda changed: replace(plan, recipe=changed).experiment())
        choices = [choice.document() for choice in begun]
    document = {"task": plan.task.name, "recipe": plan.recipe_name, "choices": choices}
    show(lambda: document, as_json, lambda: console.privacy_tables(document))


def report(
    run_dirs: Places,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")] = "report.html",
    target: TargetText = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Method whose simulated time to the target counts as one; needs --target."),
    ] = None,
    figures: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder for the same charts as files of their own.")
    ] = None,
    kind: Annotated[Literal["svg", "png", "pdf"], typer.Option("--format", help="What --figures writes.")] = "svg",
) -> None:
    """Write one page that shows runs: curves, tables, settings. It needs nothing but a browser."""
    writable("--out", out)
    writable("--figures", figures, folder=True)
    with loading():
        from fedslice.runs.reading import find, read
        from fedslice.runs.stopping import Target

    runs = [read(place) for place in find(map(Path, run_dirs))]
    shown = [column_of(name, run.columns) for run in runs for row in run.rows[-1:] for name in row]
    metrics = {one.name: one for one in shown if one.measured}
    aim = Target.parse(target, metrics) if target is not None else None
    if baseline is not None and aim is None:
        raise UserError(f"--baseline {baseline} needs --target; add for example --target test_auc=0.6.")
    _write(runs, Path(out), aim, baseline)
    if figures is not None:
        with loading():
            from fedslice.report.figures import save

        made = save(runs, Path(figures), kind=kind, target=aim)
        say(f"figures: {len(made)} in {figures}")


def watch(
    run_dirs: Places,
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What to draw, for example test_auc.", show_default="a score of the run"),
    ] = None,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between looks.")] = 1.0,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write what the runs have logged as TensorBoard event files.")
    ] = None,
) -> None:
    """Follow runs in the terminal until the last one ends."""
    with loading():
        from fedslice.runs.events import export
        from fedslice.runs.reading import find, read
        from fedslice.watch import watch as follow

    places = [Path(place) for place in run_dirs]
    follow(places, console.Stream(), metric=metric, every=every)
    if tensorboard is not None:
        export([read(place) for place in find(places)], Path(tensorboard))
        say(f"event files: {tensorboard}")


def list_(
    what: Annotated[
        Literal["recipes", "parts", "tasks", "exhibits"] | None,
        typer.Argument(metavar="WHAT", help="One kind alone, and not all four."),
    ] = None,
    combinations: Annotated[
        bool, typer.Option("--combinations", help="Which parts go together, and why others do not, instead of lists.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show recipes, parts, tasks and exhibits, with their settings."""
    if combinations:
        _list_combinations(as_json)
        return
    found = index.read()
    kinds = ("recipes", "parts", "tasks", "exhibits") if what is None else (what,)
    document = {
        kind: [row | ({"settings": list(row["defaults"])} if "defaults" in row else {}) for row in found[kind]]
        for kind in kinds
    }
    if "parts" in document and registry.has_entry_points():
        document["parts"] += _outside()
    show(lambda: document, as_json, lambda: console.list_tables(document))


def _outside() -> list[dict[str, Any]]:
    """The parts that installed packages bring, with where they come from."""
    with loading():
        parts = registry.outside()
    for problem in registry.load_entry_points().values():
        say(f"fedslice: {problem}")
    rows = [index.part_row(kind.place, kind.label, kind) for kind in parts]
    return [
        row | {"settings": list(row["defaults"]), "from": registry.origin(kind)}
        for row, kind in zip(rows, parts, strict=True)
    ]


def _list_combinations(as_json: bool) -> None:
    with loading():
        from fedslice.combinations import clashes  # it looks at the parts themselves
        from fedslice.recipe import PARTS

    parts = {place: list(kinds) for place, kinds in PARTS.items()}
    document = {"parts": parts, "refused": [clash._asdict() for clash in clashes()]}
    show(lambda: document, as_json, lambda: console.combination_tables(document))


def write_report(places: Sequence[Path], out: str | None, target: Target | None, baseline: str | None = None) -> None:
    """The report of a command that trained, if one was asked for."""
    if out is not None:
        from fedslice.runs.reading import read

        _write([read(place) for place in places], Path(out), target, baseline)


def _write(runs: Sequence[Run], out: Path, target: Target | None, baseline: str | None) -> None:
    with loading():
        from fedslice.report.page import write  # charts take a while to load, and most commands draw none

    write(runs, out, target=target, baseline=baseline)
    say(f"report: {out}")
