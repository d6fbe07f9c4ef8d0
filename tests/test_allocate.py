"""Dropout rates (FedDD, equations 13 to 17): closed forms, a general solver, brute force, and laws (T33 to T36)."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedslice.core.errors import UserError
from fedslice.slices.allocation import Allocation, allocate, allocate_lp, regularizers, scale_delta

Vector = NDArray[np.float64]
quick = settings(deadline=None, max_examples=60)


@dataclass(frozen=True)
class Instance:
    sizes: Vector
    seconds_per_share: Vector
    compute: Vector
    regularizer: Vector
    budget: float
    most: float
    delta: float

    def solve(self) -> Allocation:
        return allocate(**vars(self))

    def cost(self, found: Allocation) -> float:
        return found.time + self.delta * float(self.regularizer @ found.rates)

    @property
    def dropped(self) -> float:
        return (1 - self.budget) * float(self.sizes.sum())

    def check(self, found: Allocation) -> None:
        """Equation 17 to 1e-12, and that the time is that of the slowest client."""
        assert found.rates.min() >= 0
        assert found.rates.max() <= self.most
        assert float(self.sizes @ found.rates) == pytest.approx(self.dropped, abs=1e-12 * self.sizes.sum())
        assert found.time == (self.compute + self.seconds_per_share * (1 - found.rates)).max()


@st.composite
def instances(draw: st.DrawFn, clients: tuple[int, int] = (1, 8), relative: float = 10) -> Instance:
    """Clients of few kinds, so that they tie, or of any; D_max from far above the share to drop to just above it."""
    count = draw(st.integers(*clients))

    def numbers(some: list[float], low: float, high: float) -> Vector:
        one = st.sampled_from(some) if draw(st.booleans()) else st.floats(low, high)
        return np.array(draw(st.lists(one, min_size=count, max_size=count)), dtype=np.float64)

    sizes = numbers([1, 1, 2, 8], 0.01, 100)
    share = numbers([0, 10, 10, 20, 1000], 0.1, 1000)
    compute = numbers([0, 1, 5], 0, 500)
    regularizer = numbers([0, 0.1, 0.1, 0.4], 1e-6, 1) * draw(st.sampled_from([np.ones(count), sizes]))
    most = draw(st.sampled_from([0.1, 0.8, 1.0]) | st.floats(0.05, 1))
    part = draw(st.sampled_from([0.0, 1e-3, 0.5, 1 - 1e-6, 1.0]) | st.floats(0, 1))
    delta = scale_delta(draw(st.sampled_from([0, 1, relative]) | st.floats(0, relative)), share, compute, regularizer)
    return Instance(sizes, share, compute, regularizer, 1 - part * most, most, delta)


# --- equivalences ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(instances())
@example(Instance(*np.array([[8, 8, 8, 4, 2, 2, 1], [1, 1, 1, 1, 1, 952, 992], [0] * 7, [1] * 7]), 1, 0.1, 1e-20))
def test_it_is_the_linear_program(one: Instance) -> None:
    found, expected = one.solve(), allocate_lp(**vars(one))
    one.check(found)
    assert one.cost(found) == pytest.approx(one.cost(expected), rel=1e-8, abs=1e-8)


def grid(sizes: Vector, dropped: float, most: float, points: int) -> Vector:
    """Rates that drop exactly this much: for all clients but the last, evenly over what the others leave possible."""
    if len(sizes) == 1:
        return np.array([[dropped / sizes[0]]])
    low = max(0.0, (dropped - most * sizes[1:].sum()) / sizes[0])
    high = min(most, dropped / sizes[0])
    parts = []
    for rate in np.linspace(low, high, points):
        tail = grid(sizes[1:], dropped - rate * sizes[0], most, points)
        parts.append(np.column_stack([np.full(len(tail), rate), tail]))
    return np.concatenate(parts)


@settings(deadline=None, max_examples=40)
@given(instances(clients=(1, 3)))
def test_no_point_of_a_grid_is_better_and_a_near_one_nearly_as_good(one: Instance) -> None:
    points = 60
    rates = grid(one.sizes, one.dropped, one.most, points)
    times = (one.compute + one.seconds_per_share * (1 - rates)).max(1)
    best = float((times + one.delta * rates @ one.regularizer).min())
    found = one.cost(one.solve())
    moved = 2 * one.sizes[:-1].sum() * one.most / (points - 1) / one.sizes  # by how much a grid point misses a rate
    slack = float((one.seconds_per_share * moved).max() + one.delta * one.regularizer @ moved)
    assert found - 1e-9 * (1 + found) <= best <= found + slack + 1e-9 * (1 + found)


# --- closed forms ------------------------------------------------------------------------------------------


@quick
@given(
    st.integers(1, 40),
    st.floats(0.01, 1e6),
    st.floats(0, 100),
    st.floats(0, 1),
    st.floats(0.2, 1),
    st.sampled_from([0.0, 1.0, 1e30]),
)
def test_equal_clients_drop_the_same(
    count: int, share: float, compute: float, lost: float, budget: float, delta: float
) -> None:
    """D_n = 1 − A and t = t_cmp + A·a for any δ: with equal prices there is nothing to gain by a longer round."""
    one = [np.full(count, value) for value in (7.0, share, compute, lost)]
    found = allocate(*one, budget=budget, most=0.8, delta=delta)
    np.testing.assert_allclose(found.rates, 1 - budget, rtol=0, atol=1e-12)
    assert found.time == pytest.approx(compute + budget * share, rel=1e-12)


@pytest.mark.parametrize(
    ("delta", "rates", "time"), [(0, (0.25, 0.75), 7.5), (30, (0.25, 0.75), 7.5), (30.001, (0.8, 0.2), 24)]
)
def test_two_clients_by_hand(delta: float, rates: tuple[float, float], time: float) -> None:
    """10·(1 − D_0) = 30·(1 − D_1) with D_0 + D_1 = 1; each second beyond spares the second client 1/30 of its model."""
    found = allocate([1, 1], [10, 30], [0, 0], [0, 1], budget=0.5, most=0.8, delta=delta)
    assert found.rates == pytest.approx(rates, abs=1e-14)
    assert found.time == pytest.approx(time, rel=1e-14)


def test_clients_that_tie_go_by_their_number() -> None:
    """The slow client holds the others up even at D_max; what is left to drop is the first fast one's."""
    found = allocate([1, 1, 1], [100, 1, 1], [0, 0, 0], [0.1, 0.1, 0.1], budget=0.6, most=0.8, delta=1)
    assert found.rates == pytest.approx([0.8, 0.4, 0], abs=1e-15)
    assert found.time == pytest.approx(20)


