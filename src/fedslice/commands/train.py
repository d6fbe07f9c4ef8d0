"""Training: one run, or a comparison of several."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer

from fedslice import console
from fedslice.commands.app import (
    Data,
    Json,
    Report,
    Settings,
    TargetText,
    TaskName,
    app,
    errors,
    given,
    recipes_in,
    said,
    say,
    show,
)
from fedslice.commands.look import write_report
from fedslice.compare import Target, metric_names, requests, table
from fedslice.config import Plan, request, resolve
from fedslice.errors import UserError
from fedslice.measure.instruments import INSTRUMENTS
from fedslice.runs.directory import RunDirectory
from fedslice.runs.events import Events
from fedslice.runs.execute import default_directory, execute

Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
CohortSize = Annotated[int | None, typer.Option("--cohort", help="Clients per round.")]
EvalEvery = Annotated[int | None, typer.Option(help="Rounds between evaluations.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="auto, vectorized or sequential.")]
Chunk = Annotated[int | None, typer.Option(help="Clients trained at once; by default as many as fit the caches.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps.")]
Measure = Annotated[list[str] | None, typer.Option(help=f"What else to log at evaluations: {', '.join(INSTRUMENTS)}.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")]
CheckpointSeconds = Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")]
DeviceList = Annotated[
    str | None, typer.Option("--devices", help="Simulated devices, for a clock: feddd, or a CSV with one per client.")
]
EventFolder = Annotated[
    str | None, typer.Option("--tensorboard", metavar="DIR", help="Write TensorBoard event files below this folder.")
]


@app.command()
def run(
    task: TaskName,
    recipe: Annotated[str | None, typer.Option(help="A method by name; see fedslice list.")] = None,
    rounds: Rounds = None,
    cohort: CohortSize = None,
    seed: Annotated[int | None, typer.Option(help="Seed of model, cohorts and batches.")] = None,
    data: Data = None,
    out: Annotated[str | None, typer.Option(help="Run directory.")] = None,
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
    """Train one task with one recipe."""
    fields = said(task, set_, recipe=recipe, rounds=rounds, cohort=cohort, seed=seed, data=data, out=out)
    fields |= given(eval_every=eval_every, engine=engine, chunk=chunk, device=device, measure=measure, devices=devices)
    asked = request(fields)
    plan = resolve(asked)
    place = Path(asked.out) if asked.out else default_directory(plan)
    document = _follow(plan, place, resume, checkpoint_seconds, tensorboard)
    show(document, as_json, console.run_tables)
    say(f"run directory: {place}")
    write_report([place], report, None)


@app.command()
def compare(
    task: TaskName,
    recipe_names: Annotated[str, typer.Option("--recipes", help="Methods, separated by commas.")] = "fedavg,fedsubavg",
    target: TargetText = None,
    baseline: Annotated[
        str | None, typer.Option(help="Recipe whose simulated time to the target counts as one; needs --devices.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds: 0, 1, … or from --seed on.")] = 1,
    rounds: Rounds = None,
    cohort: CohortSize = None,
    seed: Annotated[int | None, typer.Option(help="First seed.")] = None,
    data: Data = None,
    out: Annotated[str | None, typer.Option(help="Directory for all runs.")] = None,
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
    """Train one task with several recipes and seeds, and show when each reaches a target."""
    fields = said(task, set_, rounds=rounds, cohort=cohort, seed=seed, data=data, out=out)
    fields |= given(eval_every=eval_every, engine=engine, chunk=chunk, device=device, measure=measure, devices=devices)
    names = recipes_in(recipe_names)
    asked = requests(fields, names, seeds)
    if baseline is not None and (baseline not in names or asked[0].devices is None or target is None):
        raise UserError(f"--baseline {baseline} needs --devices, --target and a recipe among {', '.join(names)}.")
    plans = [resolve(one) for one in asked]
    aim = Target.parse(target, metric_names(plans[0].task, plans[0].measure)) if target is not None else None
    places = [
        Path(one.out) / f"{plan.recipe_name}-seed{plan.seed}" if one.out else default_directory(plan)
        for one, plan in zip(asked, plans, strict=True)
    ]
    for plan, place in list(zip(plans, places, strict=True))[::seeds]:
        if not RunDirectory(place).finished:
            plan.experiment(RunDirectory(place).scratch)  # what cannot run is refused before the first run begins
    runs = [
        _follow(plan, place, resume, checkpoint_seconds, tensorboard) for plan, place in zip(plans, places, strict=True)
    ]
    document = {"task": plans[0].task.name, "runs": runs, "table": table(runs, aim, baseline)}
    show(document, as_json, console.compare_tables)
    say(f"run directories: {places[0].parent}")
    write_report(places, report, aim)


def _follow(plan: Plan, place: Path, resume: bool, checkpoint_seconds: float, events: str | None) -> dict[str, Any]:
    title = f"{plan.recipe_name} seed {plan.seed}"
    with ExitStack() as stack:
        progress = stack.enter_context(console.Follow(errors, title, plan.rounds))
        hooks = [progress.row]
        if events is not None:
            hooks.append(stack.enter_context(closing(Events(Path(events) / place.name, plan.config))).row)

        def on_row(row: dict[str, Any]) -> None:
            for hook in hooks:
                hook(row)

        return execute(
            plan,
            place,
            resume=resume,
            checkpoint_seconds=checkpoint_seconds,
            on_engine=progress.engine,
            on_row=on_row,
            on_round=progress.round,
        )
