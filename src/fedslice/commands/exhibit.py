"""The papers' exhibits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedslice import reproduce as exhibits
from fedslice.commands.app import Json, Report, app, errors, recipes_in, say, show
from fedslice.commands.look import write_report


@app.command()
def reproduce(
    exhibit: Annotated[str, typer.Argument(metavar="EXHIBIT", help=f"One of {', '.join(exhibits.names())}.")],
    data: Annotated[str | None, typer.Option(help="Folder with the data sets in their official layouts.")] = None,
    out: Annotated[str, typer.Option(help="Directory for the runs; exhibits share it.")] = "reproduced",
    seeds: Annotated[int, typer.Option(help="Number of seeds: 0, 1, …")] = 3,
    scale: Annotated[float, typer.Option(help="Share of the rounds to run, for a quick look.")] = 1.0,
    jobs: Annotated[int | None, typer.Option(help="Runs at once; by default one per core.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="A task, or one setup of it by name; may be repeated.")] = None,
    recipe_names: Annotated[
        str | None, typer.Option("--recipes", help="Methods, separated by commas; all others are left out.")
    ] = None,
    as_json: Json = False,
    report: Report = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The tables as Markdown.")] = False,
) -> None:
    """Make a table or figure of a paper anew, and show its numbers beside those measured."""
    place = Path(data) if data is not None else None
    document = exhibits.reproduce(
        exhibit,
        data=place,
        out=Path(out),
        seeds=seeds,
        scale=scale,
        jobs=jobs,
        console=errors,
        only=only or (),
        recipes=() if recipe_names is None else recipes_in(recipe_names),
    )
    if as_markdown and not as_json:
        sys.stdout.write(exhibits.markdown(document))
    else:
        show(document, as_json, exhibits.tables)
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
