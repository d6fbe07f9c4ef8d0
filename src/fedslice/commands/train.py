"""Training: one run, or a comparison of several."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedslice import console, index
from fedslice.commands.app import (
    Data,
    Json,
    Report,
    Settings,
    TargetText,
    TaskName,
    blaming,
    complete_instrument,
    complete_recipe,
    complete_recipes,
    errors,
    given,
    recipes_in,
    said,
    say,
    show,
    writable,
)
from fedslice.commands.look import write_report
from fedslice.core.errors import UserError, run_warnings
from fedslice.loading import loading

if TYPE_CHECKING:
    from fedslice.config import Plan

_OF_TASK = "the task's own"

Rounds = Annotated[int | None, typer.Option(metavar="N", help="Communication rounds.", show_default=_OF_TASK)]
CohortSize = Annotated[
    int | None, typer.Option("--cohort", metavar="N", help="Clients per round.", show_default=_OF_TASK)
]
EvalEvery = Annotated[int | None, typer.Option(metavar="N", help="Rounds between evaluations.", show_default=_OF_TASK)]
EngineName = Annotated[
    str | None,
    typer.Option("--engine", metavar="NAME", help="auto, vectorized or sequential.", show_default="auto"),
]
Chunk = Annotated[
    int | None,
    typer.Option(metavar="N", help="Clients trained at once.", show_default="as many as fit the caches"),
]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="cpu, cuda or mps.", show_default="cpu")]
Measure = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help=f"What else to log at evaluations: {', '.join(index.names('instruments'))}. May be repeated.",
        autocompletion=complete_instrument,
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")]
CheckpointSeconds = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Time between checkpoints.")]
DeviceList = Annotated[
    str | None,
    typer.Option(
        "--devices", metavar="NAME", help="Simulated devices, for a clock: feddd, or a CSV file with one per client."
    ),
]
Wire = Annotated[
    bool,
    typer.Option(
        "--wire", help="Turn every message into bytes and read it back, for checking: slower, with the same metrics."
    ),
]
EventFolder = Annotated[
    str | None, typer.Option("--tensorboard", metavar="DIR", help="Write TensorBoard event files below this folder.")
]


def run(
    task: TaskName,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A method by name; see fedslice list recipes.",
            show_default="fedavg",
            autocompletion=complete_recipe,
        ),
    ] = None,
    rounds: Rounds = None,
    cohort: CohortSize = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of model, cohorts and batches.", show_default="0")
    ] = None,
    data: Data = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Run directory.", show_default="a directory of its own below runs"),
    ] = None,
    set_: Settings = None,
    eval_every: EvalEvery = None,
    engine: EngineName = None,
    chunk: Chunk = None,
    device: Device = None,
    measure: Measure = None,
    devices: DeviceList = None,
    wire: Wire = False,
    resume: Resume = False,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    tensorboard: EventFolder = None,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Train one task with one recipe."""
    with loading():
        from fedslice.config import request, resolve
        from fedslice.runs.execute import default_directory

    fields = said(task, set_, recipe=recipe, rounds=rounds, cohort=cohort, seed=seed, data=data, out=out)
    fields |= given(eval_every=eval_every, engine=engine, chunk=chunk, device=device, measure=measure, devices=devices)
    fields |= {"wire": True} if wire else {}
    asked = request(fields)
    with blaming(task, set_):
        plan = resolve(asked)
    for note in plan.notes:
        say(note)
    place = Path(asked.out) if asked.out else default_directory(plan)
    writable("--report", report, made=[place])
    (document,) = _train([plan], [place], resume, checkpoint_seconds, tensorboard)
    show(document, as_json, console.run_tables)
    say(f"run directory: {place}")
    write_report([place], report, None)


