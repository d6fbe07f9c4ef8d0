"""Shared by the commands: the application, common options, and output.

Modules of this package import nothing that loads torch before a command runs: ``--help``, the shell's completion and
Ctrl-C while torch is loading depend on it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import fedslice
from fedslice import console, index
from fedslice.core.errors import UserError


class Command(TyperCommand):
    """A command that refuses words it has no place for, with a hint at ``--set`` where that is what they may miss."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command's name."""
        ctx.allow_extra_args = True  # they are refused here instead
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            hint = f"see {ctx.command_path} --help."
            if any("--set" in parameter.opts for parameter in self.params):
                example = extra[0] if "=" in extra[0] else f"{extra[0]}=VALUE"
                hint = f"if it is a setting, write it as --set {example}."
            raise UserError(f"unexpected extra argument {extra[0]!r}; {hint}")
        return extra


# Plain help: it fits narrow terminals and needs no more than ASCII.
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, help=fedslice.__doc__)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"fedslice {fedslice.__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that stand before a command."""


def _choices(section: str, about: str) -> Callable[[str], list[tuple[str, str]]]:
    """The shell's completion by one section of the index; ``about`` is the field some shells show beside a name."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        rows = zip(index.names(section), index.read()[section], strict=True)
        return [(name, row[about]) for name, row in rows if name.startswith(incomplete)]

    return complete


def complete_recipes(incomplete: str) -> list[str]:
    """Completion of the last of several names that are separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    left = (name for name in index.names("recipes") if name not in before.split(","))
    return [f"{before}{comma}{name}" for name in left if name.startswith(last)]


complete_recipe = _choices("recipes", "about")
complete_instrument = _choices("instruments", "instrument")
complete_exhibit = _choices("exhibits", "title")

TaskName = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A task's name (see fedslice list), your own as MODULE:NAME or FILE.py:NAME, or a TOML experiment file.",
        autocompletion=_choices("tasks", "about"),
    ),
]
Data = Annotated[str | None, typer.Option(metavar="PATH", help="Folder or file with the data in its official layout.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE …", help="Settings of task and recipe; see fedslice list."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
TargetText = Annotated[
    str | None,
    typer.Option(metavar="METRIC=VALUE", help="Value to reach, for example test_auc=0.6 or 'test_auc >= 0.6'."),
]
Report = Annotated[
    str | None, typer.Option("--report", metavar="FILE", help="Write the runs' report to this HTML file.")
]

errors = console.Stream(stderr=True)


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def said(task: str, settings: list[str] | None, **options: Any) -> dict[str, Any]:
    """The settings of a run that options and an experiment file give."""
    return said_settings(task, settings, given(**options))


def said_settings(task: str, settings: list[str] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run: an experiment file's, overlaid by the options."""
    from fedslice.config import assignments, read_file

    base: dict[str, Any] = read_file(Path(task)) if task.endswith(".toml") else {"task": task}
    own = assignments(settings or [])
    return base | dict(options) | {"set": base.get("set", {}) | own}


@contextmanager
def blaming(task: str, settings: list[str] | None) -> Iterator[None]:
    """Name the experiment file in what is told about a setting that it gives, and that no option gives."""
    from fedslice.config import assignments

    try:
        yield
    except UserError as error:
        own = {key.rpartition(".")[2] for key in assignments(settings or [])}
        if task.endswith(".toml") and error.settings and not error.settings & own:
            raise UserError(f"{task}: {error}") from None
        raise


def recipes_in(text: str) -> list[str]:
    """The methods that --recipes names, each of them once."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError("--recipes names no recipe; give for example fedavg,fedsubavg.")
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--recipes names {name!r} {names.count(name)} times; name each recipe once.")
    return names


def writable(option: str, name: str | None, *, folder: bool = False, made: Iterable[Path] = ()) -> None:
    """Refuse, before the work begins, a place for an answer that cannot be written.

    A file (a page, a table, a picture), or a folder of files, goes into a folder that exists: a mistyped path is told,
    not made. Only run directories and event files, which training fills, are made with all folders above them;
    ``made`` names those of this command, so that a report may stand beside its runs.
    """
    if name is None:
        return
    place = Path(name)
    if folder and place.exists() and not place.is_dir():
        raise UserError(f"{option} {name} is a file, expected a folder; name another.")
    if not folder and place.is_dir():
        raise UserError(f"{option} {name} is a directory, expected the name of a file to write; add one.")
    above = place.absolute().parent
    if not above.is_dir() and not any(run.absolute().is_relative_to(above) for run in made):
        raise UserError(f"{option} {name}: the folder {place.parent} does not exist; make it first, or name another.")


def show(document: Callable[[], dict[str, Any]], as_json: bool, tables: Callable[[], console.Shown]) -> None:
    """The answer: for a program, or for a person."""
    if as_json:
        write(json.dumps(document(), allow_nan=False) + "\n")
    else:
        console.show(tables())


def write(text: str) -> None:
    """Text on standard output, as long as somebody reads it."""
    with console.while_read(sys.stdout):
        sys.stdout.write(text)
        sys.stdout.flush()


def say(sentence: str) -> None:
    """One line beside the answer."""
    with console.while_read(sys.stderr):
        sys.stderr.write(" ".join(sentence.splitlines()) + "\n")
