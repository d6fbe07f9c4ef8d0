"""An exhibit for people: tables on the console, and the same tables as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedslice.console import value

Document = dict[str, Any]
_POINTS = 10  # rounds at which a curve is shown


@dataclass(frozen=True)
class Sheet:
    """A titled table of words; the last column of one with ``prose`` may be wrapped."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    prose: bool = True


def tables(document: Document) -> list[Text | Table]:
    """For the console."""
    parts: list[Text | Table] = [Text(_headline(document))]
    for sheet in _sheets(document):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        last = len(sheet.columns) - 1
        for place, name in enumerate(sheet.columns):
            words = sheet.prose and place == last
            table.add_column(name, justify="left" if words or place == 0 else "right", no_wrap=not words)
        for row in sheet.rows:
            table.add_row(*map(Text, row))
        parts += [Text(sheet.title), table]
    return [*parts, *map(Text, _notes(document))]


def markdown(document: Document) -> str:
    """For a page of results."""
    lines = [f"# {_headline(document)}", ""]
    for sheet in _sheets(document):
        lines += [f"**{sheet.title}**", "", _line(sheet.columns), "|" + "---|" * len(sheet.columns)]
        lines += [*map(_line, sheet.rows), ""]
    return "\n".join([*lines, *(f"* {note}" for note in _notes(document))]).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _headline(document: Document) -> str:
    scale = f", scaled to {document['scale']:g}" if document["scale"] != 1 else ""
    return f"{document['exhibit']}: {document['title']}{scale}"


def _notes(document: Document) -> list[str]:
    own = [f"{row['row']}, {row['reading']}: {row['note']}" for row in document["rows"] if row["note"]]
    return list(dict.fromkeys([*document["notes"], *own]))


def _sheets(document: Document) -> Iterator[Sheet]:
    for row in document["rows"]:
        yield from _KINDS[document["kind"]](row)


def _title(row: Document) -> str:
    kind = f", a stand-in: {row['standin']}" if row["standin"] else ""
    source = f" ({row['source']})" if row["source"] else ""
    return f"{row['row']}, {row['reading']}{kind}{source}"


def _rounds(row: Document) -> Iterator[Sheet]:
    """The cells' own numbers, then what the paper claims about their order."""
    cells = row["cells"]
    errors = {run["error"] for cell in cells for run in cell["runs"]}
    if len(errors) == 1 and None not in errors:  # one reason for all of them is said once
        yield _not_run(row, errors.pop())
        return
    title = f"{_title(row)}: rounds to {row['target']}, at most {row['rounds']:,}"
    yield Sheet(title, ["recipe", "paper", "by seed", "mean", "verdict"], [_hits(cell) for cell in cells])
    if any(cell["paper"]["best"] is not None for cell in cells):
        title = f"{_title(row)}: best {row['metric'].replace('_', ' ')} in {row['rounds']:,} rounds"
        yield Sheet(title, ["recipe", "paper", "by seed", "mean", "verdict"], [_best(cell) for cell in cells])
    if row["claims"]:
        rows = [[c["claim"], f"{c['paper']:.3g}", _measured(c), _verdict(c)] for c in row["claims"]]
        yield Sheet(f"{_title(row)}: orderings", ["claim", "paper", "measured", "verdict"], rows)


def _hits(cell: Document) -> list[str]:
    found = cell["rounds_to_target"]
    seeds = ", ".join("not reached" if hit is None else f"{hit:,}" for hit in found["by_seed"])
    paper = cell["paper"]["rounds"]
    words = paper if isinstance(paper, str) else value("round", paper)
    return [cell["cell"], words, seeds or "-", value("round", found["mean"]), _verdict(cell["verdicts"].get("rounds"))]


def _best(cell: Document) -> list[str]:
    found = cell["best"]
    numbers = [_score(number) for number in (cell["paper"]["best"], *found["by_seed"], found["mean"])]
    return [
        cell["cell"],
        numbers[0],
        ", ".join(numbers[1:-1]) or "-",
        numbers[-1],
        _verdict(cell["verdicts"].get("best")),
    ]


