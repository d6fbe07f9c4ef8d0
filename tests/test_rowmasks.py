"""Laws of sums per row: exact where enough clients share a row, closed elsewhere, whoever is lost."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from fedslice.core.errors import Refused, UserError
from fedslice.privacy.ring import Ring
from fedslice.privacy.rowmasks import messages
from fedslice.privacy.rowmasks.client import RowClient
from fedslice.privacy.rowmasks.messages import RowSetup, RowVector
from fedslice.privacy.rowmasks.plain import plain_rows
from fedslice.privacy.rowmasks.server import RowServer
from fedslice.privacy.secagg.client import Client
from fedslice.privacy.secagg.graph import Graph
from fedslice.privacy.secagg.messages import Setup, Survivors, Vector, make_setup
from fedslice.privacy.secagg.plain import Lost, Outcome, plain_sum
from fedslice.privacy.secagg.server import Server

BITS = 13
VECTORS = {"values": RowVector(Ring(BITS), 3), "count": RowVector(Ring(8), 1)}


class Play:
    """One secure sum with rows, message by message, beside the sums without masks."""

    def __init__(self, named: list[list[int]], lost: Lost = Lost(), least: int = 2, seed: int = 0) -> None:  # noqa: B008
        size = len(named)
        draw = np.random.default_rng(seed)
        self.named = [np.array(sorted(own), np.int64) for own in named]
        self.setup = make_setup(1, bytes(16), size, {"x": Vector(Ring(9), 4)}, size // 2 + 1)
        self.rows = RowSetup("table", VECTORS, least)
        self.values = {
            name: [
                draw.integers(0, v.ring.largest, (len(own), v.width), np.uint64, True).astype(v.ring.dtype)
                for own in self.named
            ]
            for name, v in VECTORS.items()
        }
        self.x = np.ones((size, 4), np.uint16)
        self.lost = lost
        self.server = Server(self.setup)
        self.clients = [Client(self.setup, c) for c in range(size)]
        self.row_clients = [RowClient(self.rows, c, own) for c, own in zip(self.clients, self.named, strict=True)]
        self.received: list[Any] = []
        self.down = np.zeros(size, np.int64)
        self.up = {phase: np.zeros(size, np.int64) for phase in ("masked", "reveal")}

    def still(self, gone: frozenset[int]) -> list[int]:
        return [c for c in np.flatnonzero(self.server.live).tolist() if c not in gone]

    def begin(self) -> dict[int, messages.Sharing]:
        for c in self.still(self.lost.keys):
            self.server.take_keys(self.clients[c].advertise())
        rosters = self.server.close_keys()
        for c in self.still(self.lost.shares):
            self.server.take_shares(self.clients[c].share(rosters[c]))
        self.deliveries = self.server.close_shares()
        self.row_server = RowServer(self.rows, self.server, self.named)
        return self.row_server.share()

    def masked(self, sharing: dict[int, messages.Sharing], c: int) -> tuple[messages.MaskedRows, Any]:
        vectors = self.clients[c].mask(self.deliveries[c], {"x": self.x[c]})
        return self.row_clients[c].mask(sharing[c], {n: own[c] for n, own in self.values.items()}), vectors

    def finish(self) -> messages.RowSums:
        sharing = self.begin()
        for c, one in sharing.items():
            self.down[c] = one.nbytes
        for c in self.still(self.lost.masked):
            rows, vectors = self.masked(sharing, c)
            self.row_server.take_masked(rows)
            self.server.take_masked(vectors)
            self.received.append(rows)
            self.up["masked"][c] = rows.nbytes(self.rows)
        survivors = self.server.close_masked()
        for c in self.still(self.lost.reveal):
            shares = self.clients[c].reveal(survivors)
            rows = self.row_clients[c].reveal()
            self.row_server.take_revealed(rows)
            self.server.take_revealed(shares)
            self.received.append(rows)
            self.up["reveal"][c] = rows.nbytes(self.rows)
        self.server.finish()
        return self.row_server.finish()

    def plain(self) -> Any:
        return plain_rows(self.rows, self.named, self.values, plain_sum(self.setup, {"x": self.x}, self.lost))


def same(found: messages.RowSums, known: messages.RowSums) -> None:
    for name in ("rows", "sharers", "open", "few", "late", "stuck"):
        np.testing.assert_array_equal(getattr(found, name), getattr(known, name), err_msg=name)
    for name in VECTORS:
        np.testing.assert_array_equal(found.sums[name], known.sums[name], err_msg=name)


@st.composite
def plays(draw: Any) -> Play:
    size = draw(st.integers(3, 7))
    named = draw(st.lists(st.sets(st.integers(0, 11)), min_size=size, max_size=size))
    able = size - size // 2 - 1  # so many may be lost
    gone = draw(st.permutations(range(size)))[: draw(st.integers(0, able))]
    when = [draw(st.sampled_from((0, 1, 2, 2, 4, 4))) for _ in gone]
    lost = Lost(*(frozenset(c for c, at in zip(gone, when, strict=True) if at == phase) for phase in range(5)))
    return Play([sorted(own) for own in named], lost, draw(st.integers(2, 4)), draw(st.integers(0, 9)))


@given(plays())
@settings(max_examples=150, deadline=None)
def test_rows_are_summed_exactly_or_stay_closed(play: Play) -> None:
    found, known = play.finish(), play.plain()
    same(found, known.found)
    np.testing.assert_array_equal(play.down, known.down["shares"])
    for phase, size in play.up.items():
        np.testing.assert_array_equal(size, known.up[phase], err_msg=phase)
    alive = play.server.survivors.tolist()
    for row, count, opened in zip(found.rows.tolist(), found.sharers.tolist(), found.open.tolist(), strict=True):
        holders = [c for c in alive if row in play.named[c]]
        assert count == len(holders)
        assert not opened or count >= play.rows.least
        if opened:
            wanted = sum(play.values["values"][c][play.named[c] == row][0].astype(int) for c in holders)
            at = int(found.open[: np.searchsorted(found.rows, row)].sum())
            assert found.sums["values"][at].tolist() == (wanted % 2**BITS).tolist()
    np.testing.assert_array_equal(found.open | found.few | found.late | found.stuck, True)


@given(plays())
@settings(max_examples=30, deadline=None)
def test_a_client_keeps_what_the_server_has_not_learned(play: Play) -> None:
    found = play.finish()
    for c in np.flatnonzero(play.server.live).tolist():
        learned = dict(zip(found.rows.tolist(), (found.open | found.stuck).tolist(), strict=True))
        assert play.row_clients[c].kept.tolist() == [not learned[row] for row in play.named[c].tolist()]


def test_every_way_to_stay_closed() -> None:
    named = [[1, 2, 3], [1, 2, 3], [2, 3], [3, 4], [3], [3], [3]]
    play = Play(named, Lost(masked=frozenset({0}), reveal=frozenset({2})), least=2)
    found = play.finish()
    # 1: of clients 0 and 1 the first is lost; 2: client 2 should take its mask with client 0 off; 4: only client 3
    assert found.rows[found.late].tolist() == [1]
    assert found.rows[found.stuck].tolist() == [2, 3]
    assert found.rows[found.few].tolist() == [4]
    same(found, play.plain().found)


def chi(words: np.ndarray, bits: int) -> float:
    counts = np.bincount(words >> (bits - 6), minlength=64)
    mean = words.size / 64
    return float(((counts - mean) ** 2 / mean).sum())


def test_closed_rows_look_uniform_with_all_that_the_server_can_take_off() -> None:
    """Row by row: what is left of the sum where a row is late or stuck is a mask that nobody revealed."""
    rows = 3000
    late, stuck, opened = (list(range(first, first + rows)) for first in (0, rows, 2 * rows))
    named = [late + stuck + opened, late + opened, stuck + opened, stuck + opened, opened]
    play = Play(named, Lost(masked=frozenset({0}), reveal=frozenset({2})), least=2)
    for name, values in play.values.items():
        play.values[name] = [np.zeros_like(own) for own in values]
    play.lost = Lost(masked=frozenset({0}), reveal=frozenset({2}))
    found = play.finish()
    assert found.late.sum() == rows
    left = Ring(BITS).reduce(play.row_server._totals["values"])
    for closed in (found.late, found.stuck):
        assert closed.any()
        assert chi(left[closed].reshape(-1), BITS) < 63 + 6 * np.sqrt(2 * 63)
    assert not left[found.open].any()
    for message in play.received:
        if isinstance(message, messages.MaskedRows):
            words = message.vectors["values"].reshape(-1)
            assert chi(words, BITS) < 63 + 6 * np.sqrt(2 * 63)


def test_nothing_that_is_sent_depends_on_which_rows_have_values() -> None:
    """A client whose named rows miss all its own takes part with zeros, and looks like everyone else."""
    named = [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    with_values, zeros = Play(named, seed=1), Play(named, seed=1)
    for name in VECTORS:
        zeros.values[name][0] = np.zeros_like(zeros.values[name][0])
    a, b = with_values.finish(), zeros.finish()
    for one, other in zip(with_values.received, zeros.received, strict=True):
        assert type(one) is type(other)
        assert one.nbytes(with_values.rows) == other.nbytes(zeros.rows)
    np.testing.assert_array_equal(a.sharers, b.sharers)


def test_keys_are_revealed_where_all_rows_stay_open_and_sums_of_masks_elsewhere() -> None:
    play = Play([[1, 2], [1, 2], [1], [1, 2, 3], [3]], Lost(masked=frozenset({0})), least=2)
    play.finish()
    revealed = [one for one in play.received if isinstance(one, messages.RevealedRows)]
    assert [len(one.keys) for one in revealed] == [1, 1, 1, 0]
    play = Play([[1, 2], [1, 2], [1], [1, 3], [3]], Lost(masked=frozenset({0})), least=2)
    play.finish()
    revealed = [one for one in play.received if isinstance(one, messages.RevealedRows)]
    assert [len(one.keys) for one in revealed] == [0, 1, 1, 0]
    assert [len(one.masks["count"]) for one in revealed] == [1, 0, 0, 0]  # row 1 and not row 2


def test_masks_of_rows_follow_from_no_secret_that_is_shared() -> None:
    """With the mask key and the seed of a lost client the server has all that shares reveal of it."""

    def keys(channel: bytes) -> list[bytes]:
        setup = make_setup(0, bytes(16), 2, {})
        drawn = [[b"a" * 32, b"b" * 32, b"c" * 32], [b"d" * 32, channel, b"e" * 32]]  # mask key, channel key, seed
        clients = [
            Client(setup, c, entropy=lambda n, own=own: own.pop(0) if own else b"r" * n) for c, own in enumerate(drawn)
        ]
        server = Server(setup)
        for client in clients:
            server.take_keys(client.advertise())
        for c, roster in server.close_keys().items():
            server.take_shares(clients[c].share(roster))
        deliveries = server.close_shares()
        row_clients = [RowClient(RowSetup("t", VECTORS, 2), client, np.array([4])) for client in clients]
        for c, client in enumerate(clients):
            client.mask(deliveries[c], {})
        assert row_clients[0]._key(1) == row_clients[1]._key(0)
        return [row_clients[0]._key(1), clients[0]._mask_keys[1], clients[1].seed]

    first, second = keys(b"x" * 32), keys(b"y" * 32)
    assert first[1:] == second[1:]
    assert first[0] != second[0]


# --- refusals -------------------------------------------------------------------------------------------------------


def test_malformed_and_replayed_rows_are_refused_and_the_round_goes_on() -> None:
    play = Play([[1, 2]] * 4)
    sharing = play.begin()
    for flags in (np.ones((2, 4), np.bool_), np.ones((1, 3), np.bool_), np.ones((2, 3), np.uint8)):
        with pytest.raises(Refused, match="has flags of shape"):
            play.row_clients[0].mask(replace(sharing[0], flags=flags), {})
    with pytest.raises(Refused, match="belongs to another sum"):
        play.row_clients[0].mask(replace(sharing[0], context=b""), {})
    for c in range(4):
        rows, vectors = play.masked(sharing, c)
        one = rows.vectors["values"]
        for odd, reason in (
            ({**rows.vectors, "values": one[:1]}, r"of shape \(1, 3\), expected \(2, 3\)"),
            ({**rows.vectors, "values": one.astype(np.int64)}, "of shape"),
            ({**rows.vectors, "values": one | np.uint16(1 << 15)}, "elements of more than 13 bits"),
            ({"values": one}, r"has rows of \['values'\]"),
        ):
            with pytest.raises(Refused, match=reason):
                play.row_server.take_masked(replace(rows, vectors=odd))
        for odd_client in (-1, 4):
            with pytest.raises(Refused, match="does not take part"):
                play.row_server.take_masked(replace(rows, client=odd_client))
        play.row_server.take_masked(rows)
        with pytest.raises(Refused, match=f"comes from client {c} again"):
            play.row_server.take_masked(rows)
        play.server.take_masked(vectors)
        with pytest.raises(Refused, match="before shares are revealed"):
            play.row_clients[c].reveal()
        with pytest.raises(Refused, match="asks for rows a second time"):
            play.row_clients[c].mask(sharing[c], {})
    survivors = play.server.close_masked()
    for c in range(4):
        shares, rows = play.clients[c].reveal(survivors), play.row_clients[c].reveal()
        with pytest.raises(Refused, match=r"has keys of shape \(1, 16\), expected \(0, 16\)"):
            play.row_server.take_revealed(replace(rows, keys=np.zeros((1, 16), np.uint8)))
        play.row_server.take_revealed(rows)
        play.server.take_revealed(shares)
        with pytest.raises(Refused, match="a second time"):
            play.row_clients[c].reveal()
    play.server.finish()
    same(play.row_server.finish(), play.plain().found)


def test_malformed_recoveries_are_refused() -> None:
    play = Play([[1, 2], [1, 2], [1], [1, 3], [3]], Lost(masked=frozenset({0})), least=2)
    sharing = play.begin()
    for c in range(1, 5):
        rows, vectors = play.masked(sharing, c)
        play.row_server.take_masked(rows)
        play.server.take_masked(vectors)
    survivors = play.server.close_masked()
    play.clients[1].reveal(survivors)
    rows = play.row_clients[1].reveal()  # no key, and the sum of its masks at row 1
    masks = rows.masks
    for odd, reason in (
        ({"keys": np.zeros((1, 16), np.uint8)}, r"keys of shape \(1, 16\), expected \(0, 16\)"),
        ({"keys": np.zeros((0, 16), np.int64)}, "keys of shape"),
        ({"masks": {}}, r"has rows of \[\]"),
        ({"masks": {**masks, "values": masks["values"][:0]}}, r"'values' of shape \(0, 3\), expected \(1, 3\)"),
        ({"masks": {**masks, "values": masks["values"] | np.uint16(1 << 15)}}, "more than 13 bits"),
        ({"client": 0}, "comes from client 0, which does not take part"),
        ({"context": bytes(32)}, "belongs to another sum"),
    ):
        with pytest.raises(Refused, match=reason):
            play.row_server.take_revealed(replace(rows, **odd))
    play.row_server.take_revealed(rows)
    with pytest.raises(Refused, match="comes from client 1 again"):
        play.row_server.take_revealed(rows)


def test_rows_of_a_client_whose_vectors_are_refused_are_in_no_sum() -> None:
    play = Play([[1, 2]] * 4, Lost(masked=frozenset({3})))
    sharing = play.begin()
    for c in range(4):
        rows, vectors = play.masked(sharing, c)
        play.row_server.take_masked(rows)
        if c == 3:
            with pytest.raises(Refused):
                play.server.take_masked(replace(vectors, vectors={}))
        else:
            play.server.take_masked(vectors)
    survivors = play.server.close_masked()
    for c in range(3):
        shares = play.clients[c].reveal(survivors)
        play.row_server.take_revealed(play.row_clients[c].reveal())
        play.server.take_revealed(shares)
    play.server.finish()
    same(play.row_server.finish(), play.plain().found)


def test_a_server_that_names_sharers_who_are_none_learns_nothing_of_the_row() -> None:
    """Client 0 alone names row 5. It is told that two others do, so it sends the row, under masks that nobody adds."""
    play = Play([[5], [7], [7], [7]], least=3)
    sharing = play.begin()
    lie = replace(sharing[0], flags=np.array([[True, True, False]]))
    sent = play.row_clients[0].mask(lie, {n: own[0] for n, own in play.values.items()})
    play.clients[0].mask(play.deliveries[0], {"x": play.x[0]})
    survivors = np.ones(4, np.bool_)
    play.clients[0].reveal(Survivors(play.setup.context, survivors))
    revealed = play.row_clients[0].reveal()
    assert len(sent.vectors["values"]) == 1
    assert len(revealed.keys) == len(revealed.masks["values"]) == 0  # nor does it take them off


def test_rows_need_all_pairs_and_two_clients_at_least() -> None:
    setup = Setup(0, bytes(16), Graph(9, 4), 3, {})
    with pytest.raises(UserError, match="need the complete graph"):
        RowClient(RowSetup("t", VECTORS), Client(setup, 0), np.arange(3))
    with pytest.raises(UserError, match="need the complete graph"):
        RowServer(RowSetup("t", VECTORS), Server(setup), [np.arange(3)] * 9)
    with pytest.raises(UserError, match="least = 1: a sum over one client is its value"):
        RowSetup("t", VECTORS, 1)


def test_a_simulation_needs_no_masks_for_hundreds_of_clients() -> None:
    draw = np.random.default_rng(0)
    named = [np.flatnonzero(draw.random(4000) < 0.1) for _ in range(50)]
    values = {n: [v.ring.zeros((len(own), v.width)) + 1 for own in named] for n, v in VECTORS.items()}
    values = {n: [one.astype(VECTORS[n].ring.dtype) for one in own] for n, own in values.items()}
    everyone = np.arange(50)
    outcome = Outcome(sharers=everyone, survivors=everyone, revealers=everyone)
    found = plain_rows(RowSetup("t", VECTORS, 3), named, values, outcome).found
    np.testing.assert_array_equal(found.sums["count"][:, 0], found.sharers[found.open])
    assert 0 < found.few.sum() < 600
