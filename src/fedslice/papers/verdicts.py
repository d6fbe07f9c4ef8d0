"""Verdicts on measurements beside a paper's numbers: all rules, and nothing else.

Several seeds speak through the one in the middle; of two in the middle, the worse. Where a target was not reached
(``None``) the rounds, or the time, are infinite.

========================================= ============================ ============================ ==============
claim                                     holds                        weaker                       does not hold
========================================= ============================ ============================ ==============
the target is reached in p rounds         within a factor of 1.25 of p within a factor of 2         otherwise
the target is not reached in p rounds     not in p                     in 1/1.25 of p or more       sooner
the score is s, or within a range         within 0.02 of that          within 0.05                  otherwise
a needs fewer rounds than b, by f         in every seed, by f/2        in every seed, by less       otherwise
a needs as many rounds as b               within a factor of 1.25      within a factor of 2         otherwise
a is f times as fast as b to the target   in every seed, f/2 times     in every seed, less          otherwise
a comes to the target, b does not         in every seed                in the seed in the middle    otherwise
a's rounds take longer than b's           in every seed                                             otherwise
a's score is above b's, by g              in every seed, by g/2        in every seed, by less       otherwise
a's score is b's                          within 0.02                  within 0.05                  otherwise
a score falls from a to b, by l to h      by that, within 0.02         by that, within 0.05         otherwise
a score gets worse, then better than ever both, in every seed          it only gets better          otherwise
a client sends w words                    to the last printed digit    within 5 %                   otherwise
a data set has v clients, samples, …      as printed in the paper      within 5 %                   otherwise
========================================= ============================ ============================ ==============

An ordering of rounds or times is not comparable if neither side ever reached the target in the rounds that were run.
The paper's own method may be better than printed: to reach a target sooner, score higher, or fall less, holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_high, median_low
from typing import Any

from fedslice.papers.printed import Printed

HOLDS, WEAKER, FAILS, INCOMPARABLE = "holds", "weaker", "does not hold", "not comparable"
NEAR, FAR = 1.25, 2.0  # factors between numbers of rounds
NEAR_SCORE, FAR_SCORE = 0.02, 0.05
FAR_STATISTIC = 0.05  # of the paper's value
_PRINTED = {"samples_per_client": 1.0, "sparsity": 0.5e-4}  # how far off a number may be and still print the same

Hits = Sequence[float | None]


@dataclass(frozen=True)
class Verdict:
    """A word, why it is not a better one, and for an ordering the factor or gap that was measured, or a bound below."""

    verdict: str
    why: str = ""
    measured: float | None = None
    at_least: bool = False

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"verdict": self.verdict, "why": self.why}


def middle(hits: Hits) -> float:
    """The rounds of the seed in the middle."""
    return median_high([math.inf if hit is None else float(hit) for hit in hits])


def reached(paper: int, hits: Hits, own: bool) -> Verdict:
    """The target is reached in so many rounds."""
    factor = middle(hits) / paper
    return _graded(factor if own else max(factor, 1 / factor), NEAR, FAR, f"{factor:.2f} times the paper's rounds")


def not_reached(paper: int, hits: Hits) -> Verdict:
    """The target is not reached in so many rounds."""
    found = middle(hits)
    if found > paper:
        return Verdict(HOLDS)
    return Verdict(WEAKER if found * NEAR >= paper else FAILS, f"reached in {found:.0f} rounds")


def scored(low: float, scores: Sequence[float], own: bool, high: float | None = None) -> Verdict:
    """The score is so high, or within a range."""
    off = _off(median_low(scores), low, low if high is None else high)
    return _graded(-off if own else abs(off), NEAR_SCORE, FAR_SCORE, f"{off:+.3f} to the paper's score")


def sooner(paper: float, first: Hits, second: Hits, rounds: int) -> Verdict:
    """The first needs fewer rounds than the second, by a factor; who is not there after all rounds counts as there."""
    if all(hit is None for hit in (*first, *second)):
        return Verdict(INCOMPARABLE, f"neither reached the target in {rounds:,} rounds")
    factor = min(middle(second), rounds) / min(middle(first), rounds)
    endless = middle(second) > rounds
    words = f"{'at least ' if endless else ''}a factor of {factor:.2f} in {rounds:,} rounds, the paper has {paper:.2f}"
    return replace(_ordered(_late(first, second), factor >= paper / 2, words, factor), at_least=endless)


def quicker(paper: float | None, first: Hits, second: Hits, last: Sequence[float]) -> Verdict:
    """The first saves a share of the second's time to the target; a second that is not there has its ``last`` time.

    It holds with half of the saving that the paper prints, if that leaves no more than twice the time.
    """
    if all(hit is None for hit in (*first, *second)):
        return Verdict(INCOMPARABLE, "neither reached the target")
    endless = math.isinf(middle(second))
    left = middle(first) / middle([end if hit is None else hit for hit, end in zip(second, last, strict=True)])
    enough = paper is None or left <= min(2 * (1 - paper), 1 - paper / 2)
    words = f"{'at least ' if endless else ''}{1 - left:.1%} less, the paper has {paper or 0:.1%}"
    found = _ordered(_late(first, second), enough, words, 1 - left if math.isfinite(left) else None)
    return replace(found, at_least=endless)


def alone(first: Hits, second: Hits) -> Verdict:
    """The first comes to the target, the second does not."""
    if all(hit is None for hit in (*first, *second)):
        return Verdict(INCOMPARABLE, "neither reached the target")
    if math.isinf(middle(first)):
        return Verdict(FAILS, "the first did not reach the target")
    if math.isfinite(median_low([math.inf if hit is None else hit for hit in second])):
        return Verdict(FAILS, "both reached the target")
    wrong = sum(hit is None for hit in first) + sum(hit is not None for hit in second)
    return Verdict(WEAKER, f"not in {wrong} of {len(first) + len(second)} runs") if wrong else Verdict(HOLDS)


def longer(first: Sequence[float], second: Sequence[float]) -> Verdict:
    """The same number of rounds takes the first more time; measured is by which factor."""
    factor = median_low(first) / median_low(second)
    return _ordered([a <= b for a, b in zip(first, second, strict=True)], True, "", factor)


def alike(first: Hits, second: Hits) -> Verdict:
    """Both need about as many rounds."""
    ends = middle(first), middle(second)
    if math.inf in ends:
        return Verdict(FAILS, "the target is not always reached")
    factor = max(ends) / min(ends)
    return _graded(factor, NEAR, FAR, f"they differ by a factor of {factor:.2f}", ends[1] / ends[0])


def higher(paper: float | None, first: Sequence[float], second: Sequence[float]) -> Verdict:
    """The first has the higher score, by a gap if the paper tells."""
    gap = median_low(first) - median_low(second)
    low = [a <= b for a, b in zip(first, second, strict=True)]
    if paper is None:
        return _ordered(low, True, "", gap)
    return _ordered(low, gap >= paper / 2, f"a gap of {gap:.3f}, the paper has {paper:.3f}", gap)


def level(first: Sequence[float], second: Sequence[float]) -> Verdict:
    """Both have about the same score."""
    gap = median_low(first) - median_low(second)
    return _graded(abs(gap), NEAR_SCORE, FAR_SCORE, f"they differ by {gap:+.3f}", gap)


def fallen(low: float, high: float, before: Sequence[float], after: Sequence[float], own: bool) -> Verdict:
    """The score falls, by as much as a range says."""
    fall = median_high([a - b for a, b in zip(before, after, strict=True)])
    if fall <= 0 and not own:
        return Verdict(FAILS, "it does not fall", fall)
    off = _off(fall, low, high)
    words = f"a fall of {fall:.3f}, the paper has {low:.3f} to {high:.3f}"
    return _graded(off if own else abs(off), NEAR_SCORE, FAR_SCORE, words, fall)


def recovered(seeds: Sequence[tuple[float, float, float]]) -> Verdict:
    """Return whether a loss rose after a round and then fell below its value before."""
    sunk = median_low([before - last for before, _, last in seeds])
    if any(last >= before for before, _, last in seeds):
        return Verdict(FAILS, "it does not end better than it was", sunk)
    calm = sum(worst <= before for before, worst, _ in seeds)
    if calm:
        return Verdict(WEAKER, f"it never gets worse in {calm} of {len(seeds)} seeds", sunk)
    return Verdict(HOLDS, measured=sunk)


def sent(paper: Printed, found: float) -> Verdict:
    """So many words are sent, to less than a unit of the last digit that is printed, or half of a single digit."""
    off = found / paper.number - 1
    if abs(found - paper.number) < min(paper.unit, paper.number / 2):
        return Verdict(HOLDS)
    return _graded(abs(off), 0.0, FAR_STATISTIC, f"{off:+.2%} to the paper's")


def counted(name: str, paper: float, found: float) -> Verdict:
    """A data set has this statistic."""
    off = abs(found - paper)
    if off == 0 or off < _PRINTED.get(name, 0.0):
        return Verdict(HOLDS)
    return _graded(off / paper, 0.0, FAR_STATISTIC, f"{(found - paper) / paper:+.1%} to the paper's")


def _off(value: float, low: float, high: float) -> float:
    """Distance of a value from a range, negative below it."""
    return value - min(max(value, low), high)


def _late(first: Hits, second: Hits) -> list[bool]:
    """By seed: was the first not there before the second?"""
    return [a is None or (b is not None and a >= b) for a, b in zip(first, second, strict=True)]


def _graded(off: float, near: float, far: float, why: str, measured: float | None = None) -> Verdict:
    if off <= near:
        return Verdict(HOLDS, measured=measured)
    why = "the target is not reached" if math.isinf(off) else why
    return Verdict(WEAKER if off <= far else FAILS, why, measured)


def _ordered(wrong: Sequence[bool], enough: bool, why: str, measured: float | None) -> Verdict:
    if any(wrong):
        return Verdict(FAILS, f"not in {sum(wrong)} of {len(wrong)} seeds", measured)
    return Verdict(HOLDS if enough else WEAKER, "" if enough else why, measured)
