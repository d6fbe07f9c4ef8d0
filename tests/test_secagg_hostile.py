"""Hostile messages in secure aggregation: refused, and the sum goes on or ends with a sentence."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from fedslice.core.errors import Refused
from fedslice.privacy.ring import Ring
from fedslice.privacy.secagg import messages
from fedslice.privacy.secagg.client import Client
from fedslice.privacy.secagg.graph import Graph
from fedslice.privacy.secagg.keys import Signer, seal
from fedslice.privacy.secagg.messages import Aborted, Setup, Vector, make_setup
from fedslice.privacy.secagg.server import Server

P = 2**255 - 19
# RFC 7748, section 6.1, and its list of points whose multiples are few: of order 1, 2, 4 and 8, and as 255 or 256 bits
LOW = [
    0,
    1,
    P - 1,
    P,
    P + 1,
    0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
]
RING = Ring(12)


class Cohort:
    """A server and its clients, phase by phase."""

    def __init__(self, size: int = 5, threshold: int | None = None, signed: bool = False, session: int = 0) -> None:
        self.signers = [Signer(bytes([c + 1] * 32)) for c in range(size)] if signed else None
        self.setup = make_setup(
            4,
            bytes([session] * 16),
            size,
            {"x": Vector(RING, 6)},
            threshold,
            identities=tuple(signer.public for signer in self.signers) if self.signers else None,
        )
        self.server = Server(self.setup)
        self.clients = [Client(self.setup, c, self.signers[c] if self.signers else None) for c in range(size)]
        self.vectors = [RING.reduce(np.arange(6, dtype=np.uint16) * (c + 7)) for c in range(size)]
        self.out: dict[str, list[Any]] = {}

    def keys(self) -> list[messages.Keys]:
        return [client.advertise() for client in self.clients]

    def after_keys(self) -> dict[int, messages.Roster]:
        for message in self.keys():
            self.server.take_keys(message)
        return self.server.close_keys()

    def shares(self) -> list[messages.Shares]:
        rosters = self.after_keys()
        return [self.clients[c].share(roster) for c, roster in rosters.items()]

    def after_shares(self) -> dict[int, messages.Delivery]:
        for message in self.shares():
            self.server.take_shares(message)
        return self.server.close_shares()

    def masked(self, without: tuple[int, ...] = ()) -> list[messages.Masked]:
        deliveries = self.after_shares()
        sent = [c for c in deliveries if c not in without]
        return [self.clients[c].mask(deliveries[c], {"x": self.vectors[c]}) for c in sent]

    def after_masked(self, without: tuple[int, ...] = ()) -> messages.Survivors:
        for message in self.masked(without):
            self.server.take_masked(message)
        return self.server.close_masked()

    def revealed(self, without: tuple[int, ...] = ()) -> list[messages.Revealed]:
        survivors = self.after_masked(without)
        agreement = None
        if self.setup.signed:
            for c in np.flatnonzero(survivors.flags).tolist():
                self.server.take_check(self.clients[c].check(survivors))
            agreement = self.server.close_check()
        return [self.clients[c].reveal(survivors, agreement) for c in np.flatnonzero(survivors.flags).tolist()]

    def total(self, *clients: int) -> list[int]:
        return RING.reduce(sum(self.vectors[c] for c in clients)).tolist()


def encoded(point: int, top: bool = False) -> bytes:
    return (point | (top << 255)).to_bytes(32, "little")


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mask_key", "channel_key"])
@pytest.mark.parametrize("point", LOW)
@pytest.mark.parametrize("top", [False, True])
def test_keys_of_low_order_are_refused_by_the_server_and_by_clients(point: int, top: bool, name: str) -> None:
    low, cohort = encoded(point, top), Cohort()
    keys = cohort.keys()
    with pytest.raises(Refused, match="public key of low order"):
        cohort.server.take_keys(replace(keys[0], **{name: low}))
    for message in keys:
        cohort.server.take_keys(message)
    roster = cohort.server.close_keys()[1]
    given = getattr(roster, f"{name}s")
    with pytest.raises(Refused, match="public key of low order"):
        cohort.clients[1].share(replace(roster, **{f"{name}s": (low, *given[1:])}))
    cohort.clients[1].share(roster)  # and the client goes on with the right one


def test_a_key_that_is_someone_elses_is_refused() -> None:
    cohort = Cohort()
    keys = cohort.keys()
    cohort.server.take_keys(keys[0])
    for stolen in (
        replace(keys[1], mask_key=keys[0].mask_key),
        replace(keys[1], channel_key=keys[0].mask_key),
        replace(keys[1], channel_key=keys[1].mask_key),
    ):
        with pytest.raises(Refused, match="advertised before"):
            cohort.server.take_keys(stolen)
    for message in keys[1:]:
        cohort.server.take_keys(message)
    rosters = cohort.server.close_keys()
    reflected = replace(rosters[1], mask_keys=(keys[1].mask_key, *rosters[1].mask_keys[1:]))
    with pytest.raises(Refused, match="the same public key twice"):
        cohort.clients[1].share(reflected)


def test_a_client_does_not_share_with_too_few() -> None:
    cohort = Cohort()
    rosters = cohort.after_keys()
    alone = messages.Roster(cohort.setup.context, np.array([True, False, False, False]), *([(b"k" * 32,)] * 2))
    with pytest.raises(Refused, match="2 neighbours advertised keys, expected 3 at least"):
        cohort.clients[0].share(alone)
    cohort.clients[0].share(rosters[0])


# --- replays, other sums, wrong phases, other clients ---------------------------------------------------------------


def test_replayed_messages_are_refused_in_every_phase() -> None:
    cohort = Cohort(signed=True)
    server, setup = cohort.server, cohort.setup
    everything: list[Any] = []

    def deliver(sent: list[Any], take: Callable[[Any], None]) -> None:
        for message in sent:
            take(message)
            with pytest.raises(Refused, match=f"comes from client {message.client} again"):
                take(message)
        for early in everything:
            with pytest.raises(Refused, match="expected"):
                take(early)
        everything.extend(sent)

    deliver(cohort.keys(), server.take_keys)
    rosters = server.close_keys()
    deliver([cohort.clients[c].share(rosters[c]) for c in range(5)], server.take_shares)
    deliveries = server.close_shares()
    deliver([cohort.clients[c].mask(deliveries[c], {"x": cohort.vectors[c]}) for c in range(5)], server.take_masked)
    survivors = server.close_masked()
    deliver([cohort.clients[c].check(survivors) for c in range(5)], server.take_check)
    agreement = server.close_check()
    deliver([cohort.clients[c].reveal(survivors, agreement) for c in range(5)], server.take_revealed)
    assert server.finish()["x"].tolist() == cohort.total(*range(5))
    with pytest.raises(Refused, match="expected nothing"):
        server.take_revealed(everything[-1])
    for again in (
        lambda client: client.advertise(),
        lambda client: client.share(rosters[0]),
        lambda client: client.mask(deliveries[0], {"x": cohort.vectors[0]}),
        lambda client: client.check(survivors),
        lambda client: client.reveal(survivors, agreement),
    ):
        with pytest.raises(Refused, match=r"asks client 0 for \w+, expected over"):
            again(cohort.clients[0])
    assert setup.signed


def test_messages_of_another_sum_are_refused_on_both_sides() -> None:
    now, before = Cohort(session=1), Cohort(session=0)
    old_keys = before.keys()
    with pytest.raises(Refused, match="belongs to another sum"):
        now.server.take_keys(old_keys[0])
    relabelled = replace(old_keys[0], context=now.setup.context)  # keys of an earlier sum under a new name
    for message in old_keys:
        before.server.take_keys(message)
    old_rosters = before.server.close_keys()
    rosters = now.after_keys()
    with pytest.raises(Refused, match="belongs to another sum"):
        now.clients[0].share(old_rosters[0])
    assert relabelled.mask_key not in rosters[1].mask_keys


@pytest.mark.parametrize("number", [-1, 5, 2**62])
def test_a_client_outside_of_the_cohort_is_refused(number: int) -> None:
    cohort = Cohort()
    with pytest.raises(Refused, match="does not take part"):
        cohort.server.take_keys(replace(cohort.keys()[0], client=number))


def test_a_lost_client_does_not_come_back() -> None:
    cohort = Cohort()
    for message in cohort.keys()[1:]:
        cohort.server.take_keys(message)
    rosters = cohort.server.close_keys()
    shares = [cohort.clients[c].share(rosters[c]) for c in range(1, 5)]
    with pytest.raises(Refused, match="comes from client 0, which does not take part"):
        cohort.server.take_shares(replace(shares[0], client=0))


# --- malformed messages ---------------------------------------------------------------------------------------------

ODD: list[Any] = [
    np.zeros(0, np.uint8),
    np.zeros((1, 1), np.uint8),
    np.zeros((2, 2, 2, 2)),
    np.zeros(6, np.int64),
    np.ones((4, 88), np.uint8),
    np.ones(5, np.bool_),
    np.ones((5, 9), np.uint32),
    np.full((5, 9), 2**32 - 1, np.uint32),
    np.full(6, 2**16 - 1, np.uint16),
    b"",
    b"\x00" * 16,
    b"\xff" * 31,
    b"\x00" * 64,
]


@given(st.integers(0, 3), st.integers(0, 4), st.sampled_from(range(len(ODD))), st.data())
@settings(max_examples=300, deadline=None)
def test_no_malformed_message_does_more_than_lose_its_client(phase: int, client: int, odd: int, data: Any) -> None:
    """Any field of any client's message replaced by something odd: refused. What could be shares or digests, which look
    random, is taken; then the sum ends with the client's name, because its mask cannot be taken off."""
    cohort = Cohort()
    server = cohort.server
    taken = False

    def deliver(sent: list[Any], take: Callable[[Any], None], number: int) -> None:
        for message in sent:
            if number == phase and message.client == client:
                names = [each.name for each in fields(message) if each.name not in ("client", "context", "rings")]
                name = data.draw(st.sampled_from(names))
                value = {"x": ODD[odd]} if name == "vectors" else ODD[odd]
                kind = type(getattr(message, name))
                if name == "vectors" and not isinstance(ODD[odd], np.ndarray):
                    continue
                if not isinstance(value, kind):  # what the reader of bytes makes has the right type
                    continue
                try:
                    take(replace(message, **{name: value}))
                except Refused:
                    continue
                nonlocal taken
                taken = not np.array_equal(value, getattr(message, name))
                assert name in ("sealed", "seed_commitment") or not taken
            else:
                take(message)

    deliver(cohort.keys(), server.take_keys, 0)
    rosters = server.close_keys()
    deliver([cohort.clients[c].share(rosters[c]) for c in rosters], server.take_shares, 1)
    deliveries = server.close_shares()
    masked = [cohort.clients[c].mask(deliveries[c], {"x": cohort.vectors[c]}) for c in deliveries]
    deliver(masked, server.take_masked, 2)
    survivors = server.close_masked()
    alive = np.flatnonzero(survivors.flags).tolist()
    deliver([cohort.clients[c].reveal(survivors) for c in alive], server.take_revealed, 3)
    if taken:
        with pytest.raises(Aborted, match=f"client {client} of the cohort"):
            server.finish()
        return
    assert server.finish()["x"].tolist() == cohort.total(*alive)
    assert set(range(5)) - set(alive) <= {client}