@quick
@given(instances())
def test_nothing_to_drop_is_exactly_nothing(one: Instance) -> None:
    """T34: A = 1."""
    found = replace(one, budget=1.0).solve()
    assert not found.rates.any()
    assert found.time == (one.compute + one.seconds_per_share).max()


@quick
@given(instances(), st.integers(0, 100))
def test_a_budget_at_the_limit_leaves_no_choice(one: Instance, percent: int) -> None:
    """T34: A = 1 − D_max, however the two were rounded."""
    for budget in (1 - percent / 100, (100 - percent) / 100):
        found = replace(one, budget=budget, most=percent / 100).solve()
        assert (found.rates == percent / 100).all()


@quick
@given(instances(), st.permutations(range(8)), st.floats(0.01, 1))
def test_with_a_large_delta_prices_alone_decide(one: Instance, order: list[int], part: float) -> None:
    """T36: in the order of re_n / U_n everybody drops D_max until enough is dropped."""
    price = np.array(order[: len(one.sizes)], dtype=np.float64)
    one = replace(one, regularizer=price * one.sizes, delta=1e9, budget=1 - part * one.most)
    left, expected = one.dropped, np.zeros(len(price))
    for client in np.argsort(price):
        expected[client] = min(one.most, left / one.sizes[client])
        left = max(left - expected[client] * one.sizes[client], 0)
    np.testing.assert_allclose(one.solve().rates, expected, rtol=0, atol=1e-9)