def _curves(row: Document) -> Iterator[Sheet]:
    """Means over seeds at a few rounds."""
    curves = {cell["cell"]: _mean_curve(cell["runs"]) for cell in row["cells"]}
    rounds = sorted({at for curve in curves.values() for at in curve})
    step = max(1, -(-len(rounds) // _POINTS))
    shown = [*rounds[:-1:step], *rounds[-1:]]
    rows = [[name, *(_score(curve.get(at)) for at in shown)] for name, curve in curves.items()]
    title = f"{_title(row)}: {row['metric'].replace('_', ' ')} by round"
    yield Sheet(title, ["recipe", *map(str, shown)], rows, prose=False)
    for cell in row["cells"]:
        if (error := next((run["error"] for run in cell["runs"] if run["error"]), None)) is not None:
            yield Sheet(f"{_title(row)}: not run", ["recipe", "why"], [[cell["cell"], error]])


def _mean_curve(runs: Sequence[Document]) -> dict[int, float]:
    """By round; a round that some seed lacks has no mean."""
    curves = [dict(run["curve"]) for run in runs]
    return {
        at: mean(curve[at] for curve in curves)
        for at in curves[0]
        if all(curve.get(at) is not None for curve in curves)
    }


def _statistics(row: Document) -> Iterator[Sheet]:
    if row["error"] is not None:
        yield _not_run(row, row["error"])
        return
    rows = [[found["value"].replace("_", " "), *_numbers(found), _verdict(found)] for found in row["values"]]
    yield Sheet(_title(row), ["", "paper", "measured", "verdict"], rows)


def _numbers(found: Document) -> list[str]:
    pair = (found["paper"], found["measured"])
    if found["value"] == "sparsity":
        return ["-" if number is None else f"{number:.2%}" for number in pair]
    return [value("count", number) for number in pair]


def _histogram(row: Document) -> Iterator[Sheet]:
    if row["error"] is not None:
        yield _not_run(row, row["error"])
    for table in row.get("histogram", []):
        title = f"{_title(row)}: rows of {', '.join(table['tables'])} by heat"
        rows = [[_range(one["from"], one["to"]), f"{one['rows']:,}"] for one in table["bins"]]
        yield Sheet(title, ["clients", "rows"], rows, prose=False)


def _not_run(row: Document, error: str) -> Sheet:
    return Sheet(_title(row), ["", "why"], [["not run", error]])


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _trajectory(row: Document) -> Iterator[Sheet]:
    cells = row["cells"]
    rows = [[cell["cell"], f"{cell['max_error']:.1e}", _verdict(cell)] for cell in cells]
    yield Sheet(f"{_title(row)}: largest distance to the closed form", ["recipe", "distance", "verdict"], rows)
    paths = cells[0]["trajectory"]
    shown = [*range(0, len(paths) - 1, max(1, -(-len(paths) // _POINTS))), len(paths) - 1]
    for name in ("w1", "w2"):
        rows = [[cell["cell"], *(f"{cell['trajectory'][at][name]:.4f}" for at in shown)] for cell in cells]
        yield Sheet(f"{_title(row)}: {name} by round", ["recipe", *map(str, shown)], rows, prose=False)


def _score(number: float | None) -> str:
    return value("test_score", None if number is None else float(number))


def _measured(claim: Document) -> str:
    if claim["measured"] is None:
        return "-"
    return f"{'at least ' if claim['at_least'] else ''}{claim['measured']:.3g}"


def _verdict(found: Document | None) -> str:
    if found is None:
        return "-"
    return f"{found['verdict']}: {found['why']}" if found["why"] else str(found["verdict"])


_KINDS: dict[str, Callable[[Document], Iterator[Sheet]]] = {
    "rounds": _rounds,
    "curves": _curves,
    "statistics": _statistics,
    "histogram": _histogram,
    "trajectory": _trajectory,
}
