"""Exhibits of training runs: rounds to a target, best scores, curves (FedSubAvg tables 2 and 3, figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedslice.papers import verdicts
from fedslice.papers.exhibits import Exhibit, Setup
from fedslice.papers.jobs import Order
from fedslice.papers.measured import Measured, Reading, by_seed, not_run, unless
from fedslice.papers.readings import readings
from fedslice.papers.verdicts import Hits, Verdict

Document = dict[str, Any]


def rows(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> list[Document]:
    """One row per line and reading."""
    return [_row(exhibit, reading) for reading in readings(name, exhibit, setups, order)]


def _row(exhibit: Exhibit, reading: Reading) -> Document:
    training, target = reading.setup.trained, reading.setup.goal
    curves = exhibit.kind == "curves"
    return {
        **reading.document(),
        "target": f"{training.metric}={target:g}",
        "cells": [_cell(cell, target, exhibit.method, reading, curves) for cell in reading.cells],
        "claims": [] if curves else _claims(reading, exhibit.method, training.rounds, target),
    }


def _cell(found: Measured, target: float, method: str | None, reading: Reading, curves: bool) -> Document:
    cell, judged = found.cell, {}
    why = reading.incomparable
    hits, best = ([], []) if found.missing else (found.hits(target), found.best)
    if not curves:
        judged = {"rounds": _judge_rounds(found, hits, method, why), "best": _judge_best(found, method, why)}
    return {
        **found.document(curves),
        "paper": {"rounds": cell.rounds, "best": cell.best},
        "rounds_to_target": by_seed(hits),
        "best": by_seed(best),
        "verdicts": {name: verdict.document() for name, verdict in judged.items() if verdict is not None},
    }


def _judge_rounds(found: Measured, hits: Hits, method: str | None, why: str | None) -> Verdict | None:
    cell = found.cell
    if cell.rounds is None:
        return None
    if found.missing or why:
        return not_run(found.missing, why)
    if cell.reached is not None:
        return verdicts.reached(cell.reached, hits, cell.recipe == method)
    return verdicts.not_reached(cell.bound or 0, hits)


def _judge_best(found: Measured, method: str | None, why: str | None) -> Verdict | None:
    if found.cell.best is None:
        return None
    if found.missing or why:
        return not_run(found.missing, why)
    return verdicts.scored(found.cell.best, found.best, found.cell.recipe == method)


def _claims(reading: Reading, method: str | None, rounds: int, target: float) -> list[Document]:
    """The orderings that the paper's numbers imply: its method's last cell against every other cell of the row."""
    own = [cell for cell in reading.cells if cell.cell.recipe == method]
    if not own:
        return []
    found = []
    for other in reading.cells:
        if other is not own[-1]:
            race = _race(own[-1], other, rounds, target, reading.scale)
            found += [race, _contest(own[-1], other, reading.scale)]
    return [claim for claim in found if claim is not None]


def _race(own: Measured, other: Measured, rounds: int, target: float, scale: str | None) -> Document | None:
    """Compare rounds to the target: the first method, and its factor."""
    ends = [cell.cell.reached or cell.cell.bound for cell in (own, other)]
    if ends[0] is None or ends[1] is None or (own.cell.reached is None and other.cell.reached is None):
        return None
    factor = ends[1] / ends[0]
    if max(factor, 1 / factor) <= verdicts.NEAR:
        words, first, second = "needs as many rounds as", own, other
        verdict = unless(first, second, scale) or verdicts.alike(own.hits(target), other.hits(target))
    else:
        first, second = (own, other) if factor > 1 else (other, own)
        words, factor = "needs fewer rounds than", max(factor, 1 / factor)
        hits = first.hits(target), second.hits(target)
        verdict = unless(first, second, scale) or verdicts.sooner(factor, *hits, rounds)
    return _claim(first, words, second, factor, verdict)


def _contest(own: Measured, other: Measured, scale: str | None) -> Document | None:
    """Compare best scores: the higher one, and the gap."""
    if own.cell.best is None or other.cell.best is None:
        return None
    gap = own.cell.best - other.cell.best
    if abs(gap) <= verdicts.NEAR_SCORE:
        words, first, second = "scores as high as", own, other
        verdict = unless(first, second, scale) or verdicts.level(own.best, other.best)
    else:
        first, second = (own, other) if gap > 0 else (other, own)
        words, gap = "scores higher than", abs(gap)
        verdict = unless(first, second, scale) or verdicts.higher(gap, first.best, second.best)
    return _claim(first, words, second, gap, verdict)


def _claim(first: Measured, words: str, second: Measured, paper: float, verdict: Verdict) -> Document:
    name = f"{first.cell.name} {words} {second.cell.name}"
    measured = {"measured": verdict.measured, "at_least": verdict.at_least}
    return {"claim": name, "paper": paper, **measured, **verdict.document()}
