"""The papers' exhibits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedslice.commands.app import (
    Json,
    Report,
    complete_exhibit,
    complete_recipes,
    errors,
    recipes_in,
    say,
    show,
    writable,
    write,
)
from fedslice.commands.look import write_report
from fedslice.loading import loading


def reproduce(
    exhibit: Annotated[
        str,
        typer.Argument(
            metavar="EXHIBIT",
            help="A table or figure of a paper, for example fedsubavg/table2; see fedslice list exhibits.",
            autocompletion=complete_exhibit,
        ),
    ],
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder with the data sets in their official layouts.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Directory for the runs; exhibits share it.")] = "reproduced",
    seeds: Annotated[int, typer.Option(metavar="N", help="Number of seeds: 0, 1, …")] = 3,
    scale: Annotated[float, typer.Option(metavar="SHARE", help="Share of the rounds to run, for a quick look.")] = 1.0,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Runs at once.", show_default="one per core")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A task, or one setup of it by name; may be repeated.", show_default="all"),
    ] = None,
    recipe_names: Annotated[
        str | None,
        typer.Option(
            "--recipes",
            metavar="NAME,…",
            help="Recipes, separated by commas; all others are left out.",
            show_default="all",
            autocompletion=complete_recipes,
        ),
    ] = None,
    as_json: Json = False,
    report: Report = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The tables as Markdown.")] = False,
) -> None:
    """Make a paper's table or figure again.

    Its numbers are shown beside those measured here, each pair with a verdict.
    """
    writable("--report", report, made=[Path(out) / "run"])
    wanted = () if recipe_names is None else recipes_in(recipe_names)
    with loading():
        from fedslice import papers as exhibits

    document = exhibits.reproduce(
        exhibit,
        data=Path(data) if data is not None else None,
        out=Path(out),
        seeds=seeds,
        scale=scale,
        jobs=jobs,
        console=errors,
        only=only or (),
        recipes=wanted,
    )
    if as_markdown and not as_json:
        write(exhibits.markdown(document))
    else:
        show(lambda: document, as_json, lambda: exhibits.tables(document))
    if report is not None:
        _report(document, report)
    if (problem := exhibits.failures(document)) is not None:
        say(f"fedslice: {problem}")
        raise typer.Exit(1)


def _report(document: dict[str, Any], out: str) -> None:
    runs = [run for row in document["rows"] for cell in row.get("cells", ()) for run in cell.get("runs", ())]
    places = dict.fromkeys(Path(run["directory"]) for run in runs if run["directory"] is not None)
    if places:
        write_report(list(places), out, None)
    else:
        say(f"no report: {document['exhibit']} has no runs to show.")
