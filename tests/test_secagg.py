"""Laws of secure aggregation: exact sums whoever is lost, and nothing else for the server."""

import itertools
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, hypergeom

pytest.importorskip("cryptography")

from fedslice.core.errors import UserError
from fedslice.privacy.ring import Ring
from fedslice.privacy.secagg import messages, prg, shares
from fedslice.privacy.secagg.client import Client, own_mask_key
from fedslice.privacy.secagg.graph import Graph, complete, sparse
from fedslice.privacy.secagg.keys import KeyPair, Signer, derive, seal, unseal
from fedslice.privacy.secagg.messages import Aborted, Setup, Vector, make_setup
from fedslice.privacy.secagg.plain import Lost, plain_sum
from fedslice.privacy.secagg.play import play

SESSION = bytes(range(16))


def setup_of(size: int, threshold: int | None = None, bits: int = 11, length: int = 5, **more: Any) -> Setup:
    return make_setup(3, SESSION, size, {"x": Vector(Ring(bits), length)}, threshold, **more)


def drawn(setup: Setup, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        name: draw.integers(0, vector.ring.largest, (setup.size, vector.length), np.uint64, True).astype(
            vector.ring.dtype
        )
        for name, vector in setup.vectors.items()
    }


def expected(setup: Setup, vectors: dict[str, Any], clients: Any) -> dict[str, list[int]]:
    """The sums in Python's whole numbers."""
    return {
        name: [sum(map(int, column)) % (vector.ring.largest + 1) for column in vectors[name][clients].T]
        for name, vector in setup.vectors.items()
    }


def both(setup: Setup, vectors: dict[str, Any], lost: Lost, **more: Any) -> Any:
    """What the protocol gives, which is what the sum without masks gives; none if both abort alike."""
    try:
        known = plain_sum(setup, vectors, lost)
    except Aborted as aborted:
        with pytest.raises(Aborted, match=f"^{re.escape(str(aborted))}$"):
            play(setup, vectors, lost, **more)
        return None
    played = play(setup, vectors, lost, **more)
    np.testing.assert_array_equal(played.survivors, known.survivors)
    for name in setup.vectors:
        np.testing.assert_array_equal(played.sums[name], known.sums[name])
        assert played.sums[name].dtype == known.sums[name].dtype
    for mine, theirs in ((played.up, known.up), (played.down, known.down)):
        assert list(mine) == [name for name in mine if name in theirs]
        assert mine.keys() == theirs.keys()
        for phase, size in mine.items():
            np.testing.assert_array_equal(size, theirs[phase], err_msg=phase)
    return played


def losses(when: Any) -> Lost:
    """Clients' phases of loss, -1 for those that stay."""
    return Lost(*(frozenset(c for c, at in enumerate(when) if at == phase) for phase in range(5)))


# --- sums -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "threshold"), [(2, 2), (3, 2), (4, 3)])
def test_the_sum_is_exact_for_every_set_of_lost_clients(size: int, threshold: int) -> None:
    setup = setup_of(size, threshold)
    vectors = drawn(setup)
    done = 0
    for when in itertools.product((-1, 0, 1, 2, 4), repeat=size):
        played = both(setup, vectors, losses(when))
        assert (played is None) == (when.count(-1) < threshold)  # it aborts where too few remain, and nowhere else
        if played is not None:
            arrived = [client for client, at in enumerate(when) if at in (-1, 4)]
            assert played.survivors.tolist() == arrived
            assert {n: v.tolist() for n, v in played.sums.items()} == expected(setup, vectors, arrived)
            done += 1
    assert done


