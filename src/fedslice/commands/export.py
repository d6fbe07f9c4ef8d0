"""Exporting models of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedslice.commands.app import Data, say, writable
from fedslice.core.errors import UserError, run_warnings
from fedslice.loading import loading

if TYPE_CHECKING:
    from torch import Tensor

    from fedslice.runs.run import Run
    from fedslice.task import Task


def export(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="The directory of a run.")],
    out: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="The file: .safetensors for weights, .pt2 for weights and program."),
    ] = None,
    client: Annotated[
        str | None, typer.Option(metavar="ID", help="A client's own model, and not the server's.")
    ] = None,
    personal: Annotated[
        str | None, typer.Option(metavar="DIR", help="Every client's own model, as DIR/ID.safetensors.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="The task, if it is your own: MODULE:NAME or FILE.py:NAME.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="NAME", help="The recipe, if it is your own: MODULE:NAME or FILE.py:NAME.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model, if it is your own in a built-in task.")
    ] = None,
    data: Data = None,
) -> None:
    """Write the model of a run to a file, for use without fedslice.

    Weights are a state dict of the task's own module. Programs and clients' own models need the task, which is built
    again.
    """
    if (out is None) == (personal is None):
        raise UserError("give a FILE for one model, or --personal DIR for those of all clients.")
    if client is not None and personal is not None:
        raise UserError(f"--client {client} is one model and --personal {personal} all; give one of them.")
    writable("FILE", out)
    writable("--personal", personal, folder=True)
    with loading():
        from fedslice.api import load
        from fedslice.runs.export import PROGRAM, check_name
        from fedslice.runs.personal import PersonalModels
        from fedslice.runs.rebuild import rebuilt_task

    if out is not None:
        check_name(Path(out))
    run = load(run_dir)
    built: Task | None = None
    models: Iterable[tuple[str, Mapping[str, Tensor]]]
    with run_warnings(lambda sentence: say(f"fedslice: {sentence}")):
        if client is not None or personal is not None:
            own = PersonalModels(run, task=task, recipe=recipe, model=model, data=data)
            built = own.task
            models = [("", own.model(client))] if client is not None else ((str(name), one) for name, one in own)
        else:
            models = [("", run.model)]
            if out is not None and Path(out).suffix == PROGRAM:
                built = rebuilt_task(run, task, model, data)
        _write(run, models, built, out, personal)


def _write(
    run: Run, models: Iterable[tuple[str, Mapping[str, Tensor]]], task: Any, out: str | None, personal: str | None
) -> None:
    from fedslice.runs.export import PROGRAM, WEIGHTS, program, weights

    if out is not None:
        ((_, state),) = models
        if Path(out).suffix == PROGRAM:
            program(Path(out), state, task)
        else:
            weights(Path(out), state, run)
        say(f"model: {out}")
        return
    folder = Path(str(personal))
    folder.mkdir(exist_ok=True)
    count = 0
    for name, state in models:
        weights(folder / f"{_file_name(name)}{WEIGHTS}", state, run)
        count += 1
    say(f"models: {count} in {folder}")


def _file_name(client: str) -> str:
    """A client's id as a file's name: letters that may not stand in one are written as %XX."""
    from urllib.parse import quote

    return quote(client, safe=" @+=,").replace(".", "%2E") if client.strip(".") == "" else quote(client, safe=" @+=,")
