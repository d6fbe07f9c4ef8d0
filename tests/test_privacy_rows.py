"""Laws of private row sets and private heat: unions, deniable answers, estimates."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from fedslice.core.errors import UserError
from fedslice.privacy.draws import Draw, hidden_bits, hidden_uniform
from fedslice.privacy.heat import RandomizedHeat, SummedHeat, usable
from fedslice.privacy.perturb import PRESETS, PermanentAnswers, Perturbation
from fedslice.privacy.ring import Ring
from fedslice.privacy.union import BloomUnion, RowUnion

Z = norm.isf(1e-7)  # how far a mean of many draws may lie from its expectation, in standard deviations


def summed(vectors: list[np.ndarray], ring: Ring) -> np.ndarray:
    return ring.reduce(np.add.reduce(vectors, dtype=ring.dtype))


# --- unions ---------------------------------------------------------------------------------------------------------

row_sets = st.lists(st.sets(st.integers(0, 39)), min_size=1, max_size=6)


@given(row_sets, st.integers(0, 2**32))
@settings(deadline=None)
def test_the_union_is_the_union(sets: list[set[int]], seed: int) -> None:
    union = RowUnion(40, bits=64)
    marks = [union.mark(np.array(sorted(own), np.int64), seed + c) for c, own in enumerate(sets)]
    assert union.found(summed(marks, union.ring)).tolist() == sorted(set().union(*sets))


@given(row_sets, st.integers(0, 2**32))
@settings(deadline=None)
def test_a_bloom_filter_finds_at_least_the_union(sets: list[set[int]], seed: int) -> None:
    union = BloomUnion.of(40, 10, 0.05, seed=3, bits=64)
    marks = [union.mark(np.array(sorted(own), np.int64), seed + c) for c, own in enumerate(sets)]
    assert set(union.found(summed(marks, union.ring)).tolist()) >= set().union(*sets)


def test_a_held_row_is_missed_as_often_as_said() -> None:
    union, held = RowUnion(4000, bits=4), np.arange(4000)
    missed = [
        4000 - len(union.found(summed([union.mark(held, 10 * t + c) for c in range(3)], Ring(4)))) for t in range(5)
    ]
    expected = union.false_negatives(4000)
    assert expected == 250
    assert abs(np.mean(missed) - expected) < Z * math.sqrt(expected / 5)
    assert RowUnion(10**6).false_negatives(10**6) < 3e-4


def test_the_sum_says_nothing_about_how_many_hold_a_row() -> None:
    union, rows = RowUnion(60_000, bits=16), np.arange(60_000)
    for holders in (1, 2, 30):
        total = summed([union.mark(rows, 100 * holders + c) for c in range(holders)], Ring(16))
        counts = np.bincount(total >> 8, minlength=256)
        chi = ((counts - 60_000 / 256) ** 2 / (60_000 / 256)).sum()
        assert abs(chi - 255) < 6 * math.sqrt(2 * 255)


def test_a_bloom_filter_finds_other_rows_as_often_as_said_in_a_hundredth_of_the_cells() -> None:
    rows, held = 10**6, np.random.default_rng(0).choice(10**6, 1000, replace=False)
    union = BloomUnion.of(rows, 1000, 0.01, seed=1)
    assert union.cells < rows / 100
    assert union.hashes == 7
    found = union.found(union.mark(held, 5))
    assert np.isin(held, found).all()
    expected = union.false_positives(1000) * (rows - 1000)
    assert expected == pytest.approx(0.01 * rows, rel=0.05)
    assert abs(len(found) - 1000 - expected) < 0.15 * expected  # cells are shared, so counts vary more than binomially


def test_a_bloom_filter_misses_held_rows_as_often_as_said() -> None:
    held = np.arange(5000)
    union = BloomUnion(5000, cells=10**6, hashes=3, seed=2, bits=6)  # so large that hardly any cells are shared
    missed = np.mean([5000 - len(union.found(union.mark(held, seed))) for seed in range(4)])
    most = union.false_negatives(5000)
    assert most == pytest.approx(5000 * 3 / 64)
    exact = 5000 * (1 - (63 / 64) ** 3)
    assert exact < most < 1.02 * exact
    assert abs(missed - exact) < Z * math.sqrt(exact / 4) + 0.015 * exact


def test_marks_come_from_the_operating_system_unless_a_seed_is_given() -> None:
    union, own = RowUnion(8), np.arange(8)
    assert not np.array_equal(union.mark(own), union.mark(own))
    np.testing.assert_array_equal(union.mark(own, 3), union.mark(own, 3))


# --- deniable answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "p5", "p6", "once", "ever"),
    [
        ("15/16", 0.8828, 0.1172, 2.019, 2.708),
        ("7/8", 0.78125, 0.21875, 1.273, 1.946),
        ("3/4", 0.625, 0.375, 0.511, 1.099),
    ],
)
def test_presets_have_the_chances_and_losses_of_the_paper(
    name: str, p5: float, p6: float, once: float, ever: float
) -> None:
    mechanism = Perturbation.symmetric(PRESETS[name])
    assert mechanism.p5 == pytest.approx(p5, abs=5e-5)
    assert mechanism.p6 == pytest.approx(p6, abs=5e-5)
    assert mechanism.epsilon() == pytest.approx(once, abs=5e-4)
    assert mechanism.epsilon(None) == pytest.approx(ever, abs=5e-4)


MECHANISMS = [Perturbation.symmetric(7 / 8), Perturbation(0.9, 0.3, 0.7, 0.2), Perturbation(0.6, 0.5, 0.95, 0.4)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("rows", "rounds"), [(1, 1), (1, 4), (2, 2), (3, 1)])
def test_the_likelihood_ratio_of_all_that_can_be_seen_is_epsilon(
    mechanism: Perturbation, rows: int, rounds: int
) -> None:
    """Every set of permanent answers and every sequence of named sets, for every two sets of rows."""

    def chance(seen: tuple[tuple[int, ...], ...], held: tuple[int, ...]) -> float:
        total = 0.0
        for kept in itertools.product((0, 1), repeat=rows):
            p = 1.0
            for row in range(rows):
                yes = mechanism.p1 if held[row] else mechanism.p2
                p *= yes if kept[row] else 1 - yes
                again = mechanism.p3 if kept[row] else mechanism.p4
                for answers in seen:
                    p *= again if answers[row] else 1 - again
            total += p
        return total

    sets = list(itertools.product((0, 1), repeat=rows))
    sights, worst = list(itertools.product(sets, repeat=rounds)), 0.0
    for a in sets:
        assert sum(chance(seen, a) for seen in sights) == pytest.approx(1)
        for b in sets:
            largest = max(math.log(chance(seen, a) / chance(seen, b)) for seen in sights)
            apart = sum(x != y for x, y in zip(a, b, strict=True))
            assert largest <= apart * mechanism.epsilon(rounds) + 1e-9
            if apart == rows:
                worst = max(worst, largest)
    assert worst == pytest.approx(rows * mechanism.epsilon(rounds))  # and no smaller number would do


@given(st.tuples(*[st.floats(0.05, 0.95)] * 4))
@settings(deadline=None)
def test_the_loss_grows_with_rounds_up_to_that_of_the_permanent_answers(chances: tuple[float, ...]) -> None:
    mechanism = Perturbation(*chances)
    losses = [mechanism.epsilon(rounds) for rounds in (1, 2, 5, 30)]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(losses))
    assert losses[-1] <= mechanism.epsilon(None) + 1e-9
    p5, p6 = mechanism.p5, mechanism.p6
    by_hand = math.log(max(p5 / p6, p6 / p5, (1 - p5) / (1 - p6), (1 - p6) / (1 - p5)))
    assert losses[0] == pytest.approx(by_hand, abs=1e-9)


def test_the_loss_of_thousands_of_rounds_is_that_of_the_permanent_answers() -> None:
    for mechanism in MECHANISMS:
        assert mechanism.epsilon(5000) == pytest.approx(mechanism.epsilon(None))


def test_answers_without_a_doubt_have_no_bound_and_answers_of_chance_lose_nothing() -> None:
    assert Perturbation.symmetric(1.0).epsilon() == math.inf
    assert Perturbation.symmetric(0.5).epsilon(None) == 0
    assert Perturbation(1, 1, 1, 1).epsilon() == Perturbation(1, 1, 1, 1).epsilon(None) == 0  # all name the whole union
    assert Perturbation(0.8, 0.2, 1, 0).epsilon(7) == pytest.approx(math.log(4))  # instantaneous answers are permanent


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_are_named_as_often_as_said(mechanism: Perturbation) -> None:
    union, held = np.arange(10_000), np.arange(0, 10_000, 2)
    answers = PermanentAnswers(mechanism, 10_000, seed=1)
    permanent = answers.answer(0, union, held)
    for own, first, later in ((0, mechanism.p1, mechanism.p5), (1, mechanism.p2, mechanism.p6)):
        assert abs(permanent[own::2].mean() - first) < Z * math.sqrt(first * (1 - first) / 5000)
        named = np.isin(union[own::2], answers.perturb(0, 0, union, held))
        assert abs(named.mean() - later) < Z * math.sqrt(later * (1 - later) / 5000)
    yes, no = union[permanent], union[~permanent]
    often = np.mean([np.isin(union, answers.perturb(0, round, union, held)) for round in range(50)], axis=0)
    assert abs(often[yes].mean() - mechanism.p3) < 0.02
    assert abs(often[no].mean() - mechanism.p4) < 0.02


def test_permanent_answers_are_the_same_in_all_rounds_and_after_a_restart() -> None:
    mechanism, union = Perturbation.symmetric(3 / 4), np.arange(0, 300, 3)
    answers = PermanentAnswers(mechanism, 300, seed=1)
    first = {c: answers.answer(c, union, np.arange(60)) for c in (5, 0, 2)}
    saved = answers.state_dict()
    again = PermanentAnswers(mechanism, 300, seed=99)  # even if the seed were lost
    again.load_state_dict(saved)
    for kept in (answers, again):
        for c, before in first.items():
            np.testing.assert_array_equal(kept.answer(c, union, np.arange(60)), before)
            np.testing.assert_array_equal(kept.answer(c, union, np.zeros(0, np.int64)), before)  # nor if rows change
    assert not np.array_equal(first[0], first[2])
    answers.answer(0, np.arange(300), np.arange(60))  # a larger union: old answers stay
    np.testing.assert_array_equal(answers.answer(0, union, np.arange(60)), first[0])
    np.testing.assert_array_equal(saved["asked"], again.state_dict()["asked"])


def test_a_round_played_again_names_the_same_rows_and_another_round_others() -> None:
    def fresh() -> PermanentAnswers:
        return PermanentAnswers(Perturbation.symmetric(7 / 8), 500, seed=3)

    union, held, answers = np.arange(500), np.arange(100), fresh()
    rounds = [answers.perturb(4, round, union, held).tolist() for round in (1, 2, 1)]
    assert rounds[0] == rounds[2] != rounds[1]
    assert fresh().perturb(4, 2, union, held).tolist() == rounds[1]


def test_rows_outside_of_the_union_are_never_named() -> None:
    answers = PermanentAnswers(Perturbation.symmetric(15 / 16), 100, seed=0)
    assert set(answers.perturb(0, 0, np.array([3, 50]), np.arange(100)).tolist()) <= {3, 50}
    assert len(answers.perturb(0, 0, np.zeros(0, np.int64), np.arange(100))) == 0


def test_an_answer_depends_on_its_row_and_not_on_what_else_is_asked() -> None:
    def answers(asked: list[int]) -> dict[int, tuple[bool, bool]]:
        fresh, rows = PermanentAnswers(Perturbation.symmetric(0.6), 100, seed=8), np.array(asked)
        named = fresh.perturb(2, 5, rows, np.arange(50))
        permanent = fresh.answer(2, rows, np.arange(50))
        return {row: (bool(yes), row in named) for row, yes in zip(asked, permanent, strict=True)}

    everything = answers(list(range(100)))
    for some in ([3], [7, 60, 99], list(range(0, 100, 7))):
        assert answers(some).items() <= everything.items()


def test_hidden_draws_are_separate_streams_that_begin_alike() -> None:
    whole = hidden_bits(7, Draw.HEAT, 10_000, 1, 2)
    np.testing.assert_array_equal(hidden_bits(7, Draw.HEAT, 10, 1, 2), whole[:10])
    others = [hidden_bits(*key, 10_000, *rest) for key, rest in (((8, Draw.HEAT), (1, 2)), ((7, Draw.UNION), (1, 2)))]
    others += [hidden_bits(7, Draw.HEAT, 10_000, *rest) for rest in ((2, 1), (1,), (1, 2, 0))]
    for other in others:
        assert (other == whole).sum() < 5
    assert abs(hidden_uniform(7, Draw.HEAT, 10_000).mean() - 0.5) < Z * math.sqrt(1 / 12 / 10_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clients", np.zeros((2, 1), np.int64)),
        ("clients", np.arange(3)),
        ("asked", np.zeros((2, 1), np.uint8)),
        ("asked", np.zeros((2, 2), np.uint8)),  # answers to what was never asked
        ("asked", np.full((2, 2), 255, np.uint8)),  # rows beyond the table
        ("yes", np.zeros((2, 2))),
    ],
)
def test_damaged_answers_are_refused(name: str, value: np.ndarray) -> None:
    answers = PermanentAnswers(Perturbation.symmetric(0.9), 12, 0)
    for c in (0, 1):
        answers.answer(c, np.arange(10), np.arange(10))
    state = answers.state_dict()
    assert [part.shape for part in state.values()] == [(2,), (2, 2), (2, 2)]
    answers.load_state_dict(state)
    with pytest.raises(UserError, match="permanent answers are damaged, or of another table than one of 12 rows"):
        answers.load_state_dict({**state, name: value})


def test_answers_of_nobody_can_be_saved() -> None:
    answers = PermanentAnswers(Perturbation.symmetric(0.9), 12, 0)
    answers.load_state_dict(answers.state_dict())
    assert len(answers.state_dict()["clients"]) == 0


# --- heat -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sets(st.integers(0, 19)), st.integers(1, 900)), min_size=1, max_size=8))
@settings(deadline=None)
def test_summed_heat_is_exact_with_weights_or_without(clients: list[tuple[set[int], int]]) -> None:
    for weights in ([1] * len(clients), [weight for _, weight in clients]):
        heat = SummedHeat(20, sum(weights))
        marks = [
            heat.mark(np.array(sorted(own), np.int64), weight)
            for (own, _), weight in zip(clients, weights, strict=True)
        ]
        wanted = [
            sum(weight for (own, _), weight in zip(clients, weights, strict=True) if row in own) for row in range(20)
        ]
        assert heat.heat(summed(marks, heat.ring)).tolist() == wanted
    assert SummedHeat(20, 6040).ring.bits == 13


@pytest.mark.parametrize("epsilon", [0.5, 1.273, 4.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_randomized_heat_has_the_mean_and_the_variance_of_its_formulas(epsilon: float, weighted: bool) -> None:
    """Ten thousand rows with the same holders are ten thousand draws."""
    mechanism, clients, holders, draws = RandomizedHeat(epsilon), 60, 20, 10_000
    weights = np.arange(1, 61) if weighted else np.ones(60, np.int64)
    everything, nothing = np.arange(draws), np.zeros(0, np.int64)
    reports = sum(
        mechanism.report(c, everything if c < holders else nothing, draws, seed=7) * weights[c] for c in range(clients)
    )
    found = mechanism.estimate(reports, weights.sum())
    variance = mechanism.variance(float((weights**2).sum()))
    assert abs(found.mean() - weights[:holders].sum()) < Z * math.sqrt(variance / draws)
    assert found.var() == pytest.approx(variance, rel=Z * math.sqrt(2.2 / draws))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_loss_of_a_report_is_epsilon(epsilon: float) -> None:
    m = RandomizedHeat(epsilon)
    assert max(m.p / m.q, (1 - m.q) / (1 - m.p)) == pytest.approx(math.exp(epsilon))
    # mean and variance by counting all sums of reports of 4 clients, 2 of them holders
    both = np.convolve(binom.pmf(range(3), 2, m.p), binom.pmf(range(3), 2, m.q))
    estimates = m.estimate(np.arange(5), 4)
    assert both @ estimates == pytest.approx(2)
    assert both @ (estimates - 2) ** 2 == pytest.approx(m.variance(4))


def test_a_client_reports_the_same_each_time() -> None:
    m, own = RandomizedHeat(1.0), np.arange(10)
    np.testing.assert_array_equal(m.report(1, own, 50, 3), m.report(1, own, 50, 3))
    assert not np.array_equal(m.report(1, own, 50, 3), m.report(2, own, 50, 3))


def test_usable_heat_lies_between_its_floor_and_everyone() -> None:
    estimates = np.array([-40.0, 0.2, 3.0, 20.0, 4000.0])
    assert usable(estimates, 1000).tolist() == [1, 1, 3, 20, 1000]
    assert usable(estimates, 1000, variance=25.0, shrink=2).tolist() == [10, 10, 10, 20, 1000]
    assert usable(estimates, 8, variance=25.0, shrink=2).tolist() == [8] * 5


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError, match="epsilon = 0"):
        RandomizedHeat(0)
    with pytest.raises(UserError, match=r"p3 = 1\.5 is no chance"):
        Perturbation(0.5, 0.5, 1.5, 0.5)
    with pytest.raises(UserError, match="false_positives = 1"):
        BloomUnion.of(10, 10, 1, 0)
