"""Exhibits of accuracy beside the words that it costs (FLSS, tables 1 to 8 and figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedslice.papers import verdicts
from fedslice.papers.claims import judged
from fedslice.papers.exhibits import Exhibit, Setup
from fedslice.papers.figures import BASELINE, against
from fedslice.papers.jobs import Order
from fedslice.papers.measured import Measured, Reading, by_seed, not_run
from fedslice.papers.printed import printed
from fedslice.papers.readings import readings

Document = dict[str, Any]


def rows(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> list[Document]:
    """One row per line and reading."""
    return [_row(reading, exhibit) for reading in readings(name, exhibit, setups, order)]


def _row(reading: Reading, exhibit: Exhibit) -> Document:
    base = next((cell for cell in reading.cells if cell.cell.name == BASELINE and cell.missing is None), None)
    return {
        **reading.document(),
        "sampling": 0 if reading.line.whole else reading.sampling or 0,
        "cells": [_cell(cell, base, reading, exhibit) for cell in reading.cells],
        "claims": judged(reading, exhibit.method, _best),
    }


def _best(found: Measured, share: float) -> list[float]:  # noqa: ARG001
    """The best score over all rounds, which is what the library prints whose settings FLSS has."""
    return found.best


def _cell(found: Measured, base: Measured | None, reading: Reading, exhibit: Exhibit) -> Document:
    cell, there = found.cell, found.missing is None
    after = 0 if reading.line.whole else found.jobs[0].request.set.get("warmup", reading.sampling or 0)
    words = [words_since(one.metrics, after, _cohort(found)) for one in found.outcomes] if there else []
    seconds = _seconds(found) if there else []
    whole = _seconds(base) if base is not None else [None] * len(seconds)
    judgements: Document = {}
    if cell.best is not None:
        judgements["best"] = against((cell.best,), found.best if there else [], found, reading, exhibit.method)
    if cell.words is not None:
        judgements["words"] = _judge_words(cell.words, words, found, reading)
    return {
        **found.document(curves=True),
        "paper": {"best": cell.best, "words": cell.words, "seconds_to_baseline": _printed_ratio(found, base)},
        "best": by_seed(found.best if there else []),
        "final": by_seed(found.score(1.0) if there else []),
        "words": by_seed(words),
        "seconds": by_seed(seconds),
        "seconds_to_baseline": by_seed([b and a / b for a, b in zip(seconds, whole, strict=True)] if there else []),
        "verdicts": judgements,
    }


def words_since(metrics: Sequence[Mapping[str, Any]], after: int, cohort: int) -> float | None:
    """32-bit words that a client of every cohort has sent after so many rounds; ``None`` if none were counted then."""
    before = next((_words(row) for row in metrics if row["round"] == after), None)
    return None if before is None else (_words(metrics[-1]) - before) / cohort


def _words(row: Mapping[str, Any]) -> float:
    """FLSS's unit where a codec compresses; what is sent as it is has four bytes a word."""
    return float(row.get("up_words", row["up_bytes"] / 4))


def _cohort(found: Measured) -> int:
    return int(found.jobs[0].request.set["cohort"])


def _seconds(found: Measured) -> list[float]:
    """Seconds of a round without evaluations, by seed."""
    return [one.metrics[-1]["seconds"] / one.metrics[-1]["round"] for one in found.outcomes]


def _printed_ratio(found: Measured, base: Measured | None) -> float | None:
    """Ratio of the paper's seconds, which another machine took."""
    if found.cell.seconds is None or base is None or base.cell.seconds is None:
        return None
    return found.cell.seconds / base.cell.seconds


def _judge_words(paper: str, words: Sequence[float | None], found: Measured, reading: Reading) -> Document:
    if found.missing or reading.incomparable or words[0] is None:
        return not_run(found.missing, reading.incomparable or "not evaluated at the end of the sampling").document()
    return verdicts.sent(printed(paper), words[0]).document()
