"""The command line: run, compare, inspect, list."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedslice import console, recipes, tasks
from fedslice.compare import Target, table
from fedslice.config import Plan, Request, assignments, read_file, request, resolve, split_options
from fedslice.errors import UserError
from fedslice.measure.heat import describe
from fedslice.runs.execute import default_directory, execute

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__import__("fedslice").__doc__)
UsageError = typer.BadParameter.__base__  # what the option parser raises for any misuse
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
Resume = Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")]
CheckpointSeconds = Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")]

_errors = Console(stderr=True, soft_wrap=True, highlight=False)
_out = Console(highlight=False)


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
    resume: Resume = False,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    as_json: Json = False,
) -> None:
    """Train one task with one recipe."""
    said = _said(task, set_, recipe=recipe, rounds=rounds, cohort=cohort, seed=seed, data=data, out=out)
    said |= _given(eval_every=eval_every, engine=engine, chunk=chunk, device=device)
    asked = request(said)
    plan = resolve(asked)
    place = Path(asked.out) if asked.out else default_directory(plan)
    document = _follow(plan, place, resume, checkpoint_seconds)
    _show(document, as_json, console.run_table(document))
    _errors.print(f"run directory: {place}")


@app.command()
def compare(
    task: TaskName,
    recipe_names: Annotated[str, typer.Option("--recipes", help="Methods, separated by commas.")] = "fedavg,fedsubavg",
    target: Annotated[str | None, typer.Option(help="metric=value to reach, for example test_auc=0.6.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, … or from --seed on.")] = 1,
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
    resume: Resume = False,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    as_json: Json = False,
) -> None:
    """Train one task with several recipes and seeds, and show when each reaches a target."""
    said = _said(task, set_, rounds=rounds, cohort=cohort, seed=seed, data=data, out=out)
    said |= _given(eval_every=eval_every, engine=engine, chunk=chunk, device=device)
    names = [name.strip() for name in recipe_names.split(",") if name.strip()]
    if not names:
        raise UserError("--recipes names no recipe; give for example fedavg,fedsubavg.")
    requests = _requests(said, names, seeds)
    plans = [resolve(asked) for asked in requests]
    aim = Target.parse(target, plans[0].task) if target else None
    documents = []
    for asked, plan in zip(requests, plans, strict=True):
        place = Path(asked.out) / f"{plan.recipe_name}-seed{plan.seed}" if asked.out else default_directory(plan)
        documents.append(_follow(plan, place, resume, checkpoint_seconds))
    document = {"task": plans[0].task.name, "runs": documents, "table": table(documents, aim)}
    _show(document, as_json, console.compare_table(document))


@app.command()
def inspect(task: TaskName, data: Data = None, set_: Settings = None, as_json: Json = False) -> None:
    """Show a task's clients, samples, feature heat and slice sizes."""
    asked = request(_said(task, set_, data=data))
    options, _ = split_options(asked)
    document = describe(tasks.get(asked.task).build(options, Path(asked.data) if asked.data else None))
    _show(document, as_json, *console.inspect_tables(document))


@app.command(name="list")
def list_(as_json: Json = False) -> None:
    """Show the recipes with their parts, and the tasks with the data they need."""
    document = {
        "recipes": [
            {"recipe": name, **{place: part.label for place, part in recipe.parts().items()}}
            for name, recipe in recipes.RECIPES.items()
        ],
        "tasks": [
            {"task": name, "about": entry.about, "needs": entry.needs, "options": list(entry.options.model_fields)}
            for name, entry in tasks.TASKS.items()
        ],
    }
    _show(document, as_json, *console.list_tables(document))


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _said(task: str, settings: list[str] | None, **options: Any) -> dict[str, Any]:
    """The fields of a request: an experiment file's, overlaid by the options."""
    base: dict[str, Any] = read_file(Path(task)) if task.endswith(".toml") else {"task": task}
    own = assignments(settings or [])
    return base | _given(**options) | {"set": base.get("set", {}) | own}


def _requests(said: dict[str, Any], names: list[str], seeds: int) -> list[Request]:
    """One request per recipe and seed; a setting need only fit the recipes that have it."""
    first = said.get("seed", 0)
    settings = said["set"]
    wanted = {name: _fitting(said, name) for name in names}
    for key in settings:
        if not any(key in chosen for chosen in wanted.values()):
            request_with_all = request({**said, "recipe": names[0]})
            split_options(request_with_all)  # says what is wrong with it
    return [
        request({**said, "recipe": name, "seed": first + number, "set": wanted[name]})
        for name in names
        for number in range(seeds)
    ]


def _fitting(said: dict[str, Any], name: str) -> dict[str, Any]:
    fitting: dict[str, Any] = {}
    for key, value in said["set"].items():
        try:
            split_options(request({**said, "cohort": None, "recipe": name, "set": {**fitting, key: value}}))
        except UserError:
            continue
        fitting[key] = value
    return fitting


def _follow(plan: Plan, place: Path, resume: bool, checkpoint_seconds: float) -> dict[str, Any]:
    title = f"{plan.recipe_name} seed {plan.seed}"
    with console.Follow(_errors, title, plan.rounds) as progress:
        return execute(
            plan,
            place,
            resume=resume,
            checkpoint_seconds=checkpoint_seconds,
            on_row=progress.row,
            on_round=progress.round,
        )


def _show(document: dict[str, Any], as_json: bool, *tables: Any) -> None:
    if as_json:
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
        return
    for part in tables:
        _out.print(part)


def expand(words: list[str]) -> list[str]:
    """Let one ``--set`` take several assignments: ``--set a=1 b=2`` is ``--set a=1 --set b=2``."""
    out: list[str] = []
    setting = False
    for word in words:
        if setting and _ASSIGNMENT.match(word):
            if out[-1] != "--set":
                out.append("--set")
        else:
            setting = word == "--set"
        out.append(word)
    return out


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        sys.exit(app(args=expand(sys.argv[1:]), standalone_mode=False) or 0)
    except UserError as error:
        _errors.print(f"fedslice: {error}", markup=False)
    except UsageError as error:  # type: ignore[misc]
        _errors.print(f"fedslice: {error.format_message()}", markup=False)
    except (KeyboardInterrupt, typer.Abort):
        _errors.print("fedslice: interrupted; the same command with --resume continues.")
        sys.exit(130)
    sys.exit(2)