def test_elements_beyond_the_ring_are_refused() -> None:
    cohort = Cohort()
    message = cohort.masked()[0]
    over = message.vectors["x"] | np.uint16(1 << 12)
    with pytest.raises(Refused, match="elements of more than 12 bits"):
        cohort.server.take_masked(replace(message, vectors={"x": over}))


# --- shares ---------------------------------------------------------------------------------------------------------


def test_a_false_share_is_refused_and_the_sum_goes_on_without_it() -> None:
    cohort = Cohort()
    revealed = cohort.revealed(without=(4,))
    false = replace(revealed[0], shares=revealed[0].shares ^ np.uint32(1))
    with pytest.raises(Refused, match="a share of client 0's secret that client 0 did not make"):
        cohort.server.take_revealed(false)
    for message in revealed[1:]:
        cohort.server.take_revealed(message)
    assert cohort.server.finish()["x"].tolist() == cohort.total(0, 1, 2, 3)


def test_the_sum_aborts_with_a_sentence_if_false_shares_leave_too_few() -> None:
    cohort = Cohort()
    for message in cohort.revealed()[:2]:
        cohort.server.take_revealed(message)
    with pytest.raises(Aborted, match="round 4 ended without a sum: 2 clients revealed shares, 3 are needed"):
        cohort.server.finish()


