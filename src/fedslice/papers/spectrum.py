"""Exhibits of how few directions a trajectory needs, and of its loss (FLSS, figures 2 and 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedslice.papers.claims import judged
from fedslice.papers.exhibits import Exhibit, Setup
from fedslice.papers.figures import against
from fedslice.papers.jobs import Order
from fedslice.papers.measured import Measured, Reading, by_seed, not_run
from fedslice.papers.readings import readings

Document = dict[str, Any]
COLUMN = "trajectory_share_"
"""Followed by k: the share of the energy of all updates so far in their first k directions."""
FEW = 5
"""The "first few" directions of which FLSS speaks (appendix B.3), by which trajectories are compared."""


def rows(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> list[Document]:
    """One row per line and reading."""
    return [_row(reading) for reading in readings(name, exhibit, setups, order)]


def _row(reading: Reading) -> Document:
    """No method's own share may be better than printed: more is not better."""
    cells = [_cell(found, reading) for found in reading.cells]
    return {**reading.document(), "few": FEW, "cells": cells, "claims": judged(reading, None, _few)}


def _few(found: Measured, share: float) -> list[float]:  # noqa: ARG001
    """The share of the first few directions at the end, by seed."""
    return found.last(f"{COLUMN}{FEW}")


def _cell(found: Measured, reading: Reading) -> Document:
    last_row = {} if found.missing else found.outcomes[0].metrics[-1]
    counts = [int(name.removeprefix(COLUMN)) for name in last_row if name.startswith(COLUMN)]
    shares = []
    for count in sorted({*counts, *map(int, found.cell.shares)}):
        last = found.last(f"{COLUMN}{count}") if count in counts else []
        paper = found.cell.shares.get(str(count))
        verdict = None
        if paper is not None and (last or found.missing):
            verdict = against((paper,), last, found, reading, None)
        elif paper is not None:
            verdict = not_run(None, f"its log has no {COLUMN}{count}").document()
        shares.append({"directions": count, "paper": paper, **by_seed(last), "verdict": verdict})
    return {**found.document(curves=True), "shares": shares}
