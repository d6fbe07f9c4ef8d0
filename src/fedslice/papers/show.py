"""An exhibit for people: tables on the console, and the same tables as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.text import Text

from fedslice.console import Shown
from fedslice.papers import compression_sheets, figure_sheets
from fedslice.papers.sheets import (
    POINTS,
    curves,
    heading,
    measured,
    not_run,
    one_error,
    score,
    sweeps,
    verdict,
)
from fedslice.schema import find, value
from fedslice.sheets import Sheet, terminal
from fedslice.sheets import markdown as markdown_lines

Document = dict[str, Any]


def tables(document: Document) -> Shown:
    """For the console."""
    parts: Shown = [Text(_headline(document))]
    for sheet in _sheets(document):
        parts += [Text(sheet.caption), terminal(sheet)]
    return [*parts, *map(Text, _notes(document))]


def markdown(document: Document) -> str:
    """For a page of results."""
    lines = [f"# {_headline(document)}", ""]
    for sheet in _sheets(document):
        lines += [*markdown_lines(sheet), ""]
    return "\n".join([*lines, *(f"* {note}" for note in _notes(document))]).rstrip() + "\n"


def _headline(document: Document) -> str:
    scale = f", scaled to {document['scale']:g}" if document["scale"] != 1 else ""
    return f"{document['exhibit']}: {document['title']}{scale}"


def _notes(document: Document) -> list[str]:
    """The exhibit's own, and each of its rows' once, with the rows that it is for unless it is for all."""
    rows: dict[str, list[str]] = {}
    for row in document["rows"]:
        if row["note"]:
            rows.setdefault(row["note"], []).append(f"{row['row']}, {row['reading']}")
    every = len(document["rows"])
    own = [note if 1 < len(who) == every else f"{'; '.join(who)}: {note}" for note, who in rows.items()]
    return list(dict.fromkeys([*document["notes"], *own]))


def _sheets(document: Document) -> Iterator[Sheet]:
    for row in document["rows"]:
        yield from _KINDS[document["kind"]](row)
        yield from sweeps(row)


def _rounds(row: Document) -> Iterator[Sheet]:
    """The cells' own numbers, then what the paper claims about their order."""
    if (error := one_error(row)) is not None:
        yield not_run(row, error)
        return
    cells = row["cells"]
    title = f"{heading(row)}: rounds to {row['target']}, at most {row['rounds']:,}"
    yield Sheet.of_words(title, ["recipe", "paper", "by seed", "mean", "verdict"], [_hits(cell) for cell in cells])
    if any(cell["paper"]["best"] is not None for cell in cells):
        title = f"{heading(row)}: best {find(row['metric']).words} in {row['rounds']:,} rounds"
        yield Sheet.of_words(title, ["recipe", "paper", "by seed", "mean", "verdict"], [_best(cell) for cell in cells])
    if row["claims"]:
        rows = [[c["claim"], f"{c['paper']:.3g}", measured(c), verdict(c)] for c in row["claims"]]
        yield Sheet.of_words(f"{heading(row)}: orderings", ["claim", "paper", "measured", "verdict"], rows)


def _hits(cell: Document) -> list[str]:
    found = cell["rounds_to_target"]
    seeds = ", ".join("not reached" if hit is None else f"{hit:,}" for hit in found["by_seed"])
    paper = cell["paper"]["rounds"]
    words = paper if isinstance(paper, str) else value("round", paper)
    return [cell["cell"], words, seeds or "-", value("round", found["mean"]), verdict(cell["verdicts"].get("rounds"))]


def _best(cell: Document) -> list[str]:
    found = cell["best"]
    numbers = [score(number) for number in (cell["paper"]["best"], *found["by_seed"], found["mean"])]
    return [
        cell["cell"],
        numbers[0],
        ", ".join(numbers[1:-1]) or "-",
        numbers[-1],
        verdict(cell["verdicts"].get("best")),
    ]


def _statistics(row: Document) -> Iterator[Sheet]:
    if row["error"] is not None:
        yield not_run(row, row["error"])
        return
    rows = [[found["value"].replace("_", " "), *_numbers(found), verdict(found)] for found in row["values"]]
    yield Sheet.of_words(heading(row), ["", "paper", "measured", "verdict"], rows)


def _numbers(found: Document) -> list[str]:
    pair = (found["paper"], found["measured"])
    if found["value"] == "sparsity":
        return ["-" if number is None else f"{number:.2%}" for number in pair]
    return [value("count", number) for number in pair]


def _histogram(row: Document) -> Iterator[Sheet]:
    if row["error"] is not None:
        yield not_run(row, row["error"])
    for table in row.get("histogram", []):
        title = f"{heading(row)}: rows of {', '.join(table['tables'])} by heat"
        rows = [[_range(one["from"], one["to"]), f"{one['rows']:,}"] for one in table["bins"]]
        yield Sheet.of_words(title, ["clients", "rows"], rows, prose=False)


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _trajectory(row: Document) -> Iterator[Sheet]:
    cells = row["cells"]
    rows = [[cell["cell"], f"{cell['max_error']:.1e}", verdict(cell)] for cell in cells]
    yield Sheet.of_words(
        f"{heading(row)}: largest distance to the closed form", ["recipe", "distance", "verdict"], rows
    )
    paths = cells[0]["trajectory"]
    shown = [*range(0, len(paths) - 1, max(1, -(-len(paths) // POINTS))), len(paths) - 1]
    for name in ("w1", "w2"):
        rows = [[cell["cell"], *(f"{cell['trajectory'][at][name]:.4f}" for at in shown)] for cell in cells]
        yield Sheet.of_words(f"{heading(row)}: {name} by round", ["recipe", *map(str, shown)], rows, prose=False)


_KINDS: dict[str, Callable[[Document], Iterator[Sheet]]] = {
    "rounds": _rounds,
    "curves": curves,
    "accuracy": figure_sheets.accuracy,
    "time": figure_sheets.time,
    "classes": figure_sheets.classes,
    "compression": compression_sheets.compression,
    "words": compression_sheets.words,
    "spectrum": compression_sheets.spectrum,
    "statistics": _statistics,
    "histogram": _histogram,
    "trajectory": _trajectory,
}
