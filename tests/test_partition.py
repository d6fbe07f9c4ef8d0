"""Laws of every way to spread samples over clients."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedslice.core.errors import UserError
from fedslice.data.ways import LEAST, PER_CLASS, WAYS, held_out, partition, shards
from layouts import one_sentence

Ints = NDArray[np.int64]


def labels(samples: int, classes: int = 10, seed: int = 0) -> Ints:
    """Labels in random order, each class about as often."""
    return np.random.default_rng(seed).permutation(np.arange(samples) % classes)


def table(owner: Ints, label: Ints, clients: int) -> Ints:
    """Samples by client and class."""
    used = owner >= 0
    counts = np.zeros((clients, 10), np.int64)
    np.add.at(counts, (owner[used], label[used]), 1)
    return counts


@given(
    way=st.sampled_from(WAYS),
    label=st.lists(st.integers(0, 9), min_size=1, max_size=400).map(lambda values: np.array(values, np.int64)),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**62),
    beta=st.floats(0.001, 100),
    classes=st.integers(1, 10),
)
@settings(deadline=None)
@patch("fedslice.data.ways.REDRAWS", 20)
def test_any_request_gives_everyone_a_sample_or_a_sentence(
    way: str, label: Ints, clients: int, seed: int, beta: float, classes: int
) -> None:
    try:
        owner = partition(way, label, clients, seed, beta, classes)
    except UserError:
        if way == "iid" and clients <= len(label):
            raise
        one_sentence(partition, way, label, clients, seed, beta, classes)
        return
    assert owner.shape == label.shape
    assert set(owner.tolist()) - {-1} == set(range(clients)), "every client has a sample, and there are no others"
    assert np.array_equal(owner, partition(way, label, clients, seed, beta, classes))
    if way in ("iid", "dirichlet", "pfl-dirichlet"):
        assert owner.min() == 0, "all samples are used"
    if way == "pfl-dirichlet":
        assert np.bincount(owner).min() >= min(LEAST, len(label) // (2 * clients))


@given(seed=st.integers(0, 2**62), clients=st.integers(1, 30), samples=st.integers(600, 900))
@settings(deadline=None, max_examples=40)
def test_counts_are_equal_where_they_should_be(seed: int, clients: int, samples: int) -> None:
    label = labels(samples, seed=seed % 1000)
    sizes = table(partition("iid", label, clients, seed), label, clients).sum(1)
    assert sizes.max() - sizes.min() <= 1
    for way, fewest, most in (("non-iid-a", 2, 10), ("non-iid-b", 3, 3)):
        counts = table(partition(way, label, clients, seed), label, clients)
        held = (counts > 0).sum(1)
        assert len(set(counts.sum(1))) == 1
        assert fewest <= held.min() <= held.max() <= most
        for row in counts:
            own = row[row > 0]
            assert own.max() - own.min() <= 1, "a client's samples are spread evenly over its classes"


@given(seed=st.integers(0, 2**62), clients=st.integers(1, 30), classes=st.integers(1, 10))
@settings(deadline=None, max_examples=40)
def test_shards_of_a_class_are_equal_and_use_all_of_it(seed: int, clients: int, classes: int) -> None:
    label = labels(700)
    counts = table(partition("pathological", label, clients, seed, classes=classes), label, clients)
    assert ((counts > 0).sum(1) == classes).all()
    for column in counts.T:
        shards = column[column > 0]
        if len(shards):
            assert shards.sum() == 70
            assert shards.max() - shards.min() <= 1


def test_equal_counts_are_as_large_as_the_classes_allow() -> None:
    """Fractions of samples would allow min over classes of size / demand; whole ones are off by one per holder."""
    label = labels(2003)
    sizes = np.bincount(label)
    for seed in range(10):
        counts = table(partition("non-iid-a", label, 9, seed), label, 9)
        held = counts > 0
        demand, holders = (held / held.sum(1, keepdims=True)).sum(0), held.sum(0)
        asked = holders > 0
        found, sizes_of = counts[0].sum(), sizes[asked]
        assert found >= np.floor(((sizes_of - holders[asked]) / demand[asked]).min())
        assert found <= ((sizes_of + holders[asked]) / demand[asked]).min()
    label = labels(300)  # 30 of each class, three holders each: nothing is left over
    assert table(partition("non-iid-b", label, 10, 0), label, 10).sum(1).tolist() == [30] * 10


def test_rare_classes_are_rare() -> None:
    label = np.concatenate([np.full(500 + 10 * one, one) for one in range(10)])
    counts = table(partition("imbalanced", label, 20, 0), label, 20)
    assert counts.sum(0).tolist() == [212] * 3 + [530] * 7, "class 3 has the fewest of the common ones, 530"
    assert ((counts > 0).sum(1) == 3).all()
    scarce = np.concatenate([np.full(40 if one == 1 else 500, one) for one in range(10)])
    counts = table(partition("imbalanced", scarce, 20, 0), scarce, 20)
    assert counts.sum(0).tolist() == [40] * 3 + [100] * 7, "here a rare class decides"


def test_classes_are_in_equal_demand_and_random() -> None:
    label = labels(60_000)
    seen = np.zeros(10)
    for seed in range(30):
        held = table(partition("non-iid-b", label, 100, seed), label, 100) > 0
        assert held.sum(0).tolist() == [30] * 10
        seen += held[0]
    assert (seen > 0).all(), "the first client does not always hold the same"
    counts = table(partition("non-iid-a", label, 100, 0), label, 100)
    assert counts.sum() > 0.95 * len(label)
    assert len(set((counts > 0).sum(1))) == 9, "from 2 to 10 classes, all of which occur among 100 clients"


def test_dirichlet_is_even_for_a_large_beta_and_uneven_for_a_small_one() -> None:
    label = labels(10_000)
    even = table(partition("dirichlet", label, 10, 0, beta=1e6), label, 10)
    assert abs(even - 100).max() <= 2
    shares = [table(partition("dirichlet", label, 10, 0, beta=b), label, 10).max(0).mean() for b in (10, 1, 0.1)]
    assert 100 < shares[0] < shares[1] < shares[2] < 1000


def test_dirichlet_gives_no_more_to_who_has_its_fair_number() -> None:
    label = labels(5000)
    for row in table(partition("dirichlet", label, 20, 0, beta=0.1), label, 20):
        last = np.flatnonzero(row)[-1]
        assert row[:last].sum() < 5000 / 20, "classes are given out in order, and it still got some of this one"


def test_dirichlet_shares_have_the_right_mean_square() -> None:
    """Of the first class, whose shares nobody's fullness has cut yet: E Σp² = (β + 1) / (βN + 1)."""
    label, beta, clients = labels(5000), 0.5, 20
    squares = [
        np.square(table(partition("dirichlet", label, clients, seed, beta), label, clients)[:, 0] / 500).sum()
        for seed in range(200)
    ]
    assert np.mean(squares) == pytest.approx((beta + 1) / (beta * clients + 1), rel=0.08)


