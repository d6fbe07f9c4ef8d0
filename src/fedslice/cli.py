"""The command line: run, compare, inspect, reproduce, list."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedslice import __doc__ as about
from fedslice import console, recipes, tasks
from fedslice import reproduce as exhibits
from fedslice.compare import Target, requests, table
from fedslice.config import Plan, assignments, build_task, read_file, request, resolve
from fedslice.errors import UserError
from fedslice.measure.conditioning import conditioning
from fedslice.measure.heat import describe
from fedslice.recipe import PARTS
from fedslice.runs.execute import default_directory, execute

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=about)
UsageError = typer.BadParameter.__base__  # what the option parser raises for any misuse
INTERRUPTED = 130
_ASSIGNMENT = re.compile(r"[\w.]+=")

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="A task's name, or a TOML experiment file.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
CohortSize = Annotated[int | None, typer.Option("--cohort", help="Clients per round.")]
Data = Annotated[str | None, typer.Option(help="Folder or file with the data in its official layout.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Settings of task and recipe, key=value ….")]
EvalEvery = Annotated[int | None, typer.Option(help="Rounds between evaluations.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="auto, vectorized or sequential.")]
Chunk = Annotated[int | None, typer.Option(help="Clients trained at once; by default as many as fit the caches.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Measure = Annotated[list[str] | None, typer.Option(help="What else to log at evaluations: gradient-norms.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")]
CheckpointSeconds = Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")]

_errors = Console(stderr=True, highlight=False, markup=False, emoji=False)


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
    resume: Resume = False,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    as_json: Json = False,
) -> None:
    """Train one task with one recipe."""
    said = _said(task, set_, recipe=recipe, rounds=rounds, cohort=cohort, seed=seed, data=data, out=out)
    said |= _given(eval_every=eval_every, engine=engine, chunk=chunk, device=device, measure=measure)
    asked = request(said)
    plan = resolve(asked)
    place = Path(asked.out) if asked.out else default_directory(plan)
    document = _follow(plan, place, resume, checkpoint_seconds)
    _show(document, as_json, console.run_tables)
    _say(f"run directory: {place}")


@app.command()
def compare(
    task: TaskName,
    recipe_names: Annotated[str, typer.Option("--recipes", help="Methods, separated by commas.")] = "fedavg,fedsubavg",
    target: Annotated[str | None, typer.Option(help="metric=value to reach, for example test_auc=0.6.")] = None,
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
    resume: Resume = False,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    as_json: Json = False,
) -> None:
    """Train one task with several recipes and seeds, and show when each reaches a target."""
    said = _said(task, set_, rounds=rounds, cohort=cohort, seed=seed, data=data, out=out)
    said |= _given(eval_every=eval_every, engine=engine, chunk=chunk, device=device, measure=measure)
    names = [name.strip() for name in recipe_names.split(",") if name.strip()]
    if not names:
        raise UserError("--recipes names no recipe; give for example fedavg,fedsubavg.")
    asked = requests(said, names, seeds)
    plans = [resolve(one) for one in asked]
    aim = Target.parse(target, plans[0].task) if target is not None else None
    for plan in plans[::seeds]:
        plan.experiment()  # what cannot run is refused before the first run begins
    places = [
        Path(one.out) / f"{plan.recipe_name}-seed{plan.seed}" if one.out else default_directory(plan)
        for one, plan in zip(asked, plans, strict=True)
    ]
    runs = [_follow(plan, place, resume, checkpoint_seconds) for plan, place in zip(plans, places, strict=True)]
    document = {"task": plans[0].task.name, "runs": runs, "table": table(runs, aim)}
    _show(document, as_json, console.compare_tables)
    _say(f"run directories: {places[0].parent}")


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
    asked = request(_said(task, set_, data=data, seed=seed))
    built = build_task(asked)
    document = describe(built)
    if conditioned:
        document["conditioning"] = conditioning(built, built.initial(asked.seed), ridge=ridge)
    elif ridge:
        raise UserError(f"--ridge {ridge} belongs to --conditioning; add it, or leave the ridge out.")
    _show(document, as_json, console.inspect_tables)


@app.command()
def reproduce(
    exhibit: Annotated[str, typer.Argument(metavar="EXHIBIT", help=f"One of {', '.join(exhibits.names())}.")],
    data: Annotated[str | None, typer.Option(help="Folder with the data sets in their official layouts.")] = None,
    out: Annotated[str, typer.Option(help="Directory for the runs; exhibits share it.")] = "reproduced",
    seeds: Annotated[int, typer.Option(help="Number of seeds: 0, 1, …")] = 3,
    scale: Annotated[float, typer.Option(help="Share of the rounds to run, for a quick look.")] = 1.0,
    jobs: Annotated[int | None, typer.Option(help="Runs at once; by default one per core.")] = None,
    only: Annotated[str | None, typer.Option(help="A task, or one setup of it by name.")] = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The tables as Markdown.")] = False,
) -> None:
    """Make a table or figure of a paper anew, and show its numbers beside those measured."""
    place = Path(data) if data is not None else None
    document = exhibits.reproduce(
        exhibit, data=place, out=Path(out), seeds=seeds, scale=scale, jobs=jobs, only=only, console=_errors
    )
    if as_markdown and not as_json:
        sys.stdout.write(exhibits.markdown(document))
    else:
        _show(document, as_json, exhibits.tables)


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
    _show(document, as_json, console.list_tables)


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _said(task: str, settings: list[str] | None, **options: Any) -> dict[str, Any]:
    """The fields of a request: an experiment file's, overlaid by the options."""
    base: dict[str, Any] = read_file(Path(task)) if task.endswith(".toml") else {"task": task}
    own = assignments(settings or [])
    return base | _given(**options) | {"set": base.get("set", {}) | own}


