"""Claims of a paper about a figure, compared with the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fedslice.papers import verdicts
from fedslice.papers.exhibits import Claim
from fedslice.papers.measured import Measured, Reading, unless
from fedslice.papers.verdicts import Verdict

Document = dict[str, Any]
Score = Callable[[Measured, float], list[float]]  # by seed, after a share of the rounds


def judged(reading: Reading, method: str | None, score: Score = Measured.score) -> list[Document]:
    """One entry per claim, and per target where it speaks of several; ``score`` is what claims compare."""
    cells = {cell.cell.name: cell for cell in reading.cells}
    return [
        _judged(claim, cells[claim.first], cells[claim.second], target, reading, method, score)
        for claim in reading.line.claims
        for target in _targets(claim, reading)
    ]


def _targets(claim: Claim, reading: Reading) -> Iterator[float]:
    """Those a claim speaks of; one that is not timed is judged once, without regard to any."""
    if not claim.timed:
        yield 0.0
    elif claim.target is not None:
        yield claim.target
    else:
        yield from reading.line.targets


def _judged(
    claim: Claim, first: Measured, second: Measured, target: float, reading: Reading, method: str | None, score: Score
) -> Document:
    claim = _with_gap(claim, first, second)
    verdict = unless(first, second, reading.scale)
    if verdict is None and claim.says == "recovers":
        verdict = verdicts.recovered(first.around(reading.sampling or 0))
    elif verdict is None and claim.timed:
        verdict = _timed(claim, first, second, target)
    elif verdict is None:
        verdict = _scored(claim, first, second, first.cell.recipe == method, score)
    return {
        "claim": _words(claim, target),
        "paper": None if claim.by is None else [claim.by] if claim.to is None else [claim.by, claim.to],
        "measured": verdict.measured,
        "at_least": verdict.at_least,
        **verdict.document(),
    }


def _with_gap(claim: Claim, first: Measured, second: Measured) -> Claim:
    """A claim that one scores higher, by as much as the paper's own best scores differ."""
    scores = first.cell.best, second.cell.best
    if claim.says != "above" or claim.by is not None or scores[0] is None or scores[1] is None:
        return claim
    return claim.model_copy(update={"by": round(scores[0] - scores[1], 6)})


def _timed(claim: Claim, first: Measured, second: Measured, target: float) -> Verdict:
    times = first.hits(target, "clock"), second.hits(target, "clock")
    if claim.says == "alone":
        return verdicts.alone(*times)
    return verdicts.quicker(claim.by, *times, second.last("clock"))


def _scored(claim: Claim, first: Measured, second: Measured, own: bool, score: Score) -> Verdict:
    if claim.says == "slower":
        return verdicts.longer(first.last("clock"), second.last("clock"))
    scores = score(first, claim.at), score(second, claim.at)
    if claim.says == "above":
        return verdicts.higher(claim.by, *scores)
    if claim.says == "alike":
        return verdicts.level(*scores)
    return verdicts.fallen(claim.by or 0.0, claim.to or 1.0, *scores, own)


def _words(claim: Claim, target: float) -> str:
    words = {
        "above": f"{claim.first} scores higher than {claim.second}",
        "alike": f"{claim.first} scores as high as {claim.second}",
        "falls": f"the score falls from {claim.first} to {claim.second}",
        "slower": f"{claim.first} takes longer than {claim.second}, by a factor",
        "sooner": f"{claim.first} takes less time to {target:g} than {claim.second}",
        "alone": f"{claim.first} comes to {target:g}, {claim.second} does not",
        "recovers": f"after the sampling {claim.first} gets worse at first, and then better than before",
    }[claim.says]
    return words if claim.at == 1 else f"{words} after {claim.at:.0%} of the rounds"
