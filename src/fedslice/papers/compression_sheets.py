"""Tables of exhibits of accuracy beside its words, of words alone, and of spectra."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedslice.papers.sheets import (
    claim_sheet,
    curve_sheet,
    heading,
    score,
    seeds,
    short_heading,
    unless_nothing_ran,
    verdict,
)
from fedslice.schema import find, value
from fedslice.sheets import Sheet

Document = dict[str, Any]


@unless_nothing_ran
def compression(row: Document) -> Iterator[Sheet]:
    """The best scores, what they cost, the way there, and what the paper says of them."""
    cells = row["cells"]
    title = f"{heading(row)}: best {find(row['metric']).words} in {row['rounds']:,} rounds"
    yield Sheet.of_words(
        title, ["recipe", "paper", "by seed", "mean", "last", "verdict"], [_scores(cell) for cell in cells]
    )
    since = f" after round {row['sampling']:,}" if row["sampling"] else ""
    title = f"{short_heading(row)}: 32-bit words that a client sends{since}, and seconds of a round on this machine"
    columns = ["recipe", "paper", "words", "s", "of fedavg's", "in the paper", "verdict on words"]
    yield Sheet.of_words(title, columns, [_costs(cell) for cell in cells])
    yield curve_sheet(row, short_heading(row))
    yield from claim_sheet(row, ".4f")


def _scores(cell: Document) -> list[str]:
    best = cell["best"]
    means = [score(found["mean"]) for found in (best, cell["final"])]
    return [cell["cell"], score(cell["paper"]["best"]), seeds(best), *means, verdict(cell["verdicts"].get("best"))]


def _costs(cell: Document) -> list[str]:
    ratios = cell["seconds_to_baseline"]["mean"], cell["paper"]["seconds_to_baseline"]
    times = [value("seconds", cell["seconds"]["mean"]), *("-" if one is None else f"{one:.2f}" for one in ratios)]
    words = [cell["paper"]["words"] or "-", _millions(cell["words"]["mean"])]
    return [cell["cell"], *words, *times, verdict(cell["verdicts"].get("words"))]


def words(row: Document) -> Iterator[Sheet]:
    """Return the words that the ledger counts, and those of the packed bytes, in FLSS's unit."""
    since = f" after round {row['after']:,} of {row['rounds']:,}" if row["after"] else f" in {row['rounds']:,} rounds"
    columns = ["recipe", "parameters", "paper", "words", "packed", "verdict"]
    rows = [
        [
            cell["cell"],
            value("count", cell["parameters"]),
            cell["paper"]["words"] or "-",
            _millions(cell["words"]),
            _millions(cell["packed"]),
            verdict(cell["verdict"]),
        ]
        for cell in row["cells"]
    ]
    yield Sheet.of_words(f"{short_heading(row)}: 32-bit words that a client sends{since}", columns, rows)


@unless_nothing_ran
def spectrum(row: Document) -> Iterator[Sheet]:
    """The energy of the first directions, the paper's numbers beside it, and the way there."""
    cells = row["cells"]
    counts = sorted({one["directions"] for cell in cells for one in cell["shares"]})
    if counts:
        title = f"{heading(row)}: share of the energy of {row['rounds']:,} rounds in the first directions, mean"
        shown = [[cell["cell"], *_shares(cell, counts)] for cell in cells]
        yield Sheet.of_words(title, ["recipe", *map(str, counts)], shown, prose=False)
    given = [
        [
            cell["cell"],
            str(one["directions"]),
            score(one["paper"]),
            seeds(one),
            score(one["mean"]),
            verdict(one["verdict"]),
        ]
        for cell in cells
        for one in cell["shares"]
        if one["paper"] is not None
    ]
    if given:
        columns = ["recipe", "directions", "paper", "by seed", "mean", "verdict"]
        yield Sheet.of_words(f"{short_heading(row)}: the share that the paper gives", columns, given)
    yield curve_sheet(row, short_heading(row))
    yield from claim_sheet(row, ".3f", f" of the share of the first {row['few']} directions" if counts else "")


def _shares(cell: Document, counts: list[int]) -> list[str]:
    means = {one["directions"]: one["mean"] for one in cell["shares"]}
    return [score(means.get(count)) for count in counts]


def _millions(number: float | None) -> str:
    return "-" if number is None else f"{number / 1e6:.4f} M"