def _follow(plan: Plan, place: Path, resume: bool, checkpoint_seconds: float) -> dict[str, Any]:
    title = f"{plan.recipe_name} seed {plan.seed}"
    with console.Follow(_errors, title, plan.rounds) as progress:
        return execute(
            plan,
            place,
            resume=resume,
            checkpoint_seconds=checkpoint_seconds,
            on_engine=progress.engine,
            on_row=progress.row,
            on_round=progress.round,
        )


def _show(document: dict[str, Any], as_json: bool, tables: Callable[[dict[str, Any]], console.Shown]) -> None:
    if as_json:
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        console.show(tables(document))


def _say(sentence: str) -> None:
    sys.stderr.write(" ".join(sentence.splitlines()) + "\n")


def expand(words: list[str]) -> list[str]:
    """Let one ``--set`` take several assignments: ``--set a=1 b=2`` is ``--set a=1 --set b=2``."""
    out: list[str] = []
    setting = False
    for word in words:
        if setting and _ASSIGNMENT.match(word):
            if out[-1] != "--set":
                out.append("--set")
        else:
            setting = word == "--set" or word.startswith("--set=")
        out.append(word)
    return out


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    code = 2
    try:
        code = app(args=expand(sys.argv[1:]) or ["--help"], standalone_mode=False) or 0
        sys.stdout.flush()
    except UserError as error:
        _say(f"fedslice: {error}")
    except UsageError as error:  # type: ignore[misc]
        _say(f"fedslice: {error.format_message()}")
    except (MemoryError, OverflowError) as error:
        _say(f"fedslice: that is too large for this machine ({error or 'no memory is left'}); ask for smaller sizes.")
    except BrokenPipeError:  # whoever read the output has gone, and with it the reason to write
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        _say(f"fedslice: {error.filename or 'writing'}: {error.strerror}.")
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:
        how = "" if sys.argv[1:2] == ["reproduce"] else " with --resume"
        _say(f"fedslice: interrupted; the same command{how} goes on from there.")
    sys.exit(code)
