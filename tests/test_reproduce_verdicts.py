"""The rules by which a measurement is held against a paper's number."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedslice.papers import verdicts
from fedslice.papers.verdicts import FAILS, HOLDS, INCOMPARABLE, WEAKER

GRADES = (HOLDS, WEAKER, FAILS)
rounds = st.integers(1, 10_000)
hits = st.lists(st.none() | rounds, min_size=1, max_size=5)
pairs = st.lists(st.tuples(st.none() | rounds, st.none() | rounds), min_size=1, max_size=5)
scores = st.lists(st.floats(0, 1), min_size=1, max_size=5)


def grade(verdict: verdicts.Verdict) -> int:
    return GRADES.index(verdict.verdict)


def fewer(found: list[int | None], place: int, cut: int) -> list[int | None]:
    """The same, with one seed faster."""
    place %= len(found)
    old = found[place]
    return [*found[:place], cut if old is None else max(1, old - cut), *found[place + 1 :]]


@pytest.mark.parametrize(
    ("paper", "found", "own", "expected"),
    [
        (100, [100, 110, 100], True, HOLDS),
        (100, [125], True, HOLDS),
        (100, [126], True, WEAKER),
        (100, [200], True, WEAKER),
        (100, [201], True, FAILS),
        (100, [10], True, HOLDS),
        (100, [80], False, HOLDS),
        (100, [79], False, WEAKER),
        (100, [50], False, WEAKER),
        (100, [49], False, FAILS),
        (100, [100, None, 100], True, HOLDS),  # the seed in the middle
        (100, [100, None], True, FAILS),  # of two in the middle, the worse
        (100, [None], False, FAILS),
    ],
)
def test_a_number_of_rounds(paper: int, found: list[int | None], own: bool, expected: str) -> None:
    assert verdicts.reached(paper, found, own).verdict == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [([None], HOLDS), ([201], HOLDS), ([200], WEAKER), ([160], WEAKER), ([159], FAILS), ([200, None, None], HOLDS)],
)
def test_a_target_that_was_not_reached(found: list[int | None], expected: str) -> None:
    assert verdicts.not_reached(200, found).verdict == expected


@pytest.mark.parametrize(
    ("first", "second", "paper", "expected"),
    [
        ([100, 100], [170, 180], 1.7, HOLDS),
        ([100, 100], [None, None], 3.8, HOLDS),  # at least 400/100
        ([250, 250], [None, None], 3.8, WEAKER),  # at least 400/250, which is under half
        ([100, 100], [110, 100], 1.7, FAILS),  # a tie in one seed
        ([None, 100], [None, 200], 1.7, FAILS),
        ([None, None], [None, 200], 1.7, FAILS),
        ([None, None], [None, None], 1.7, INCOMPARABLE),  # the runs were too short to tell
        ([100, 100], [101, 101], 4.0, WEAKER),
    ],
)
def test_an_ordering(first: list[int | None], second: list[int | None], paper: float, expected: str) -> None:
    assert verdicts.sooner(paper, first, second, 400).verdict == expected


def test_the_measured_factor_is_told() -> None:
    assert verdicts.sooner(2.0, [50], [200], 400).measured == 4.0
    assert verdicts.sooner(2.0, [50], [None], 400).measured == 8.0
    assert verdicts.alike([100], [110]).measured == 1.1
    assert verdicts.higher(0.1, [0.7], [0.5]).measured == pytest.approx(0.2)


def test_equal_rounds() -> None:
    assert verdicts.alike([100], [125]).verdict == HOLDS
    assert verdicts.alike([126], [100]).verdict == WEAKER
    assert verdicts.alike([100], [201]).verdict == FAILS
    assert verdicts.alike([None], [None]).verdict == FAILS


def test_scores() -> None:
    assert [verdicts.scored(0.64, [s], True).verdict for s in (0.9, 0.625, 0.6, 0.58)] == [HOLDS, HOLDS, WEAKER, FAILS]
    assert [verdicts.scored(0.52, [s], False).verdict for s in (0.53, 0.56, 0.6)] == [HOLDS, WEAKER, FAILS]
    assert verdicts.higher(0.12, [0.70, 0.68], [0.60, 0.61]).verdict == HOLDS
    assert verdicts.higher(0.12, [0.63, 0.63], [0.60, 0.61]).verdict == WEAKER
    assert verdicts.higher(0.12, [0.70, 0.60], [0.50, 0.61]).verdict == FAILS
    assert [verdicts.level([0.64], [s]).verdict for s in (0.63, 0.6, 0.7)] == [HOLDS, WEAKER, FAILS]


def test_a_range_of_scores() -> None:
    found = [verdicts.scored(0.5, [s], False, 0.6).verdict for s in (0.49, 0.55, 0.61, 0.64, 0.46, 0.66, 0.44)]
    assert found == [HOLDS, HOLDS, HOLDS, WEAKER, WEAKER, FAILS, FAILS]
    assert [verdicts.scored(0.5, [s], True, 0.6).verdict for s in (0.9, 0.46, 0.44)] == [HOLDS, WEAKER, FAILS]
    assert verdicts.scored(0.5, [0.7], False, 0.6).why == "+0.100 to the paper's score"


@pytest.mark.parametrize(
    ("first", "second", "paper", "expected"),
    [
        ([10, 10], [40, 50], 0.75, HOLDS),  # four times as fast
        ([20, 20], [40, 50], 0.75, HOLDS),  # twice, which is half of that
        ([21, 21], [40, 40], 0.75, WEAKER),
        ([30, 30], [40, 40], 0.5, HOLDS),  # a quarter saved, half of what is printed
        ([31, 31], [40, 40], 0.5, WEAKER),
        ([39, 39], [40, 40], None, HOLDS),
        ([40, 10], [40, 40], None, FAILS),  # a tie in one seed
        ([None, 10], [40, 40], None, FAILS),
        ([None, None], [40, 40], None, FAILS),
        ([None, None], [None, None], 0.75, INCOMPARABLE),
        ([25, 25], [None, None], 0.75, HOLDS),  # at least 1 - 25/100
        ([90, 90], [None, None], 0.75, WEAKER),
    ],
)
def test_a_share_of_time(
    first: list[float | None], second: list[float | None], paper: float | None, expected: str
) -> None:
    assert verdicts.quicker(paper, first, second, [100.0, 100.0]).verdict == expected


def test_the_time_saved_is_told() -> None:
    assert verdicts.quicker(0.7, [10], [40], [100.0]) == verdicts.Verdict(HOLDS, measured=0.75)
    assert verdicts.quicker(0.7, [10], [None], [100.0]) == verdicts.Verdict(HOLDS, measured=0.9, at_least=True)
    assert verdicts.quicker(0.9, [30], [40], [50.0]).why == "25.0% less, the paper has 90.0%"


def test_one_comes_to_the_target_and_the_other_does_not() -> None:
    assert verdicts.alone([5, 5, 5], [None] * 3).verdict == HOLDS
    assert verdicts.alone([5, None, 5], [None, 9, None]).why == "not in 2 of 6 runs"
    assert verdicts.alone([5, None], [None, None]).why == "the first did not reach the target"
    assert verdicts.alone([5, 5], [None, 9]).why == "both reached the target"
    assert verdicts.alone([None], [None]).verdict == INCOMPARABLE


def test_a_fall() -> None:
    def fallen(after: float, own: bool) -> str:
        return verdicts.fallen(0.05, 0.1, [0.9], [after], own).verdict

    assert [fallen(after, False) for after in (0.82, 0.79, 0.76, 0.74, 0.86, 0.9)] == [
        HOLDS,
        HOLDS,
        WEAKER,
        FAILS,
        HOLDS,
        FAILS,  # it does not fall
    ]
    assert [fallen(after, True) for after in (0.95, 0.79, 0.76, 0.74)] == [HOLDS, HOLDS, WEAKER, FAILS]
    assert verdicts.fallen(0.0, 0.1, [0.9, 0.9], [0.8, 0.7], True).measured == pytest.approx(0.2), "the worse"


def test_longer_rounds() -> None:
    assert verdicts.longer([20.0, 30.0], [10.0, 10.0]) == verdicts.Verdict(HOLDS, measured=2.0)
    assert verdicts.longer([20.0, 10.0], [10.0, 10.0]).verdict == FAILS


def test_statistics() -> None:
    assert verdicts.counted("clients", 6040, 6040).verdict == HOLDS
    assert verdicts.counted("clients", 1870, 1859).verdict == WEAKER
    assert verdicts.counted("samples", 123_147, 99_710).verdict == FAILS
    assert verdicts.counted("samples_per_client", 165, 1_000_209 / 6040).verdict == HOLDS  # cut off
    assert verdicts.counted("samples_per_client", 54, 79_050 / 1473).verdict == HOLDS  # rounded
    assert verdicts.counted("samples_per_client", 54, 55.0).verdict == WEAKER
    assert verdicts.counted("sparsity", 0.0416, 0.04164).verdict == HOLDS
    assert verdicts.counted("sparsity", 0.0416, 0.0426).verdict == WEAKER


@given(rounds, hits, st.integers(0, 4), rounds)
def test_fewer_rounds_of_the_papers_method_are_never_worse(
    paper: int, found: list[int | None], place: int, cut: int
) -> None:
    before, after = (verdicts.reached(paper, values, True) for values in (found, fewer(found, place, cut)))
    assert grade(after) <= grade(before)


@given(rounds, hits, st.integers(0, 4), rounds)
def test_fewer_rounds_never_help_a_claim_that_there_are_none(
    paper: int, found: list[int | None], place: int, cut: int
) -> None:
    before, after = (verdicts.not_reached(paper, values) for values in (found, fewer(found, place, cut)))
    assert grade(after) >= grade(before)


@given(rounds, hits)
def test_a_baseline_is_judged_as_strictly_as_the_method_at_least(paper: int, found: list[int | None]) -> None:
    assert grade(verdicts.reached(paper, found, False)) >= grade(verdicts.reached(paper, found, True))


@given(st.floats(1, 100), pairs, st.integers(0, 4), rounds)
def test_fewer_rounds_never_spoil_an_ordering(
    paper: float, found: list[tuple[int | None, int | None]], place: int, cut: int
) -> None:
    first, second = [a for a, _ in found], [b for _, b in found]
    assume(any(hit is not None for hit in (*first, *second)))
    before = verdicts.sooner(paper, first, second, 10_000)
    assert grade(verdicts.sooner(paper, fewer(first, place, cut), second, 10_000)) <= grade(before)
    assert grade(verdicts.sooner(paper, first, fewer(second, place, cut), 10_000)) >= grade(before)


@given(pairs)
def test_no_ordering_holds_both_ways(found: list[tuple[int | None, int | None]]) -> None:
    first, second = [a for a, _ in found], [b for _, b in found]
    verdict = [verdicts.sooner(1.0, *both, 10_000).verdict for both in ((first, second), (second, first))]
    told = any(hit is not None for hit in (*first, *second))
    assert (FAILS in verdict) == told
    assert (INCOMPARABLE in verdict) != told
    assert verdicts.alike(first, second).verdict == verdicts.alike(second, first).verdict


@given(st.floats(0, 1), scores, st.floats(0, 1))
def test_higher_scores_of_the_papers_method_are_never_worse(paper: float, found: list[float], more: float) -> None:
    better = [score + more for score in found]
    assert grade(verdicts.scored(paper, better, True)) <= grade(verdicts.scored(paper, found, True))


@given(pairs, st.floats(0, 0.99), st.integers(0, 4), rounds)
def test_a_quicker_first_never_spoils_the_time_saved(
    found: list[tuple[int | None, int | None]], paper: float, place: int, cut: int
) -> None:
    first, second = [a for a, _ in found], [b for _, b in found]
    assume(any(hit is not None for hit in (*first, *second)))
    last = [10_000.0] * len(found)
    before = verdicts.quicker(paper, first, second, last)
    assert grade(verdicts.quicker(paper, fewer(first, place, cut), second, last)) <= grade(before)
    assert grade(verdicts.quicker(paper, first, fewer(second, place, cut), last)) >= grade(before)
    assert grade(verdicts.quicker(None, first, second, last)) <= grade(before)


@given(hits, rounds)
def test_a_verdict_below_the_best_says_why(found: list[int | None], paper: int) -> None:
    for verdict in (verdicts.reached(paper, found, False), verdicts.not_reached(paper, found)):
        assert (verdict.verdict == HOLDS) == (not verdict.why)
