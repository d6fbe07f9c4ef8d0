"""What the commands share: the application, options that several take, and how they answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedslice import __doc__ as about
from fedslice import console
from fedslice.config import assignments, read_file
from fedslice.errors import UserError


def _file(text: str | None) -> str | None:
    """A file that can be written to, known before the work begins."""
    if text is not None and Path(text).is_dir():
        raise UserError(f"{text} is a directory, expected the name of an HTML file; write for example report.html.")
    return text


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=about)

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="A task's name, or a TOML experiment file.")]
Data = Annotated[str | None, typer.Option(help="Folder or file with the data in its official layout.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Settings of task and recipe, key=value ….")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
TargetText = Annotated[str | None, typer.Option(help="metric=value to reach, for example test_auc=0.6.")]
Report = Annotated[
    str | None, typer.Option("--report", callback=_file, help="Write the runs' report to this HTML file.")
]
Page = Annotated[str, typer.Option("--out", "-o", callback=_file, help="The HTML file to write.")]

errors = Console(stderr=True, highlight=False, markup=False, emoji=False)


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def said(task: str, settings: list[str] | None, **options: Any) -> dict[str, Any]:
    """The fields of a request: an experiment file's, overlaid by the options."""
    base: dict[str, Any] = read_file(Path(task)) if task.endswith(".toml") else {"task": task}
    own = assignments(settings or [])
    return base | given(**options) | {"set": base.get("set", {}) | own}


@contextmanager
def blaming(task: str, settings: list[str] | None) -> Iterator[None]:
    """Name the experiment file in what is told about a setting that it gives, and that no option gives."""
    try:
        yield
    except UserError as error:
        own = {key.rpartition(".")[2] for key in assignments(settings or [])}
        if task.endswith(".toml") and error.settings and not error.settings & own:
            raise UserError(f"{task}: {error}") from None
        raise


def recipes_in(text: str) -> list[str]:
    """The methods that --recipes names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError("--recipes names no recipe; give for example fedavg,fedsubavg.")
    return names


def show(document: dict[str, Any], as_json: bool, tables: Callable[[dict[str, Any]], console.Shown]) -> None:
    """The answer: for a program, or for a person."""
    if as_json:
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        console.show(tables(document))


def say(sentence: str) -> None:
    """One line beside the answer."""
    sys.stderr.write(" ".join(sentence.splitlines()) + "\n")