# --- laws --------------------------------------------------------------------------------------------------


@quick
@given(instances(), st.floats(1, 3), st.floats(0, 50), st.booleans())
def test_a_slower_client_never_drops_less_than_one_like_it(one: Instance, slow: float, late: float, last: bool) -> None:
    """T35, for any δ: a twin of the first client with slower links or a slower processor, before it or at the end."""
    place = len(one.sizes) if last else 0
    twin = {
        "sizes": one.sizes[0],
        "seconds_per_share": one.seconds_per_share[0] * slow,
        "compute": one.compute[0] + late * (slow == 1),
        "regularizer": one.regularizer[0],
    }
    whole = one.compute[0] + one.seconds_per_share[0]
    assume(twin["compute"] + twin["seconds_per_share"] > whole)
    found = replace(one, **{name: np.insert(getattr(one, name), place, value) for name, value in twin.items()}).solve()
    assert found.rates[place] >= found.rates[0 if last else 1] - 1e-12


@quick
@given(instances(), st.floats(1, 3))
def test_a_client_whose_links_slow_down_never_drops_less(one: Instance, slow: float) -> None:
    slower = one.seconds_per_share.copy()
    slower[0] *= slow
    assert replace(one, seconds_per_share=slower).solve().rates[0] >= one.solve().rates[0] - 1e-9


@quick
@given(instances(), st.floats(0, 1))
def test_a_larger_budget_never_makes_a_shorter_round(one: Instance, part: float) -> None:
    more = replace(one, budget=one.budget + part * (1 - one.budget))
    assert more.solve().time >= one.solve().time * (1 - 1e-9)


@quick
@given(instances(), st.floats(0, 1))
def test_a_larger_limit_never_costs_more(one: Instance, part: float) -> None:
    wider = replace(one, most=one.most + part * (1 - one.most))
    assert wider.cost(wider.solve()) <= one.cost(one.solve()) * (1 + 1e-9)


@quick
@given(instances(), st.integers(-20, 20))
def test_units_do_not_matter(one: Instance, power: int) -> None:
    """Powers of two do not round, so rates are the same to the bit in any unit of time, size and loss."""
    unit, found = 2.0**power, one.solve()
    time = replace(
        one, seconds_per_share=unit * one.seconds_per_share, compute=unit * one.compute, delta=unit * one.delta
    )
    size = replace(one, sizes=unit * one.sizes)
    loss = replace(one, regularizer=unit * one.regularizer, delta=one.delta / unit)
    for other in (time, size, loss):
        np.testing.assert_array_equal(other.solve().rates, found.rates)
    assert time.solve().time == unit * found.time