def compare(
    task: TaskName,
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
    rounds: Rounds = None,
    cohort: CohortSize = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="First seed.", show_default="0")] = None,
    data: Data = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Directory for all runs.", show_default="runs"),
    ] = None,
    set_: Settings = None,
    eval_every: EvalEvery = None,
    engine: EngineName = None,
    chunk: Chunk = None,
    device: Device = None,
    measure: Measure = None,
    devices: DeviceList = None,
    resume: Resume = False,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    tensorboard: EventFolder = None,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Train one task with several recipes and seeds.

    The tables show when each recipe reaches a target, and what it has at the end.
    """
    with loading():
        from fedslice.compare import Target, requests, table
        from fedslice.config import resolve
        from fedslice.measure.instruments import score_columns
        from fedslice.runs.directory import RunDirectory
        from fedslice.runs.execute import default_directory

    fields = said(task, set_, rounds=rounds, cohort=cohort, seed=seed, data=data, out=out)
    fields |= given(eval_every=eval_every, engine=engine, chunk=chunk, device=device, measure=measure, devices=devices)
    names = recipes_in(recipe_names)
    with blaming(task, set_):
        asked = requests(fields, names, seeds)
    if baseline is not None and (baseline not in names or asked[0].devices is None or target is None):
        raise UserError(f"--baseline {baseline} needs --devices, --target and a recipe among {', '.join(names)}.")
    with blaming(task, set_):
        plans = [resolve(one) for one in asked]
    scores = score_columns(plans[0].task, plans[0].measure)
    aim = Target.parse(target, scores, scores) if target is not None else None
    places = [
        Path(one.out) / f"{plan.recipe_name}-seed{plan.seed}" if one.out else default_directory(plan)
        for one, plan in zip(asked, plans, strict=True)
    ]
    for plan, place in list(zip(plans, places, strict=True))[::seeds]:
        run_directory = RunDirectory(place)
        try:
            if not run_directory.finished:
                plan.experiment(run_directory.scratch)  # what cannot run is refused before the first run begins
        except UserError as error:
            raise UserError(f"recipe {plan.recipe_name!r}: {error}") from None
    for note in dict.fromkeys(note for plan in plans for note in plan.notes):
        say(note)
    writable("--report", report, made=places)
    runs = _train(plans, places, resume, checkpoint_seconds, tensorboard)
    document = {"task": plans[0].task.name, "runs": runs, "table": table(runs, aim, baseline)}
    show(document, as_json, console.compare_tables)
    say(f"run directories: {places[0].parent}")
    write_report(places, report, aim, baseline)


def _train(
    plans: Sequence[Plan], places: Sequence[Path], resume: bool, checkpoint_seconds: float, events: str | None
) -> list[dict[str, Any]]:
    """The runs' documents; each run is told by its number if it is one of several."""
    documents = []
    for number, (plan, place) in enumerate(zip(plans, places, strict=True), 1):
        title = f"{plan.recipe_name} seed {plan.seed}"
        if len(plans) > 1:
            title = f"run {number} of {len(plans)}: {title}"
        documents.append(_follow(plan, place, title, resume, checkpoint_seconds, events))
    return documents


def _follow(
    plan: Plan, place: Path, title: str, resume: bool, checkpoint_seconds: float, events: str | None
) -> dict[str, Any]:
    from fedslice.runs.directory import RunDirectory
    from fedslice.runs.events import Events
    from fedslice.runs.execute import execute

    with run_warnings(lambda sentence: say(f"fedslice: {sentence}")), ExitStack() as stack:
        progress = stack.enter_context(console.Follow(errors, title, plan.rounds))
        board = None
        if events is not None:
            board = stack.enter_context(closing(Events(Path(events) / place.name, plan.config)))

        def on_row(row: dict[str, Any]) -> None:
            progress.row(row)
            if board is not None:
                board.row(row)

        finished = RunDirectory(place).finished
        document = execute(
            plan,
            place,
            resume=resume,
            checkpoint_seconds=checkpoint_seconds,
            on_engine=progress.engine,
            on_row=on_row,
            on_round=progress.round,
        )
        if finished and board is not None:  # nothing was trained, so no row was told
            for row in document["metrics"]:
                board.row(row)
        return document