@pytest.mark.parametrize("lost", [(), (1,)], ids=["its seed", "its key"])
def test_a_client_that_shares_another_secret_than_it_uses_is_named(lost: tuple[int, ...]) -> None:
    cohort = Cohort()
    liar = cohort.clients[1]
    honest = liar._seed, liar._mask_secret
    rosters = cohort.after_keys()
    liar._seed, liar._mask_secret = bytes(32), b"\x07" * 32  # what it shares
    sent = {c: client.share(rosters[c]) for c, client in enumerate(cohort.clients)}
    commitment = cohort.setup.commit(messages.SEED_SECRET, 1, 1, honest[0])
    sent[1] = replace(sent[1], seed_commitment=commitment)
    liar._seed = honest[0]  # what it uses
    for share in sent.values():
        cohort.server.take_shares(share)
    deliveries = cohort.server.close_shares()
    for c, client in enumerate(cohort.clients):
        if c not in lost:
            cohort.server.take_masked(client.mask(deliveries[c], {"x": cohort.vectors[c]}))
    survivors = cohort.server.close_masked()
    for c in np.flatnonzero(survivors.flags).tolist():
        cohort.server.take_revealed(cohort.clients[c].reveal(survivors))
    with pytest.raises(Aborted, match="client 1 of the cohort shared another secret than the one it uses"):
        cohort.server.finish()