def test_pfl_dirichlet_gives_everyone_the_minimum_and_is_else_the_same_law() -> None:
    label = labels(4000)
    for seed in range(20):
        sizes = table(partition("pfl-dirichlet", label, 20, seed, beta=0.2), label, 20).sum(1)
        assert sizes.sum() == 4000
        assert sizes.min() >= LEAST
    plain = [table(partition("dirichlet", label, 20, seed, beta=0.2), label, 20).sum(1).min() for seed in range(20)]
    assert min(plain) < LEAST, "which is not so by itself"
    few = table(partition("pfl-dirichlet", labels(400), 20, 0, beta=1.0), labels(400), 20).sum(1)
    assert 10 <= few.min() < LEAST, "half of the fair number, where that is less"


@pytest.mark.parametrize(("samples", "classes", "each"), [(2000, 10, 2), (4000, 100, 10), (6000, 200, 20)])
def test_pfl_pathological_at_the_sizes_of_the_paper(samples: int, classes: int, each: int) -> None:
    """FLSS, 4.1: 20 clients with 2 of 10, 10 of 100 and 20 of 200 classes; here it comes out even."""
    label = labels(samples, classes)
    owner = partition("pfl-pathological", label, 20, 1, classes=each)
    counts = np.zeros((20, classes), np.int64)
    np.add.at(counts, (owner, label), 1)
    assert counts.sum() == samples, "all are used"
    assert ((counts > 0).sum(1) == each).all()
    assert ((counts > 0).sum(0) == 20 * each // classes).all()
    share = samples // classes // (20 * each // classes)
    for column in counts.T:
        own = column[column > 0]
        assert (own >= share // 10).all()
        assert (own[:-1] <= share).all(), "the last one has what is left"
    assert counts[counts > 0].std() > 0.2 * share, "and they are far from equal"


@given(seed=st.integers(0, 2**62), clients=st.integers(1, 30), classes=st.integers(1, 10))
@settings(deadline=None, max_examples=40)
def test_pfl_pathological_serves_clients_in_turn(seed: int, clients: int, classes: int) -> None:
    """The groups of holders are blocks of so many clients, each with its classes, until one or the other runs out."""
    label = labels(700)
    counts = table(partition("pfl-pathological", label, clients, seed, classes=classes), label, clients)
    many = -(-clients * classes // 10)
    for one in range(10):
        block = one // classes
        assert np.flatnonzero(counts[:, one]).tolist() == list(range(clients))[block * many : (block + 1) * many]
        if counts[:, one].any():
            assert counts[:, one].sum() == 70


@given(
    sizes=st.lists(st.integers(0, 30).filter(lambda size: size != 1), min_size=1, max_size=8).filter(any),
    seed=st.integers(0, 2**62),
)
@settings(deadline=None, max_examples=40)
def test_of_each_client_a_quarter_is_held_out(sizes: list[int], seed: int) -> None:
    owner = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    test = held_out(owner, seed)
    trained = np.bincount(owner[~test], minlength=len(sizes)).tolist()
    assert trained == [size * 3 // 4 for size in sizes]
    assert np.array_equal(test, held_out(owner, seed))


def test_every_sample_is_as_likely_to_be_held_out() -> None:
    owner = np.arange(40) % 2
    often = np.mean([held_out(owner, seed) for seed in range(2000)], axis=0)
    assert np.abs(often - 0.25).max() < 0.05
    told = one_sentence(held_out, np.array([0, 0, 1, 2, 2]), 0)
    assert told.startswith("client 1 has 1 sample, expected at least 2 where a quarter of each client's is held out")


def test_seeds_differ_and_so_do_ways() -> None:
    label = labels(3000)
    drawn = [partition(way, label, 10, seed, classes=3) for way in WAYS for seed in (0, 1)]
    for at, one in enumerate(drawn):
        assert not any(np.array_equal(one, other) for other in drawn[:at])


def test_shards_at_the_size_of_the_published_code() -> None:
    """FDRL: 50 clients with two shards of ten classes: 500 training and 200 test samples for each of them."""
    label, tested = labels(60_000), labels(10_000, seed=1)
    whole, test = shards(label, tested, 50, 0, classes=2, most=1000)
    assert np.bincount(whole[whole >= 0]).tolist() == [1000] * 50
    assert np.bincount(test).tolist() == [200] * 50, "every test sample belongs to one client"
    for one in range(10):
        used = np.flatnonzero(label == one)
        assert (whole[used[:PER_CLASS]] >= 0).all()
        assert (whole[used[PER_CLASS:]] == -1).all()
        for part, mine in ((whole, used[:PER_CLASS]), (test, np.flatnonzero(tested == one))):
            assert np.count_nonzero(np.diff(part[mine])) <= 9, "ten shards, each the neighbours in the file"
    assert np.array_equal(table(whole, label, 50), 5 * table(test, tested, 50)), "tested on what it is trained on"
    assert set((table(whole, label, 50) > 0).sum(1)) == {1, 2}, "some get two shards of one class"
    few, same = shards(label, tested, 50, 0, classes=2, most=500)
    assert np.array_equal(same, test)
    assert np.bincount(few[few >= 0]).tolist() == [500] * 50
    assert (few[few >= 0] == whole[few >= 0]).all(), "half of the same samples"
    first = table(few, label, 50)[(table(whole, label, 50) > 0).sum(1) == 2]
    assert 200 < first[first > 0].min() < 250, "drawn at random from both shards"


@given(
    label=st.lists(st.integers(0, 9), min_size=1, max_size=300).map(lambda values: np.array(values, np.int64)),
    tested=st.lists(st.integers(0, 9), max_size=100).map(lambda values: np.array(values, np.int64)),
    clients=st.integers(1, 12),
    classes=st.integers(1, 5),
    most=st.integers(1, 40),
    seed=st.integers(0, 2**62),
)
@settings(deadline=None)
def test_any_shards_give_everyone_a_sample_or_a_sentence(
    label: Ints, tested: Ints, clients: int, classes: int, most: int, seed: int
) -> None:
    request = (label, tested, clients, seed, classes, most)
    try:
        owner, test = shards(*request)
    except UserError:
        one_sentence(shards, *request)
        return
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    assert 1 <= sizes.min() <= sizes.max() <= most
    assert set(test.tolist()) <= set(range(-1, clients))
    whole = shards(*request[:-1], most=len(label))[0]
    counts = table(whole, label, clients)
    assert (counts > 0).sum(1).max() <= classes
    assert not table(test, tested, clients)[:, np.bincount(label, minlength=10) == 0].any()
    assert not (table(test, tested, clients)[counts.sum(1) == 0]).any()
    assert all(np.array_equal(one, again) for one, again in zip((owner, test), shards(*request), strict=True))


def test_shards_differ_by_seed_and_need_a_sample_each() -> None:
    label = labels(400)
    assert not np.array_equal(shards(label, label, 10, 0, 2, 500)[0], shards(label, label, 10, 1, 2, 500)[0])
    for request, saying in (
        ((label, label, 401, 0, 2, 500), "clients=401 for 400 samples"),
        ((label, label, 10, 0, 11, 500), "partition=shards with 11 classes per client, expected at most the 10"),
        ((label, label, 400, 0, 2, 500), "a class has 40 samples and up to 80 clients hold one class"),
    ):
        assert saying in one_sentence(shards, *request)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "clients": ({"way": "iid", "clients": 51}, "clients=51 for 50 samples, expected from 1 to one per sample"),
    "nobody": ({"way": "iid", "clients": 0}, "clients=0 for 50 samples"),
    "classes": ({"way": "pathological", "classes": 6}, "6 classes per client, expected at most the 5"),
    "shards": ({"way": "pathological", "clients": 50, "classes": 5}, "a class has 10 samples and up to 50 clients"),
    "thinned": ({"way": "imbalanced", "clients": 40}, "samples and up to 24 clients hold one class"),
    "equal counts": ({"way": "non-iid-b", "clients": 40}, "a class has 10 samples and up to 24 clients hold"),
    "beta": (
        {"way": "dirichlet", "clients": 40, "beta": 0.01},
        "beta=0.01 left some of 40 clients with fewer than 1 sample in each of 20 draws from 50 samples; give a larger",
    ),
    "minimum": (
        {"way": "pfl-dirichlet", "clients": 8, "beta": 0.01},
        "partition=pfl-dirichlet with beta=0.01 left some of 8 clients with fewer than 3 samples in each of 20 draws",
    ),
    "classes in turn": ({"way": "pfl-pathological", "classes": 6}, "6 classes per client, expected at most the 5"),
    "samples in turn": (
        {"way": "pfl-pathological", "clients": 50, "classes": 5},
        "a class has 10 samples and up to 50 clients",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@patch("fedslice.data.ways.REDRAWS", 20)
def test_what_cannot_be_is_told(case: str) -> None:
    options, saying = REFUSED[case]
    request = {"label": labels(50, 5), "clients": 5, "seed": 0, **options}
    assert saying in one_sentence(lambda: partition(**request))


def test_an_unknown_way_is_told() -> None:
    told = one_sentence(partition, "non-iid", labels(50), 5, 0, ends=("?",))
    assert told.startswith("unknown partition 'non-iid'; did you mean 'non-iid-")
