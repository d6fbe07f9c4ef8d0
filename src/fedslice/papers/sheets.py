"""Building blocks of an exhibit's tables: sheets of words, numbers and verdicts as words, curves at a few rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Any

from fedslice.schema import find, value
from fedslice.sheets import Sheet

Document = dict[str, Any]
Sheets = Callable[[Document], "Iterator[Sheet]"]
POINTS = 10  # rounds at which a curve is shown


def heading(row: Document) -> str:
    """Return the heading of a row: its name and its data."""
    kind = f", a stand-in: {row['standin']}" if row["standin"] else ""
    source = f" ({row['source']})" if row["source"] else ""
    return f"{short_heading(row)}{kind}{source}"


def short_heading(row: Document) -> str:
    """Return the heading of a row whose data are named beside it."""
    return f"{row['row']}, {row['reading']}"


def curves(row: Document) -> Iterator[Sheet]:
    """Means over seeds at a few rounds, on data that are named; then what did not run."""
    yield curve_sheet(row, heading(row))
    yield from failures(row)


def curve_sheet(row: Document, name: str) -> Sheet:
    """Means over seeds at a few rounds."""
    means = {cell["cell"]: _mean_curve(cell["runs"]) for cell in row["cells"]}
    rounds = sorted({at for curve in means.values() for at in curve})
    step = max(1, -(-len(rounds) // POINTS))
    shown = [*rounds[:-1:step], *rounds[-1:]]
    rows = [[name, *(score(curve.get(at)) for at in shown)] for name, curve in means.items()]
    title = f"{name}: {find(row['metric']).words} by round"
    return Sheet.of_words(title, ["recipe", *map(str, shown)], rows, prose=False)


def _mean_curve(runs: Sequence[Document]) -> dict[int, float]:
    """By round; a round that some seed lacks has no mean."""
    curves = [dict(run["curve"]) for run in runs]
    return {
        at: mean(curve[at] for curve in curves)
        for at in curves[0]
        if all(curve.get(at) is not None for curve in curves)
    }


def not_run(row: Document, error: str) -> Sheet:
    """A row of which there is nothing to show."""
    return Sheet.of_words(heading(row), ["", "why"], [["not run", error]])


def score(number: float | None) -> str:
    """A score as a person reads it."""
    return value("test_score", None if number is None else float(number))


def measured(claim: Document, form: str = ".3g") -> str:
    """Return the values measured for a claim."""
    if claim["measured"] is None:
        return "-"
    return f"{'at least ' if claim['at_least'] else ''}{claim['measured']:{form}}"


def verdict(found: Document | None) -> str:
    """A verdict, and why it is not a better one."""
    if found is None:
        return "-"
    return f"{found['verdict']}: {found['why']}" if found["why"] else str(found["verdict"])


def failures(row: Document) -> Iterator[Sheet]:
    """Cells with a run that could not be made, and why."""
    errors = {cell["cell"]: [run["error"] for run in cell["runs"] if run["error"]] for cell in row["cells"]}
    rows = [[name, found[0]] for name, found in errors.items() if found]
    if rows:
        yield Sheet.of_words(f"{short_heading(row)}: not run", ["recipe", "why"], rows)


def one_error(row: Document) -> str | None:
    """Why none of a row's runs could be made, if all have one reason: it is then said once."""
    errors = {run["error"] for cell in row["cells"] for run in cell["runs"]}
    return errors.pop() if len(errors) == 1 else None


def unless_nothing_ran(show: Sheets) -> Sheets:
    """Say once why nothing ran, or else show the row and then what did not run."""

    def shown(row: Document) -> Iterator[Sheet]:
        if (error := one_error(row)) is not None:
            yield not_run(row, error)
            return
        yield from show(row)
        yield from failures(row)

    return shown


def claim_sheet(row: Document, form: str, about: str = "") -> Iterator[Sheet]:
    """Return the table of a paper's claims beside the measured values."""
    if row["claims"]:
        rows = [[c["claim"], span(c, form), measured(c, form), verdict(c)] for c in row["claims"]]
        columns = ["claim", "paper", "measured", "verdict"]
        yield Sheet.of_words(f"{short_heading(row)}: what the paper says{about}", columns, rows)


def span(found: Document, form: str) -> str:
    """A number, a range, or that it only says so."""
    return "-" if found["paper"] is None else " to ".join(f"{number:{form}}" for number in found["paper"])


def sweeps(row: Document) -> Iterator[Sheet]:
    """Every try of the sweeps that chose settings, if there were any."""
    rows = [_try(cell["cell"], one) for cell in row.get("cells", []) for one in cell.get("sweep", [])]
    if rows:
        chosen_on = sorted({seed for cell in row["cells"] for one in cell["sweep"] for seed in one["seeds"]})
        title = f"{short_heading(row)}: all tries, on seeds {', '.join(map(str, chosen_on))}"
        yield Sheet.of_words(title, ["recipe", "settings", "rounds", f"best {row['metric']}", ""], rows)


def _try(cell: str, one: Document) -> list[str]:
    settings = ", ".join(f"{key}={value:g}" for key, value in one["settings"].items())
    hits = ", ".join("not reached" if hit is None else f"{hit:,}" for hit in one["rounds_to_target"]["by_seed"])
    return [cell, settings, hits, seeds(one["best"]), "chosen" if one["chosen"] else one["error"] or ""]


def seeds(found: Document) -> str:
    """The scores of all seeds."""
    values: Sequence[float | None] = found["by_seed"]
    return ", ".join(map(score, values)) or "-"