@pytest.mark.parametrize("lost", [(), (1,)], ids=["its seed", "its key"])
def test_shares_of_no_secret_are_traced_to_their_maker(lost: tuple[int, ...]) -> None:
    cohort = Cohort()
    other = replace(cohort.setup, threshold=4)  # a polynomial of a higher degree: three shares give anything
    other.__dict__["context"] = cohort.setup.context
    cohort.clients[1].setup = other
    for message in cohort.revealed(without=lost):
        cohort.server.take_revealed(message)
    with pytest.raises(Aborted, match="client 1 of the cohort shared another secret than the one it uses"):
        cohort.server.finish()


def test_sealed_texts_that_were_not_sealed_for_the_receiver_are_left_out() -> None:
    cohort = Cohort()
    deliveries = cohort.after_shares()
    junk = deliveries[0].sealed.copy()
    junk[0] ^= 1  # what client 1 sealed for client 0 is damaged
    junk[1] = deliveries[1].sealed[1]  # and it is given what client 2 sealed for client 1
    deliveries[0] = replace(deliveries[0], sealed=junk)
    for c, client in enumerate(cohort.clients):
        cohort.server.take_masked(client.mask(deliveries[c], {"x": cohort.vectors[c]}))
    survivors = cohort.server.close_masked()
    revealed = [client.reveal(survivors) for client in cohort.clients]
    assert revealed[0].present.tolist() == [True, False, False, True, True]
    for message in revealed:
        cohort.server.take_revealed(message)
    assert cohort.server.finish()["x"].tolist() == cohort.total(*range(5))


def test_a_text_sealed_by_another_sender_is_not_opened() -> None:
    cohort = Cohort()
    deliveries = cohort.after_shares()
    forged = seal(b"k" * 32, 1, bytes(72), b"")
    sealed = deliveries[0].sealed.copy()
    sealed[0] = np.frombuffer(forged, np.uint8)
    cohort.clients[0].mask(replace(deliveries[0], sealed=sealed), {"x": cohort.vectors[0]})
    assert 1 not in cohort.clients[0]._held


# --- never both kinds of share --------------------------------------------------------------------------------------


def flags(setup: Setup, *survivors: int) -> messages.Survivors:
    made = np.zeros(setup.size, dtype=np.bool_)
    made[list(survivors)] = True
    return messages.Survivors(setup.context, made)


def test_no_client_reveals_both_kinds_of_share_for_one_client() -> None:
    cohort = Cohort()
    cohort.after_masked()
    client = cohort.clients[0]
    client.reveal(flags(cohort.setup, 0, 1, 2, 3, 4))
    for other in ((0, 1, 2, 3), (0, 1, 2, 3, 4)):
        with pytest.raises(Refused, match="asks client 0 for reveal, expected over"):
            client.reveal(flags(cohort.setup, *other))


@pytest.mark.parametrize("split", range(5))
def test_a_server_that_tells_clients_different_survivors_combines_at_most_one_secret(split: int) -> None:
    cohort = Cohort()
    cohort.after_masked()
    told = [(0, 1, 2, 3, 4) if c < split else (0, 1, 2, 3) for c in range(4)]  # is client 4 lost?
    shares = [cohort.clients[c].reveal(flags(cohort.setup, *told[c])).shares[4] for c in range(4)]
    commitments = cohort.server._shares[4].commitments
    made = [
        [cohort.setup.commit(kind, 4, c, share.tobytes()) == commitments[kind, 1 + c].tobytes() for kind in (0, 1)]
        for c, share in enumerate(shares)
    ]
    assert np.array(made).sum(1).tolist() == [1] * 4
    assert (np.array(made).sum(0) >= cohort.setup.threshold).sum() <= 1


