"""Exhibits of accuracy: at the end, over simulated time, and by class (FedDD, figures 4 to 21)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any

from fedslice.data.ways import RARE
from fedslice.measure.classes import COLUMN
from fedslice.papers import verdicts
from fedslice.papers.claims import judged
from fedslice.papers.exhibits import Exhibit, Kind, Setup, Span
from fedslice.papers.jobs import Order
from fedslice.papers.measured import Measured, Reading, by_seed, not_run
from fedslice.papers.readings import readings
from fedslice.papers.verdicts import Hits

Document = dict[str, Any]
BASELINE = "fedavg"
"""By whose time to an accuracy FedDD divides that of the others (T2A, section 6.2)."""
_PREFIX = COLUMN.format("")


def rows(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> list[Document]:
    """One row per line and reading."""
    return [
        reading.document() | _MAKERS[exhibit.kind](reading, exhibit.method)
        for reading in readings(name, exhibit, setups, order)
    ]


def _accuracy(reading: Reading, method: str | None) -> Document:
    """The last and the best score, and what they cost."""
    cells = []
    for found in reading.cells:
        there = found.missing is None
        paper, last = found.cell.final, found.score(1.0) if there else []
        verdict = None if paper is None else against((paper,), last, found, reading, method)
        cells.append(
            {
                **found.document(curves=True),
                "paper": {"final": paper},
                "final": by_seed(last),
                "best": by_seed(found.best if there else []),
                "up_bytes": by_seed(found.last("up_bytes") if there else []),
                "clock": by_seed(found.last("clock") if there else []),
                "verdicts": {} if verdict is None else {"final": verdict},
            }
        )
    return {"cells": cells, "claims": judged(reading, method)}


def _time(reading: Reading, method: str | None) -> Document:
    """The simulated time to each target, and as a share of the baseline's."""
    clocks = {found.cell.name: [_clock(found, target) for target in reading.line.targets] for found in reading.cells}
    cells = []
    for found in reading.cells:
        own = clocks[found.cell.name]
        base = clocks.get(BASELINE, [[None] * len(times) for times in own])
        targets = [
            {"target": target, "clock": by_seed(times), "t2a": by_seed(_shares(times, whole))}
            for target, times, whole in zip(reading.line.targets, own, base, strict=True)
        ]
        cells.append({**found.document(curves=False), "targets": targets})
    return {"targets": list(reading.line.targets), "cells": cells, "claims": judged(reading, method)}


def _clock(found: Measured, target: float) -> Hits:
    return [None] * len(found.jobs) if found.missing else found.hits(target, "clock")


def _shares(times: Hits, whole: Hits) -> Hits:
    """By seed, where both came to the target."""
    return [None if a is None or not b else a / b for a, b in zip(times, whole, strict=True)]


def _classes(reading: Reading, method: str | None) -> Document:
    """The last accuracy of every class; claims compare the mean over the rare ones."""
    cells = []
    for found in reading.cells:
        last_row = {} if found.missing else found.outcomes[0].metrics[-1]
        names = [name for name in last_row if name.startswith(_PREFIX)]
        classes = []
        for name in names:
            label, last = name.removeprefix(_PREFIX), found.last(name)
            span = found.cell.classes.get(label)
            verdict = None if span is None else against(span, last, found, reading, method)
            paper = None if span is None else list(span)
            classes.append({"class": label, "paper": paper, **by_seed(last), "verdict": verdict})
        final = by_seed([] if found.missing else found.score(1.0))
        cells.append({**found.document(curves=False), "final": final, "classes": classes})
    return {"rare": list(RARE), "cells": cells, "claims": judged(reading, method, _rare)}


def _rare(found: Measured, share: float) -> list[float]:  # noqa: ARG001
    """The mean accuracy over the rare classes at the end, by seed."""
    return [mean(values) for values in zip(*(found.last(COLUMN.format(label)) for label in RARE), strict=True)]


def against(span: Span, last: list[float], found: Measured, reading: Reading, method: str | None) -> Document:
    """A number of the paper, or a range, beside what was measured."""
    if found.missing or reading.incomparable:
        return not_run(found.missing, reading.incomparable).document()
    return verdicts.scored(span[0], last, found.cell.recipe == method, span[-1]).document()


_MAKERS: dict[Kind, Callable[[Reading, str | None], Document]] = {
    "accuracy": _accuracy,
    "time": _time,
    "classes": _classes,
}