@quick
@given(instances(), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(one: Instance, random: Any) -> None:
    order = random.sample(range(len(one.sizes)), len(one.sizes))
    names = ("sizes", "seconds_per_share", "compute", "regularizer")
    turned = replace(one, **{name: getattr(one, name)[order] for name in names})
    assert turned.cost(turned.solve()) == pytest.approx(one.cost(one.solve()), rel=1e-9, abs=1e-9)


def test_many_clients_meet_the_budget() -> None:
    """With more clients than a plain sum is exact for, and links as in FedDD, table 4."""
    random, count = np.random.default_rng(0), 20_000
    sizes = 10 ** random.uniform(3, 6, count)
    share = 32 * sizes * (1 / random.uniform(1e3, 5e3, count) + 1 / random.uniform(4e4, 2e5, count))
    compute, lost = random.uniform(0, 5, count), random.uniform(0, 1, count) * sizes
    for relative in (0, 1, 30, 1000):
        one = Instance(sizes, share, compute, lost, 0.6, 0.8, scale_delta(relative, share, compute, lost))
        one.check(one.solve())


# --- what goes in ------------------------------------------------------------------------------------------


def test_regularizers_by_hand() -> None:
    """FedDD's example of section 4.1 (shares .3 .3 .4 and .48 .48 .04) among three classes, with C·dis cut at one."""
    shares = [[0.3, 0.3, 0.4], [0.48, 0.48, 0.04]]
    found = regularizers(samples=[30, 10], label_shares=shares, sizes=[50, 100], losses=[2, 0.5])
    assert found == pytest.approx([0.75 * (0.9 + 0.9 + 1) * 0.5 * 2, 0.25 * (1 + 1 + 0.12) * 1 * 0.5], rel=1e-14)


@quick
@given(st.integers(1, 12))
def test_classes_in_equal_shares_are_all_known_and_a_single_one_is_one(classes: int) -> None:
    shares = [np.full(classes, 1 / classes), np.eye(classes)[0]]
    assert regularizers([1, 1], shares, [1, 1], [1, 1]) == pytest.approx([classes / 2, 1 / 2])


def test_delta_is_relative_to_the_median_round() -> None:
    """δ·Σ re_n is the median of t_cmp + a times the number given; nothing to lose needs no δ."""
    assert scale_delta(3, [10, 20, 90], [1, 2, 3], [0.1, 0.2, 0.7]) == pytest.approx(3 * 22)
    assert scale_delta(3, [10, 20], [1, 2], [0, 0]) == 0


GOOD: dict[str, Any] = {
    "sizes": [1.0, 2.0],
    "seconds_per_share": [1.0, 2.0],
    "compute": [1.0, 2.0],
    "regularizer": [1.0, 2.0],
    "budget": 0.6,
    "most": 0.8,
    "delta": 1.0,
}


@pytest.mark.parametrize("solver", [allocate, allocate_lp])
@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("value", [-1.0, np.inf, np.nan])
def test_impossible_numbers_are_refused_by_name(solver: Any, name: str, value: float) -> None:
    listed = isinstance(GOOD[name], list)
    with pytest.raises(UserError) as error:
        solver(**GOOD | {name: [1.0, value] if listed else value})
    assert str(error.value).startswith(f"{name}[1]={value}; give " if listed else f"{name}={value}; give ")


@pytest.mark.parametrize(
    ("change", "saying"),
    [
        ({"sizes": [1.0, 0.0]}, r"^sizes\[1\]=0\.0; give a positive number"),
        ({"compute": [1.0]}, r"^compute has shape \(1,\); give one number per client, as many as sizes"),
        ({"sizes": []}, r"^sizes has shape \(0,\)"),
        ({"budget": 1.5}, "^budget=1.5; give a number from 0 to 1"),
        (
            {"budget": 0.1},
            r"^budget A=0\.1 leaves 0\.9 to be dropped, but D_max=0\.8 .* A of at least 0\.2 or D_max .* 0\.9\.$",
        ),
    ],
)
def test_what_cannot_be_solved_is_told(change: dict[str, Any], saying: str) -> None:
    for solver in (allocate, allocate_lp):
        with pytest.raises(UserError, match=saying):
            solver(**GOOD | change)


@pytest.mark.parametrize(
    ("change", "saying"),
    [
        ({"samples": [0, 0]}, "^samples are zero"),
        ({"losses": [1, np.nan]}, r"^losses\[1\]=nan"),
        ({"sizes": [0, 1]}, r"^sizes\[0\]=0"),
        ({"label_shares": [[1.0, 0.0]]}, r"^label_shares has shape \(1, 2\)"),
        ({"label_shares": [[1.0, 0.0], [0.5, 0.6]]}, r"^label_shares\[1\] is \[0\.5 0\.6\]"),
        ({"label_shares": [[1.0, 0.0], [-0.5, 1.5]]}, r"^label_shares\[1\]"),
        ({"label_shares": [[np.nan, 1.0], [1.0, 0.0]]}, r"^label_shares\[0\]"),
    ],
)
def test_impossible_regularizers_are_refused_by_name(change: dict[str, Any], saying: str) -> None:
    good = {"samples": [1, 2], "label_shares": [[1.0, 0.0], [0.5, 0.5]], "sizes": [1, 1], "losses": [1, 2]}
    with pytest.raises(UserError, match=saying):
        regularizers(**good | change)
