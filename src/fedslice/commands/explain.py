"""A recipe with all its settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from fedslice import console
from fedslice.commands.app import Json, complete_recipe, show
from fedslice.loading import loading
from fedslice.settings import pairs, written


def explain(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe's name (see fedslice list), or the address of one's own, as in my_file.py:mine.",
            autocompletion=complete_recipe,
        ),
    ],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE …", help="Other parts and settings.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show every setting of a recipe: value, unit, meaning.

    Beside the value stand the default, where it is another one, and the value that the paper gives.
    """
    options = pairs(set_ or [], "--set")
    with loading():
        from fedslice import address, recipes
        from fedslice.explain import explain as explained
        from fedslice.recipe import Recipe

    found = address.make(recipe, Recipe) if address.is_address(recipe) else recipes.get(recipe)
    document = explained(found.with_options(options), recipe)
    show(lambda: document, as_json, lambda: _tables(document))


def _tables(found: dict[str, Any]) -> console.Shown:
    """One entry per part, followed by those of its settings."""
    rows: list[tuple[str, list[str]]] = []
    for part in found["parts"]:
        outside = "" if part["from"] == "fedslice" else f" (from {part['from']})"
        rows.append((f"{part['place']}={part['part']}", [f"{part['about']}{outside}"]))
        own = (row for row in found["settings"] if row["setting"].rpartition(".")[0] == part["place"])
        rows += [(f"  {row['setting']} = {_value(row)}", [row["about"] or ""]) for row in own]
    title = f"{found['recipe']}: {found['about']}" if found["about"] else str(found["recipe"])
    out: console.Shown = [Text(title), Text(found["python"])]
    if found["paper"]:
        out.append(Text(f"values of the paper: {found['paper']}"))
    return [*out, Text(), console.Entries(rows)]


def _value(row: dict[str, Any]) -> str:
    unit = f" {row['unit']}" if row["unit"] and row["value"] is not None else ""
    beside = [f"default {written(row['default'])}"] if row["value"] != row["default"] else []
    beside += [f"paper {written(row['paper'])}"] if row["paper"] is not None else []
    return f"{written(row['value'])}{unit}" + (f" ({'; '.join(beside)})" if beside else "")
