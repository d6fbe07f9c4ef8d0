"""Clients and servers that lie: every message is wrong until checked, and costs nobody but its sender anything."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import fedslice as fs
from fedslice.core.encodings import _to_bits
from fedslice.core.errors import Refused, UserError
from fedslice.core.header import HEADER, HEADER_BYTES, Kind
from fedslice.core.message import Message
from fedslice.select.base import Cohort
from fedslice.training.events import Listener, Refusal
from fedslice.training.ledger import Ledger
from fedslice.training.rounds import Phase, play_round
from mutations import Device, everyone
from toys import ITEMS, assert_same, double
from two_sides import EIGHT, Case, Timed, alone
from wire import Losing

LIAR = 5
ROUNDS, LIE = 5, 3  # rounds, and the one in which the liar lies
_HEAD = struct.Struct("<" + "".join(code for code, _ in HEADER.values()))


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


# --- forging


def patched(data: bytes, **wrong: Any) -> bytes:
    """A message with another header."""
    fields = dict(zip(HEADER, _HEAD.unpack_from(data), strict=True)) | wrong
    return _HEAD.pack(*fields.values()) + data[HEADER_BYTES:]


def numbers(data: bytes) -> list[int]:
    """The numbers of varying entries in a header."""
    count = int.from_bytes(data[HEADER_BYTES - 2 : HEADER_BYTES], "little")
    return list(struct.unpack_from(f"<{count}Q", data, HEADER_BYTES))


def rebuilt(data: bytes, own: list[int], body: bytes | None = None) -> bytes:
    """A message with other numbers, and maybe another body."""
    before = HEADER_BYTES + 8 * len(numbers(data))
    head = patched(data[:HEADER_BYTES], numbers=len(own))
    return head + struct.pack(f"<{len(own)}Q", *own) + (data[before:] if body is None else body)


def with_floats(data: bytes, *values: float, at: int = 0) -> bytes:
    """A message with other floats from some place of its body on."""
    start = HEADER_BYTES + 8 * len(numbers(data)) + at
    block = struct.pack(f"<{len(values)}d", *values)
    assert start + len(block) <= len(data)
    return data[:start] + block + data[start + len(block) :]


def naming(*items: int) -> Callable[[bytes, Any], list[bytes]]:
    """A request that names these items, in this order, and one tag."""

    def forge(data: bytes, _: Any) -> list[bytes]:
        rows = np.packbits(_to_bits(np.array(items), 4)).tobytes()
        tags = np.packbits(_to_bits(np.array([2]), 3)).tobytes()
        return [rebuilt(data, [len(items) << 1, 1 << 1], rows + tags)]

    return forge


class Forging(Losing):
    """A wire on which one client's messages are forged.

    Args:
        kind: Which messages.
        forge: Return what arrives in place of a message, given all that it has sent so far.
        when: In which round.
    """

    def __init__(self, kind: Kind, forge: Callable[[bytes, dict[Any, bytes]], list[bytes]], when: int = LIE):
        super().__init__()
        self._kind, self._forge, self._when = kind, forge, when
        self._said: dict[Any, bytes] = {}

    def exchange(self, server: fs.Server, phase: Phase, downs: Iterable[Message]) -> Iterator[Message]:
        for down in downs:
            for place, number in enumerate(down.head.clients.tolist()):
                data = self.carry(server, phase, number, down.pack(place, server.spec.fingerprint))
                if data is None:
                    continue
                lies = number == LIAR and server.round == self._when and phase.kind is self._kind
                for each in self._forge(data, self._said) if lies else [data]:
                    up = server.read(each, phase.kind, number)
                    if up is not None:
                        yield up
                if number == LIAR:
                    self._said[server.round, phase.kind] = data
                elif number == LIAR - 1:
                    self._said["other", phase.kind] = data


@dataclass
class Town(Listener):
    """A server and clients that exchange bytes over a wire."""

    case: Case
    wire: Losing
    who: Iterable[int] = range(len(EIGHT))
    refusals: list[Refusal] = field(default_factory=list)
    took: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.task, recipe = self.case.build()
        self.recipe = everyone(recipe)
        self.server = fs.Server(
            self.recipe,
            self.task.build(0),
            loss=self.task.loss,
            tables=dict(self.task.tables),
            rounds=ROUNDS,
            timed=self.case.devices() is not None,
        )
        self.ledger = Ledger(self.server.spec)
        self.server.events.add(self.ledger)
        self.server.events.add(self)
        self.clients = {n: alone(self.task, self.recipe, n, ROUNDS, self.case.devices()) for n in self.who}
        for client in self.clients.values():
            self.wire.connect(self.server, Device(client))

    def play(self, rounds: int = ROUNDS) -> Town:
        for _ in range(rounds):
            self.took.append(sorted(play_round(self.server, self.wire).taken.tolist()))
        return self

    def refused(self, event: Refusal) -> None:
        self.refusals.append(event)


def told(town: Town, reason: str, when: int = LIE) -> None:
    """Refusals that name the liar and the reason, and no others."""
    assert town.refusals
    assert {(one.client, one.round) for one in town.refusals} == {(LIAR, when)}
    assert reason in town.refusals[0].reason, town.refusals


# --- in a round

ROWS, VALUES = Case("fedsubavg"), Case("fedavg")
TOPK = Case("fedavg", options={"codec": "topk", "share": 0.2})
LOOKBACK = Case("lbgm", options={"delta": 1.0})
NAN, INF = float("nan"), float("inf")

Forge = Callable[[bytes, dict[Any, bytes]], list[bytes]]
LIES: dict[str, tuple[Case, Kind, Forge, str]] = {
    "a request of another sender": (
        VALUES, Kind.REQUEST, lambda data, said: [patched(data, client=2)], "is from client 2"),
    "a request that another has sent": (
        VALUES, Kind.REQUEST, lambda data, said: [said["other", Kind.REQUEST]], "is from client 4"),
    "a request of an old round": (
        ROWS, Kind.REQUEST, lambda data, said: [said[LIE - 1, Kind.REQUEST]], "belongs to round 2, this is round 3"),
    "a request of a future round": (
        ROWS, Kind.REQUEST, lambda data, said: [patched(data, round=9)], "belongs to round 9"),
    "a request of another draw": (
        VALUES, Kind.REQUEST, lambda data, said: [patched(data, draw=1)], "was not asked for"),
    "a request of another schema": (
        ROWS, Kind.REQUEST, lambda data, said: [patched(data, schema=b"12345678")], "has another schema"),
    "an upload in place of a request": (
        VALUES, Kind.REQUEST, lambda data, said: [said[LIE - 1, Kind.UPLOAD]], "is of kind upload, expected request"),
    "a declined request": (
        ROWS, Kind.REQUEST, lambda data, said: [patched(data, declined=1)[:HEADER_BYTES]], "declines an update"),
    "rows out of range": (ROWS, Kind.REQUEST, naming(3, 5, ITEMS), "does not hold 3 ascending positions"),
    "rows out of order": (ROWS, Kind.REQUEST, naming(3, 7, 5), "does not hold 3 ascending positions"),
    "a row twice": (ROWS, Kind.REQUEST, naming(3, 5, 5), "does not hold 3 ascending positions"),
    "more rows than there are": (
        ROWS, Kind.REQUEST, lambda data, said: [rebuilt(data, [2**40, *numbers(data)[1:]])], "positions"),
    "half of a request": (ROWS, Kind.REQUEST, lambda data, said: [data[:-1]], "has a body of"),
    "nothing": (VALUES, Kind.REQUEST, lambda data, said: [b""], "has 0 bytes"),
    "an upload of another sender": (
        VALUES, Kind.UPLOAD, lambda data, said: [said["other", Kind.UPLOAD]], "is from client 4"),
    "an upload that is late": (
        VALUES, Kind.UPLOAD, lambda data, said: [said[LIE - 1, Kind.UPLOAD]], "belongs to round 2"),
    "an upload of another layout": (VALUES, Kind.UPLOAD, lambda data, said: [patched(data, layout=7)], "layout 7"),
    "a request in place of an upload": (
        ROWS, Kind.UPLOAD, lambda data, said: [said[LIE - 1, Kind.REQUEST]], "is of kind request, expected upload"),
    "a NaN": (VALUES, Kind.UPLOAD, lambda data, said: [with_floats(data, NAN)], "holds a NaN or an infinity"),
    "an infinity": (ROWS, Kind.UPLOAD, lambda data, said: [with_floats(data, INF, at=16)], "a NaN or an infinity"),
    "what overflows when it is weighed": (
        VALUES, Kind.UPLOAD, lambda data, said: [with_floats(data, 1.7e308)], "NaN or infinity"),
    "a single value that overflows when it is weighed": (
        VALUES, Kind.UPLOAD, lambda data, said: [with_floats(data, 1.7e308, at=len(data) - HEADER_BYTES - 8)],
        "NaN or infinity"),
    "a factor that makes infinities": (
        LOOKBACK, Kind.UPLOAD, lambda data, said: [with_floats(data, 1.7e308, at=1)], "decodes to it"),
    "a scale below zero": (
        Case("sign"), Kind.UPLOAD, lambda data, said: [with_floats(data, -1.0)], "expected 0 or more"),
    "a variate that is not finite": (
        Case("scaffold"), Kind.UPLOAD, lambda data, said: [with_floats(data, NAN, at=len(data) - HEADER_BYTES - 8)],
        "a NaN or an infinity"),
    "64 MB of positions": (
        TOPK, Kind.UPLOAD, lambda data, said: [rebuilt(data, [2**29, 2**29, 2**29], bytes(2**26))], "entries"),
    "64 MB behind a payload": (TOPK, Kind.UPLOAD, lambda data, said: [data + bytes(2**26)], "its header says"),
    "a body that is announced and does not come": (
        TOPK, Kind.UPLOAD, lambda data, said: [rebuilt(data, [2**62, 2**62, 2**62])], "entries"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_costs_its_sender_the_round_and_nobody_else(name: str) -> None:
    """The run is the one in which the client is silent, or its upload gets lost, in that round."""
    case, kind, forge, reason = LIES[name]
    lying = Town(case, Forging(kind, forge)).play()
    told(lying, reason)
    missing = {(LIE, LIAR)}
    without = Town(case, Losing(missing) if kind is Kind.REQUEST else Losing(lost=missing)).play()
    assert lying.took == without.took
    assert LIAR not in lying.took[LIE]
    assert LIAR in lying.took[LIE + 1]
    assert_same(dict(lying.server.model), dict(without.server.model))


@pytest.mark.parametrize("kind", [Kind.REQUEST, Kind.UPLOAD])
@pytest.mark.parametrize("case", [VALUES, ROWS, LOOKBACK], ids=["fedavg", "fedsubavg", "lbgm"])
def test_what_is_said_twice_counts_once(case: Case, kind: Kind) -> None:
    twice = Town(case, Forging(kind, lambda data, said: [data, data])).play()
    told(twice, "asks again" if kind is Kind.REQUEST else "has arrived before")
    once = Town(case, Losing()).play()
    assert twice.took == once.took
    assert_same(dict(twice.server.model), dict(once.server.model))
    assert twice.ledger.state_dict() == once.ledger.state_dict()


@pytest.mark.parametrize("name", ["64 MB of positions", "64 MB behind a payload", "more rows than there are"])
def test_no_memory_is_taken_for_what_is_only_announced(name: str) -> None:
    case, kind, forge, _ = LIES[name]
    town = Town(case, Losing()).play(1)
    seen: dict[Kind, bytes] = {}

    class Looking(Losing):
        def read(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> Message | None:
            if phase.kind is kind and number == LIAR:
                (wrong,) = forge(data, {})
                tracemalloc.start()
                assert server.read(wrong, kind, number) is None
                assert tracemalloc.get_traced_memory()[1] < 2**20
                tracemalloc.stop()
                seen[kind] = data
            return super().read(server, phase, number, data)

    looking = Looking()
    looking.devices = town.wire.devices
    play_round(town.server, looking)
    assert seen


def test_nothing_is_taken_from_whom_nothing_was_asked() -> None:
    town = Town(VALUES, Losing()).play(1)
    server, client = town.server, town.clients[LIAR]
    who = torch.tensor([LIAR])
    for kind in (Kind.ENROL, Kind.REQUEST, Kind.UPLOAD, Kind.SCORES):
        for message in (client.population.introduce(who), client.population.ask(server.round, who)):
            assert server.read(message.pack(0, server.spec.fingerprint), kind, LIAR) is None
    cohort = server.invite()
    client.reply(server.invitation(cohort).pack(LIAR, server.spec.fingerprint))
    asked = client.population.ask(server.round, who).pack(0, server.spec.fingerprint)
    assert server.read(patched(asked, kind=Kind.UPLOAD), Kind.UPLOAD, LIAR) is None
    assert "without a download" in town.refusals[-1].reason
    assert server.finish().taken.tolist() == []


# --- when clients enrol and leave


def enrolment(client: fs.Client, **wrong: Any) -> Callable[[bytes, Any], list[bytes]]:
    """What the client says of itself, with some facts changed."""

    def forge(data: bytes, _: Any) -> list[bytes]:
        message = client.population.introduce(torch.tensor([client.number]))
        body = message.body | {name: torch.as_tensor([value]) for name, value in wrong.items()}
        return [Message(message.head, message.fields, body).pack(0, client._fingerprint)]

    return forge


PACED = Timed("feddd", options={"rate": None})
BEGINNING = {
    "a pace below zero": (PACED, {"pace": [-1.0, 1.0, 1.0]}, "expected 0 or more"),
    "a pace that is not a number": (PACED, {"pace": [1.0, NAN, 1.0]}, "a NaN or an infinity"),
    "a pace of ages": (PACED, {"pace": [1.0, 1.0, 1e300]}, "expected at most 1e+09"),
    "a client that holds more than there is": (
        Timed("fedcs", options={"budget": 1.0}), {"held": [2**62]}, "expected at most"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEGINNING)
def test_facts_that_nobody_can_have_enrol_nobody(name: str) -> None:
    case, wrong, reason = BEGINNING[name]
    town = Town(case, Forging(Kind.ENROL, lambda data, said: [data]), who=range(LIAR))
    liar = alone(town.task, town.recipe, LIAR, ROUNDS, case.devices())
    wire = town.wire
    assert isinstance(wire, Forging)
    wire._when, wire._forge = 0, enrolment(liar, **wrong)
    wire.connect(town.server, Device(liar))
    told(town, reason, when=0)
    assert not town.server.enrolled.has(torch.tensor([LIAR]))
    without = Town(case, Losing(), who=range(LIAR))
    assert town.server.enrolled.facts_dict().keys() == without.server.enrolled.facts_dict().keys()
    assert_same(dict(town.play().server.model), dict(without.play().server.model))


def test_heat_of_rows_that_do_not_exist_enrols_nobody() -> None:
    town = Town(ROWS, Forging(Kind.ENROL, lambda data, said: [data]), who=range(LIAR))
    liar = alone(town.task, town.recipe, LIAR, ROUNDS, None)
    wire = town.wire
    assert isinstance(wire, Forging)

    def forge(data: bytes, said: Any) -> list[bytes]:
        (wrong,) = naming(3, 5, ITEMS)(data, said)
        return [wrong + (7).to_bytes(4, "little")]

    wire._when, wire._forge = 0, forge
    wire.connect(town.server, Device(liar))
    told(town, "does not hold 3 ascending positions", when=0)
    without = Town(ROWS, Losing(), who=range(LIAR))
    assert_same(town.server.states["combine"].facts_dict(), without.server.states["combine"].facts_dict())
    assert_same(dict(town.play().server.model), dict(without.play().server.model))


class Saying(Losing):
    """A wire on which everybody says to have so many samples, of every class."""

    def __init__(self, samples: int):
        super().__init__()
        self._samples = samples

    def carry(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> bytes | None:
        answer = super().carry(server, phase, number, data)
        if phase.kind is not Kind.ENROL:
            return answer
        client = self.devices[number].client
        fields = client.population.introduce(torch.tensor([number])).fields
        wrong = {"samples": [self._samples], "labels": [self._samples] * 3}
        (forged,) = enrolment(client, **{name: wrong[name] for name in fields if name in wrong})(data, {})
        return forged


@pytest.mark.parametrize("name", ["fedavg", "fedsubavg", "scaffold", "feddd", "fedgen", "oort"])
@pytest.mark.parametrize("samples", [0, 2**32 - 1])
def test_the_largest_and_smallest_facts_that_can_be_said_break_nothing(name: str, samples: int) -> None:
    """Everybody says so: sums neither overflow nor are divided by zero, and who weighs nothing moves nothing."""
    own = {"feddd": {"rate": None}, "oort": {"budget": 1.0}}.get(name, {})
    case = Timed(name, options=own | {"weights": "samples"})
    town = Town(case, Saying(samples))
    before = {name: value.clone() for name, value in town.server.model.items()}
    town.play(3)
    assert not town.refusals
    assert all(bool(value.isfinite().all()) for value in town.server.model.values())
    assert (samples == 0) == all(torch.equal(value, before[name]) for name, value in town.server.model.items())


def test_a_number_is_proved_by_its_token() -> None:
    town = Town(VALUES, Losing()).play(1)
    server = town.server
    other, own = town.clients[2].hello(), town.clients[LIAR].hello()
    with pytest.raises(Refused, match="client 2 and has not the token"):
        server.admit(patched(own, client=2))
    with pytest.raises(Refused, match="has not the token"):
        server.admit(other[:HEADER_BYTES] + bytes(16))
    with pytest.raises(Refused, match="client 77 and has not the token"):
        server.admit(patched(own, client=77))
    assert server.admit(own) == LIAR


def test_a_client_takes_back_its_own_facts_alone() -> None:
    """Who says others, or leaves as another, stays, and has lost the round."""
    for case, wrong in ((VALUES, {"samples": [99]}), (ROWS, {"samples": [99]})):
        town = Town(case, Losing())
        forge = enrolment(town.clients[LIAR], **wrong)
        lying = Forging(Kind.REQUEST, lambda data, said, f=forge: [patched(f(data, said)[0], kind=Kind.LEAVE)])  # type: ignore[misc]
        lying.devices = town.wire.devices
        town.wire = lying
        told(town.play(), "takes back other facts")
        without = Town(case, Losing({(LIE, LIAR)})).play()
        assert_same(dict(town.server.model), dict(without.server.model))
        assert town.server.enrolled.count == len(EIGHT)
    town = Town(VALUES, Forging(Kind.REQUEST, lambda data, said: [patched(data, kind=Kind.LEAVE, client=2)])).play()
    told(town, "is from client 2")
    assert town.server.enrolled.count == len(EIGHT)


# --- a server that lies


def replies(town: Town, number: int = LIAR) -> dict[Kind, bytes]:
    """What a client is sent in a round, and the client before it has heard any of it."""
    heard: dict[Kind, bytes] = {}

    class Hearing(Losing):
        def carry(self, server: fs.Server, phase: Phase, who: int, data: bytes) -> bytes | None:
            if who == number:
                heard[Kind(data[3])] = data
            return super().carry(server, phase, who, data)

    wire = Hearing()
    wire.devices = town.wire.devices
    play_round(town.server, wire)
    return heard


@pytest.mark.parametrize("name", ["fedavg", "fedsubavg", "stc", "flss", "feddd", "fedgen", "fdrl"])
def test_a_client_refuses_what_no_server_sends(name: str) -> None:
    """With the project's own error and no other; it goes on as if it had not heard it."""
    town = Town(Case(name, options={"warmup": 2, "every": 2} if name == "flss" else {}), Losing()).play(3)
    heard, client = replies(town), town.clients[LIAR]
    invite, down = heard[Kind.INVITE], heard[Kind.DOWNLOAD]
    before = client.population.memories.state_dict(pending=True)
    start = HEADER_BYTES + 8 * len(numbers(down))
    wrong = {
        "nothing": b"",
        "noise": b"fs" + bytes(range(200)),
        "another client": patched(invite, client=LIAR + 1),
        "a number out of range": patched(invite, client=2**64 - 1),
        "another schema": patched(invite, schema=b"12345678"),
        "an unknown kind": patched(invite, kind=99),
        "a client's kind": patched(down, kind=Kind.UPLOAD),
        "a greeting": patched(invite, kind=Kind.HELLO),
        "another layout": patched(down, layout=2**32 - 1) if name == "flss" else patched(down, version=2),
        "half of it": down[:-3],
        "more of it": down + bytes(99),
        "numbers without a body": rebuilt(down, [2**63] * 3),
        "declined": patched(down, declined=1),
        "a body for an invitation": invite + bytes(8),
        "a number that takes room": patched(
            town.server.welcome(_cohort(LIAR)).pack(0, town.server.spec.fingerprint), client=2**40),
    }  # fmt: skip
    if len(down) > start + 8 and name in ("fedavg", "fedsubavg", "fedgen", "fdrl", "feddd"):
        wrong["a NaN"] = with_floats(down, NAN)
    for what, data in wrong.items():
        with pytest.raises(Refused):
            pytest.fail(f"{what} was accepted: {client.reply(data)[:8]!r}")
    after = client.population.memories.state_dict(pending=True)
    assert_same(before, after)
    assert client.number == LIAR
    assert LIAR in town.play(1).took[-1]


def _cohort(number: int) -> Cohort:
    return Cohort(torch.tensor([number]), torch.tensor([0]))


def test_a_client_that_was_not_welcomed_answers_nothing_else() -> None:
    town = Town(VALUES, Losing()).play(1)
    fresh = alone(town.task, town.recipe, 0, ROUNDS, None)
    for data in replies(town).values():
        with pytest.raises(Refused, match="before the server's welcome"):
            fresh.reply(data)
    assert issubclass(Refused, UserError)