@st.composite
def cohorts(draw: Any) -> tuple[Setup, Lost, int, bool]:
    signed = draw(st.booleans())
    size = draw(st.integers(2, 9))
    vectors = {
        name: Vector(Ring(draw(st.integers(1, 64))), draw(st.integers(0, 40)))
        for name in draw(st.sampled_from(["x", "xy"]))
    }
    identities = tuple(signer.public for signer in signers(size)) if signed else None
    setup = make_setup(0, SESSION, size, vectors, draw(st.integers(size // 2 + 1, size)), identities=identities)
    if setup.threshold < 2:
        setup = replace(setup, threshold=2)
    if size > 5 and not signed and draw(st.booleans()):
        setup = replace(setup, graph=Graph(size, 4, 7), threshold=draw(st.integers(3, 5)))
    when = draw(st.lists(st.sampled_from([-1] * 8 + [0, 1, 2, 3, 4]), min_size=size, max_size=size))
    return setup, losses(when), draw(st.integers(0, 99)), signed


def signers(size: int) -> list[Signer]:
    return [Signer(bytes([client] * 32)) for client in range(size)]


@given(cohorts())
@settings(max_examples=150, deadline=None)
def test_protocol_and_plain_sum_agree_to_the_bit(cohort: tuple[Setup, Lost, int, bool]) -> None:
    setup, lost, seed, signed = cohort
    vectors = drawn(setup, seed)
    played = both(setup, vectors, lost, signers=signers(setup.size) if signed else None, threads=1 + seed % 2)
    if played is not None:
        assert {n: v.tolist() for n, v in played.sums.items()} == expected(setup, vectors, played.survivors)


def test_long_vectors_are_summed_piece_by_piece() -> None:
    setup = make_setup(0, SESSION, 3, {"x": Vector(Ring(22), 150_001), "y": Vector(Ring(40), 33_000)})
    assert both(setup, drawn(setup), Lost(masked=frozenset({1})), threads=2) is not None


def test_a_cohort_of_200_needs_38_neighbours_each() -> None:
    setup = make_setup(0, SESSION, 200, {"x": Vector(Ring(20), 10)})
    assert (setup.graph.degree, setup.threshold) == (38, 20)
    lost = Lost(keys=frozenset(range(5)), masked=frozenset(range(50, 60)), reveal=frozenset(range(100, 105)))
    assert both(setup, drawn(setup), lost) is not None


# --- what the server received ---------------------------------------------------------------------------------------


def uniform(words: Any, bits: int) -> bool:
    """A chi-square test of the lowest bits at a level of 10^-6."""
    cells = np.bincount((words & ((1 << min(bits, 8)) - 1)).astype(np.int64), minlength=1 << min(bits, 8))
    mean = words.size / len(cells)
    return bool(((cells - mean) ** 2 / mean).sum() < chi2.isf(1e-6, len(cells) - 1))


def test_only_masked_vectors_depend_on_the_clients_values_and_they_look_uniform() -> None:
    setup = setup_of(5, bits=22, length=20_000)
    ring = Ring(22)
    lost = Lost(masked=frozenset({0}), reveal=frozenset({3}))
    zeros = {"x": ring.zeros((5, 20_000))}
    ones = {"x": ring.zeros((5, 20_000)) + np.uint32(1)}
    first = play(setup, zeros, lost, entropy=random.Random(1).randbytes)
    second = play(setup, ones, lost, entropy=random.Random(1).randbytes)
    assert len(first.received) == len(second.received) == 5 + 5 + 4 + 3
    for a, b in zip(first.received, second.received, strict=True):
        for name, value in vars(a).items():
            other = getattr(b, name)
            if name == "vectors":
                assert uniform(value["x"], 22)
                assert not np.array_equal(value["x"], other["x"])
                np.testing.assert_array_equal(ring.reduce(other["x"] - value["x"]), 1)
            else:
                assert np.array_equal(value, other), f"{type(a).__name__}.{name} depends on a client's vector"
    assert not first.sums["x"].any()
    assert (second.sums["x"] == 4).all()


def test_all_that_the_server_can_take_off_leaves_single_vectors_uniform() -> None:
    """With the survivors' seeds and the lost clients' keys: pairwise masks among survivors stay on."""
    setup = setup_of(4, bits=16, length=50_000)
    vectors = {"x": Ring(16).zeros((4, 50_000))}
    made = random.Random(5)
    clients = [Client(setup, c, entropy=made.randbytes) for c in range(4)]
    played = play(setup, vectors, entropy=random.Random(5).randbytes)
    masked = [one for one in played.received if isinstance(one, messages.Masked)]
    for client, message in zip(clients, masked, strict=True):
        left = message.vectors["x"].copy()
        assert uniform(left, 16)
        prg.add_streams({0: left}, [(own_mask_key(client.seed), -1)])
        assert left.any()
        assert uniform(left, 16)
    total = np.zeros_like(left)
    for client, message in zip(clients, masked, strict=True):
        np.add(total, message.vectors["x"], out=total)
        prg.add_streams({0: total}, [(own_mask_key(client.seed), -1)])
    assert not total.any()  # and only in their sum they cancel


def test_two_rounds_that_differ_in_one_client_differ_by_its_vector() -> None:
    """What the method does not hide: the difference of two sums is a sum too, here over one client."""
    setup = setup_of(4)
    vectors = drawn(setup)
    with_it, without = play(setup, vectors), play(setup, vectors, Lost(masked=frozenset({2})))
    np.testing.assert_array_equal(Ring(11).reduce(with_it.sums["x"] - without.sums["x"]), vectors["x"][2])


def test_no_two_sums_use_a_mask_twice() -> None:
    setup = setup_of(3, length=100)
    vectors = {"x": Ring(11).zeros((3, 100))}
    runs = [play(setup, vectors).received for _ in range(2)]
    sent = [one.vectors["x"].tobytes() for run in runs for one in run if isinstance(one, messages.Masked)]
    keys = [key for run in runs for one in run if isinstance(one, messages.Keys) for key in (one.mask_key,)]
    assert len(set(sent)) == len(set(keys)) == 6


# --- the pieces -----------------------------------------------------------------------------------------------------


@given(st.integers(2, 12), st.data())
@settings(max_examples=50, deadline=None)
def test_any_threshold_of_shares_combine_and_fewer_say_nothing(size: int, data: Any) -> None:
    threshold = data.draw(st.integers(2, size))
    texts = [data.draw(st.binary(min_size=32, max_size=32)) for _ in range(2)]
    points = np.arange(1, size + 1)
    made = shares.split(texts, points, threshold, random.Random(1).randbytes)
    some = np.array(data.draw(st.permutations(range(size)))[:threshold])
    assert shares.combine(points[some], made[some]) == texts
    # with any threshold - 1 shares each secret is possible: some polynomial goes through them and the secret
    fewer, other = some[1:], shares.split([bytes(32)] * 2, points, threshold, random.Random(2).randbytes)
    through = np.concatenate([other[some[:1]], made[fewer]])
    limbs = shares._product(shares._weights(points[some])[None], through.reshape(threshold, -1).astype(np.uint64))
    assert limbs.max() < shares.PRIME


def test_shares_alone_are_uniform_whatever_the_secret_is() -> None:
    texts = [bytes(32), b"\xff" * 32] * 1000
    made = shares.split(texts, np.array([1, 2]), 2, random.Random(3).randbytes)
    for holder in made:
        for secret in (holder[::2], holder[1::2]):
            assert uniform(secret.reshape(-1) >> 23, 8)


def test_low_threshold_shares_of_the_field_cover_all_of_it() -> None:
    drawn_twice = iter([b"\xff\xff\xff\x7f" * 9, b"\x01\x00\x00\x00" * 9])  # the prime itself is drawn again
    made = shares._uniform(9, lambda count: next(drawn_twice)[:count])
    assert made.tolist() == [1] * 9


def test_agreement_is_mutual_and_other_contexts_give_other_keys() -> None:
    a, b = KeyPair(bytes(range(32))), KeyPair(bytes(range(1, 33)))
    assert a.agree(b.public, b"c") == b.agree(a.public, b"c") != a.agree(b.public, b"d")
    assert unseal(bytes(32), 3, seal(bytes(32), 3, b"text", b"c"), b"c") == b"text"


def test_key_derivation_is_that_of_rfc_5869() -> None:
    """Its test case 3: no salt, no info."""
    okm = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert derive(b"\x0b" * 22, b"", 42).hex() == okm


@given(st.integers(0, 2**31 - 1), st.integers(1, 64), st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_streams_of_vectors_and_of_rows_are_the_same_function(field: int, bits: int, length: int) -> None:
    ring, key = Ring(bits), bytes(range(16))
    total = ring.zeros(length)
    prg.add_streams({field: total}, [(key, 1)])
    np.testing.assert_array_equal(prg.row_stream(key, field, np.array([0]), length, ring)[0], total)
    prg.add_streams({field: total}, [(key, -1)])
    assert not total.any()
    rows = np.array([0, 1, 2**33, 5])
    made = prg.row_stream(key, field, rows, length, ring)
    np.testing.assert_array_equal(prg.row_stream(key, field, rows[[2, 0]], length, ring), made[[2, 0]])


def test_streams_do_not_overlap_between_fields_rows_and_keys() -> None:
    ring = Ring(64)
    words = [
        word
        for key in (bytes(16), bytes([1] * 16))
        for field in (0, 1)
        for row in prg.row_stream(key, field, np.arange(20), 8, ring)
        for word in row
    ]
    words += [word for key in prg.row_keys(bytes(16), np.arange(20)) for word in key.view(np.uint64)]
    assert len(set(words)) == len(words)


# --- neighbours -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [Graph(7, 6), Graph(7, 2, 1), Graph(30, 8, 2), Graph(31, 30, 3)])
def test_neighbours_are_mutual_and_as_many_as_said(graph: Graph) -> None:
    around = [set(graph.neighbours(client).tolist()) for client in range(graph.size)]
    for client, near in enumerate(around):
        assert len(near) == graph.degree
        assert client not in near
        assert all(client in around[other] for other in near)


def test_degrees_grow_like_the_logarithm_and_hold_their_bounds() -> None:
    sizes = (150, 300, 1000, 3000)
    made = [sparse(size, 0) for size in sizes]
    degrees = [graph.degree for graph, _ in made]
    assert degrees == sorted(degrees)
    assert degrees[-1] < 2 * degrees[0]
    for size, (graph, threshold) in zip(sizes, made, strict=True):
        bad = -(-size // 10)
        near, half = graph.degree, graph.degree // 2
        assert threshold > (near + 1) // 2
        assert size * hypergeom.sf(threshold - 1, size - 1, bad, near) <= 2**-41
        assert size * hypergeom.sf(near - threshold, size - 1, bad, near) <= 2**-30
        run = np.prod([(2 * bad - i) / (size - i) for i in range(half)])  # half in a row missing
        assert size * run <= 2**-41


def test_a_sparse_graph_without_many_clients_stays_connected() -> None:
    graph, _ = sparse(300, 5, lost=0.2)
    for seed in range(20):
        left = set(np.random.default_rng(seed).permutation(300)[:210].tolist())  # a tenth corrupt, a fifth lost
        seen, front = set(), [next(iter(left))]
        while front:
            client = front.pop()
            if client not in seen:
                seen.add(client)
                front += [int(v) for v in graph.neighbours(client) if int(v) in left]
        assert seen == left


@pytest.mark.parametrize("threshold", [0, 1, 2, 5, -3])
def test_an_unsafe_threshold_is_refused(threshold: int) -> None:
    with pytest.raises(UserError, match=f"threshold {threshold} of 4 clients is not safe; expected more than half"):
        complete(4, threshold)


def test_a_cohort_of_one_is_refused() -> None:
    with pytest.raises(UserError, match="not safe"):
        setup_of(1)


def test_signed_keys_need_all_pairs() -> None:
    identities = tuple(signer.public for signer in signers(6))
    with pytest.raises(UserError, match="signed keys need the complete graph"):
        Setup(0, SESSION, Graph(6, 4), 3, {}, identities)
    assert make_setup(0, SESSION, 6, {}, identities=identities).graph.complete