@pytest.mark.parametrize(
    ("survivors", "reason"),
    [
        ((1, 2, 3, 4), "asks client 0, whose vector it says is lost"),
        ((0, 1), "2 neighbours survive, expected 3 at least"),
        ((0, 1, 2, 3, 4), "names client 4, whose shares were not delivered"),
    ],
)
def test_impossible_survivors_are_refused_and_the_right_ones_answered(survivors: Any, reason: str) -> None:
    cohort = Cohort()
    for message in cohort.shares()[:4]:
        cohort.server.take_shares(message)
    deliveries = cohort.server.close_shares()
    for c in deliveries:
        cohort.server.take_masked(cohort.clients[c].mask(deliveries[c], {"x": cohort.vectors[c]}))
    right = cohort.server.close_masked()
    with pytest.raises(Refused, match=reason):
        cohort.clients[0].reveal(flags(cohort.setup, *survivors))
    for c in deliveries:
        cohort.server.take_revealed(cohort.clients[c].reveal(right))
    assert cohort.server.finish()["x"].tolist() == cohort.total(0, 1, 2, 3)


def test_a_stranger_is_no_survivor_in_a_sparse_graph_either() -> None:
    setup = Setup(0, bytes(16), Graph(9, 4, 1), 3, {"x": Vector(RING, 6)})
    server, clients = Server(setup), [Client(setup, c) for c in range(9)]
    for client in clients:
        server.take_keys(client.advertise())
    rosters = server.close_keys()
    lost = int(setup.graph.neighbours(0)[0])
    for c, roster in rosters.items():
        if c != lost:
            server.take_shares(clients[c].share(roster))
    deliveries = server.close_shares()
    clients[0].mask(deliveries[0], {"x": np.zeros(6, np.uint16)})
    with pytest.raises(Refused, match=f"names client {lost}, whose shares were not delivered"):
        clients[0].reveal(messages.Survivors(setup.context, np.ones(9, np.bool_)))


# --- signed keys ----------------------------------------------------------------------------------------------------


def test_signed_keys_are_checked_by_the_server_and_by_clients() -> None:
    cohort = Cohort(signed=True)
    keys = cohort.keys()
    others = Cohort(signed=True).keys()
    swapped = replace(keys[0], mask_key=others[0].mask_key)  # a key that client 0 did not sign
    with pytest.raises(Refused, match="signature that its key does not verify"):
        cohort.server.take_keys(swapped)
    with pytest.raises(Refused, match="signature that its key does not verify"):
        cohort.server.take_keys(replace(keys[0], signature=b""))
    for message in keys:
        cohort.server.take_keys(message)
    roster = cohort.server.close_keys()[1]
    middle = replace(roster, channel_keys=(others[0].channel_key, *roster.channel_keys[1:]))  # the server in between
    with pytest.raises(Refused, match="signature that its key does not verify"):
        cohort.clients[1].share(middle)
    with pytest.raises(Refused, match="0 signatures of 4 neighbours"):
        cohort.clients[1].share(replace(roster, signatures=()))


def test_signed_survivors_are_the_same_for_everyone_or_nothing_is_revealed() -> None:
    cohort = Cohort(signed=True)
    survivors = cohort.after_masked()
    other = flags(cohort.setup, 0, 1, 2, 3)
    with pytest.raises(Refused, match="expected check"):
        cohort.clients[0].reveal(survivors)
    checks = [cohort.clients[c].check(other if c < 2 else survivors) for c in range(5)]
    for check in checks[:2]:
        with pytest.raises(Refused, match="does not verify"):
            cohort.server.take_check(check)
    for check in checks[2:]:
        cohort.server.take_check(check)
    agreement = cohort.server.close_check()
    with pytest.raises(Refused, match="names other survivors than before"):
        cohort.clients[0].reveal(survivors, agreement)
    with pytest.raises(Refused, match=r"does not verify|do not survive"):
        cohort.clients[0].reveal(other, agreement)
    with pytest.raises(Refused, match="comes without the survivors' signatures"):
        cohort.clients[2].reveal(survivors)
    few = agreement.present.copy()
    few[4] = False
    with pytest.raises(Refused, match="2 neighbours signed the survivors, expected 3 at least"):
        cohort.clients[2].reveal(survivors, replace(agreement, present=few, signatures=agreement.signatures[:2]))
    for c in (2, 3, 4):
        cohort.server.take_revealed(cohort.clients[c].reveal(survivors, agreement))
    assert cohort.server.finish()["x"].tolist() == cohort.total(*range(5))


def test_a_client_with_another_identity_does_not_begin() -> None:
    cohort = Cohort(signed=True)
    with pytest.raises(Refused, match="another identity for client 0"):
        Client(cohort.setup, 0, Signer(b"z" * 32))
