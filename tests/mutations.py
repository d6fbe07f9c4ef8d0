"""Mutated messages of all kinds, read by a server and clients as they are in the middle of a run.

``PYTHONPATH=src python tests/mutations.py [MUTANTS]`` prints how many of each kind were refused, and how many harmless.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import random
import resource
import struct
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import fedslice as fs
from fedslice.core.errors import Refused
from fedslice.core.header import HEADER_BYTES, Kind, open_message
from fedslice.core.message import Message, unpack
from fedslice.data.federation import Federation
from fedslice.recipe import Recipe
from fedslice.training import schema
from fedslice.training.rounds import Phase, evaluate_clients, play_round
from toys import double
from two_sides import EIGHT, Case, Timed, alone
from wire import Losing

# Every encoding and every codec, and what parts send besides.
CASES: dict[str, Case] = {
    "fedavg": Case("fedavg"),
    "fedsubavg": Case("fedsubavg"),
    "scaffold": Case("scaffold"),
    "feddd": Case("feddd"),
    "feddd, allocated": Timed("feddd", options={"rate": None, "full_every": 5}),
    "sign": Case("sign"),
    "topk": Case("fedavg", options={"codec": "topk", "share": 0.2}),
    "stc": Case("stc", options={"share": 0.2}),
    "stc on rows": Case("fedsubavg", options={"codec": "stc", "share": 0.2, "combine": "mean"}),
    "quantize": Case("fedavg", options={"codec": "quantize"}),
    "fetchsgd": Case("fetchsgd"),
    "lbgm": Case("lbgm", options={"delta": 0.6}),
    "flss": Case("flss", options={"warmup": 2, "every": 3}),
    "sign+flss": Case("sign+flss", options={"warmup": 2, "every": 3}),
    "fdrl": Case("fdrl"),
    "fedgen": Case("fedgen"),
    "fjord": Case("fjord"),
    "heterofl": Case("heterofl", options={"own_labels": True}),
    "oort": Timed("oort", options={"budget": 1.0}),
    "fedcs": Timed("fedcs", options={"budget": 1.0}),
}
LIAR = 7  # the client whose messages are mutated
BYSTANDERS = (1, 3)  # clients whose messages arrive as they are
ROUNDS = 5  # that are played first
TOGETHER = 20  # mutants that one copy of the server takes
ROOM = 1 << 26  # bytes that reading mutants may take besides what the process has
_HEAD = struct.Struct("<2sBB8siQHiiIBH")
_TOP = (2**16 - 1, 255, 255, 0, 2**31 - 1, 2**64 - 1, 2**16 - 1, 2**31 - 1, 2**31 - 1, 2**32 - 1, 255, 2**16 - 1)
_FLOATS = [struct.pack("<f", value) for value in (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-40)]
_FLOATS += [
    struct.pack("<d", value) for value in (float("nan"), float("inf"), -float("inf"), 1.7e308, -1.7e308, 5e-324)
]


def mutated(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """A message with one thing wrong, now and then two."""
    out = data
    for _ in range(1 + (chance.random() < 0.2)):
        if len(out) >= HEADER_BYTES:
            out = chance.choice(_MUTATIONS)(bytearray(out), others, chance)
    return out


def _body(raw: bytes) -> tuple[int, int]:
    """The number of numbers in the header, and where the body begins."""
    count = int.from_bytes(raw[HEADER_BYTES - 2 : HEADER_BYTES], "little")
    return count, min(HEADER_BYTES + 8 * count, len(raw))


def _flip(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    """One to four bits, mostly of the body."""
    _, start = _body(raw)
    start = start if start < len(raw) and chance.random() < 0.8 else 0
    for _ in range(chance.randrange(1, 5)):
        raw[chance.randrange(start, len(raw))] ^= 1 << chance.randrange(8)
    return bytes(raw)


def _truncate(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    return bytes(raw[: chance.randrange(len(raw))])


def _extend(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    return bytes(raw) + chance.choice([bytes(chance.randrange(1, 99)), chance.randbytes(8), b"\xff" * 9])


def _cut_out(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    _, start = _body(raw)
    at = chance.randrange(min(start, len(raw) - 1), len(raw))
    del raw[at : at + chance.randrange(1, 9)]
    return bytes(raw)


def _numbers(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    """A number of entries that is huge, or off by one."""
    count, start = _body(raw)
    if not count or start != HEADER_BYTES + 8 * count:
        return _header(raw, others, chance)
    place = HEADER_BYTES + 8 * chance.randrange(count)
    (own,) = struct.unpack_from("<Q", raw, place)
    huge = (2**16, 2**29, 2**31, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1)
    struct.pack_into("<Q", raw, place, chance.choice([0, 1, own + 1, max(own - 1, 0), own ^ 1, *huge]) % 2**64)
    return bytes(raw)


def _header(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    fields = list(_HEAD.unpack_from(raw))
    place = chance.choice([2, 4, 5, 6, 7, 8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11, 1])
    least = -1 if place in (4, 7, 8) else 0
    wrong = chance.choice([least, _TOP[place], min(fields[place] + 1, _TOP[place]), fields[place] ^ 1, 1])
    fields[place] = chance.randrange(1, 12) if place == 2 else wrong
    _HEAD.pack_into(raw, 0, *fields)
    return bytes(raw)


def _special(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    """NaN, infinity, the largest or a tiny float, where floats may be."""
    _, start = _body(raw)
    for _ in range(chance.randrange(1, 4)):
        pattern = chance.choice(_FLOATS)
        if len(raw) - start >= len(pattern):
            at = start + chance.randrange((len(raw) - start) // len(pattern)) * len(pattern)
            raw[at : at + len(pattern)] = pattern
    return bytes(raw)


def _fill(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    """A few bytes of ones, zeros, or a copy of those before: positions out of range, or repeated."""
    _, start = _body(raw)
    if len(raw) - start < 2:
        return _header(raw, others, chance)
    length = chance.randrange(1, min(16, len(raw) - start) + 1)
    at = chance.randrange(start, len(raw) - length + 1)
    before = bytes(raw[max(start, at - length) : max(start, at - length) + length])
    raw[at : at + length] = chance.choice([b"\xff" * length, bytes(length), before, chance.randbytes(length)])
    return bytes(raw)


def _swap(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    """Two blocks of the body, or the header's numbers."""
    count, start = _body(raw)
    if count > 1 and chance.random() < 0.3 and len(raw) >= HEADER_BYTES + 8 * count:
        one, other = (HEADER_BYTES + 8 * place for place in chance.sample(range(count), 2))
        raw[one : one + 8], raw[other : other + 8] = raw[other : other + 8], raw[one : one + 8]
        return bytes(raw)
    if len(raw) - start < 2:
        return _header(raw, others, chance)
    at = chance.randrange(start + 1, len(raw))
    return bytes(raw[:start] + raw[at:] + raw[start:at])


def _another_body(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    """The header of this message before the numbers and the body of another one."""
    other = chance.choice(others)
    return bytes(raw[: HEADER_BYTES - 2]) + other[HEADER_BYTES - 2 :]


def _another_head(raw: bytearray, others: list[bytes], chance: random.Random) -> bytes:
    return chance.choice(others)


_MUTATIONS: list[Callable[[bytearray, list[bytes], random.Random], bytes]] = [
    _flip, _flip, _truncate, _extend, _cut_out, _numbers, _header, _special, _special, _fill, _swap, _another_body,
    _another_head,
]  # fmt: skip


# --- a run in the middle of which messages arrive


@dataclass(frozen=True)
class Target:
    """A message, and whoever reads it.

    Args:
        kind: What it is for.
        data: The message as it was sent.
        read: Return what bytes are accepted as, or ``None``; changes nothing.
        follow: Do what is done with that, on a copy of everything, and check what comes of it; thoroughly, or not.
    """

    kind: Kind
    data: bytes
    read: Callable[[bytes], Any]
    follow: Callable[[Any, bool], None]


class Harmful(AssertionError):
    """What an accepted message must not lead to."""


@dataclass
class Device:
    """A client at the other end of a wire."""

    client: fs.Client

    @property
    def number(self) -> int | None:
        return self.client.number


@dataclass
class Heard:
    """What each client was sent and has sent in a round, and what both sides were when it arrived."""

    down: dict[tuple[Kind, int], bytes] = field(default_factory=dict)
    up: dict[tuple[Kind, int], bytes] = field(default_factory=dict)
    servers: dict[Kind, fs.Server] = field(default_factory=dict)
    clients: dict[Kind, fs.Client] = field(default_factory=dict)


class Recording(Losing):
    """A wire that notes what goes over it, and keeps a copy of both sides before each message of one client."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.heard: Heard | None = None

    def carry(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> bytes | None:
        if self.heard is None:
            return super().carry(server, phase, number, data)
        kind = Kind(data[3])
        self.heard.down[kind, number] = data
        if number == LIAR:
            self.heard.clients[kind] = copied_client(self.devices[number].client)
        reply = super().carry(server, phase, number, data)
        if reply is not None:
            self.heard.up[phase.kind, number] = reply
        return reply

    def read(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> Message | None:
        if self.heard is not None and number == LIAR:
            self.heard.servers[phase.kind] = copied_server(server)
        return super().read(server, phase, number, data)


def copied_server(server: fs.Server) -> fs.Server:
    """The same server again; both share what never changes."""
    return copy.deepcopy(server, {id(each): each for each in (server.spec, server.events)})


def copied_client(client: fs.Client) -> fs.Client:
    """The same client again; both share what never changes."""
    shared = [client._task, client._devices, client.recipe]
    population = client._population
    if population is not None:
        run = population.run
        shared += [
            population.task,
            population.spec,
            population._chosen,
            population.plan,
            run.devices,
            population.events,
        ]
    return copy.deepcopy(client, {id(each): each for each in shared if each is not None})


class Scene:
    """A server and clients of a recipe, a few rounds into a run, and the messages of all kinds that come next.

    Args:
        case: The recipe.
        played: Rounds that are over.
    """

    def __init__(self, case: Case, played: int = ROUNDS):
        self.task, recipe = case.build()
        self.recipe = everyone(recipe)
        self.case = case
        self.task = replace(self.task, federation=tested(self.task.federation))
        rounds = played + 3
        server = fs.Server(
            self.recipe,
            self.task.build(0),
            loss=self.task.loss,
            tables=dict(self.task.tables),
            rounds=rounds,
            timed=case.devices() is not None,
            metrics=tuple(self.task.metrics) or ("loss",),
        )
        silent = {(t, LIAR) for t in range(played - 2, played)}  # so that it has missed some steps
        self.wire = wire = Recording(silent=silent, lost={(played - 3, LIAR), (1, 3)})
        self.targets: list[Target] = []
        fresh = [self._client(number, rounds, case.devices()) for number in range(len(EIGHT))]
        for number in range(LIAR):
            wire.connect(server, Device(fresh[number]))
        for _ in range(2):
            play_round(server, wire)
        heard = wire.heard = Heard()
        hello = fresh[LIAR].hello()
        self._hello(copied_server(server), hello, None)
        wire.connect(server, Device(fresh[LIAR]))
        wire.heard = None
        self._hello(server, fresh[LIAR].hello(), LIAR)
        enrolment = heard
        for _ in range(played - 2):
            play_round(server, wire)
        heard = wire.heard = Heard()
        evaluated = copied_server(server)
        everybody = server.enrolled.numbers()
        evaluate_clients(evaluated, wire, everybody)
        evaluation, heard = heard, Heard()
        wire.heard = heard
        play_round(server, wire)
        wire.heard = None
        self.bystanders = {n: (heard.up[Kind.REQUEST, n], heard.up[Kind.UPLOAD, n]) for n in BYSTANDERS}
        first = enrolment.servers[Kind.ENROL]
        farewell = wire.devices[LIAR].client.farewell()
        self._enrol(first, enrolment.up[Kind.ENROL, LIAR])
        self._request(heard.servers[Kind.REQUEST], heard.up[Kind.REQUEST, LIAR], farewell)
        self._upload(heard.servers[Kind.UPLOAD], heard.up[Kind.UPLOAD, LIAR])
        self._scores(evaluation.servers[Kind.SCORES], evaluation.up[Kind.SCORES, LIAR])
        downs = [
            (Kind.WELCOME, enrolment),
            (Kind.INVITE, heard),
            (Kind.DOWNLOAD, heard),
            (Kind.EXAMINE, evaluation),
            (Kind.PREVIEW, evaluation),
        ]
        for kind, said in downs:
            self._client_target(kind, said.clients[kind], said.down[kind, LIAR])
        self.others = [
            data for said in (enrolment, heard, evaluation) for data in (*said.down.values(), *said.up.values())
        ]

    def _client(self, number: int, rounds: int, devices: Any) -> fs.Client:
        return alone(self.task, self.recipe, number, rounds, devices, engine="sequential")

    # --- the kinds of messages

    def _hello(self, server: fs.Server, data: bytes, own: int | None) -> None:
        def read(wrong: bytes) -> int | None:
            before = server._admitted
            try:
                return server.admit(wrong)
            except Refused:
                return None
            finally:
                server._admitted = before

        def follow(number: int, thorough: bool) -> None:
            if number != own and number < max(server.enrolled.next, server._admitted):
                raise Harmful(f"a greeting was taken for one of client {number}")

        self.targets.append(Target(Kind.HELLO, data, read, follow))

    def _enrol(self, server: fs.Server, data: bytes) -> None:
        def follow(other: fs.Server, message: Message, thorough: bool) -> None:
            before = _learned(other)
            other.enrol(message)
            other.invite()
            self._check(other)
            other.leave(message)
            after = _learned(other)
            for name, value in before.items():
                if not torch.allclose(value, after[name], rtol=1e-12, atol=1e-12):
                    raise Harmful(f"what was learned as {name} is not taken back")

        self._server_target(Kind.ENROL, server, data, follow)

    def _request(self, server: fs.Server, data: bytes, farewell: bytes) -> None:
        def follow(other: fs.Server, message: Message, thorough: bool) -> None:
            download = other.answer(message)
            counted = int(download.framing()[0]) + sum(int(size[0]) for size in download.sizes().values())
            if len(download.pack(0, other.spec.fingerprint)) != counted:
                raise Harmful("a download is not as long as it is counted")

        def left(other: fs.Server, message: Message, thorough: bool) -> None:
            before = other.enrolled.count
            type(other).leave(other, message)
            if other.enrolled.count != before - 1 or bool(other.enrolled.has(message.head.clients)[0]):
                raise Harmful("a client has left and is still there")
            other.enrol(message)

        self._server_target(Kind.REQUEST, server, data, follow)
        self._server_target(Kind.LEAVE, server, farewell, left)

    def _upload(self, server: fs.Server, data: bytes) -> None:
        def follow(other: fs.Server, message: Message, thorough: bool) -> None:
            other.take(message)

        self._server_target(Kind.UPLOAD, server, data, follow)

    def _scores(self, server: fs.Server, data: bytes) -> None:
        def follow(other: fs.Server, message: Message, thorough: bool) -> None:
            other.scored(message)
            other.scores()
            other._scored.clear()

        self._server_target(Kind.SCORES, server, data, follow)

    def _server_target(
        self, kind: Kind, server: fs.Server, data: bytes, follow: Callable[[fs.Server, Message, bool], None]
    ) -> None:
        """A target whose copy of the server takes some mutants, ends its round with two others, and is made again."""
        left: list[Message] = []
        server.leave = left.append  # type: ignore[method-assign]
        expected = Kind.REQUEST if kind is Kind.LEAVE else kind
        at_hand: list[fs.Server] = []
        taken: list[int] = []

        def read(wrong: bytes) -> Message | None:
            server._facts_of.pop(LIAR, None) if kind is Kind.ENROL else None
            message = server.read(wrong, expected, LIAR)
            if left:
                message = left.pop()
            return message

        def followed(message: Message, thorough: bool) -> None:
            if not at_hand:
                at_hand.append(copied_server(server))
                del at_hand[0].leave
            if message.head.kind is not kind:
                return
            try:
                follow(at_hand[0], message, thorough)
                taken.append(1)
                if thorough or len(taken) >= TOGETHER:
                    if kind is not Kind.ENROL:
                        self._end(at_hand[0])
                    at_hand.clear()
            except Exception:
                at_hand.clear()
                raise
            finally:
                if not at_hand:
                    taken.clear()

        self.targets.append(Target(kind, data, read, followed))

    def _client_target(self, kind: Kind, client: fs.Client, data: bytes) -> None:
        def read(wrong: bytes) -> tuple[bytes, Message | None] | None:
            try:
                head = open_message(wrong, client._fingerprint).head
                if head.kind is not Kind.WELCOME and int(head.clients[0]) == client.number:
                    return wrong, client.population.read(wrong)
                if head.kind is Kind.WELCOME:
                    unpack(open_message(wrong, client._fingerprint), {}, lambda _: schema.WELCOME)
                else:
                    client.reply(wrong)
            except Refused:
                return None
            return wrong, None

        def follow(accepted: tuple[bytes, Message | None], thorough: bool) -> None:
            wrong, message = accepted
            if thorough or message is None or message.head.kind is not Kind.DOWNLOAD:
                copied_client(client).reply(wrong)
            else:
                copied_client(client).population.prepare(message)

        self.targets.append(Target(kind, data, read, follow))

    # --- what comes of it

    def _end(self, server: fs.Server) -> None:
        """Two others have their part in the round, of which nothing may be lost, and the round ends."""
        if not server.playing:
            return
        for number, (request, upload) in self.bystanders.items():
            server.awaited.ask(torch.tensor([number]), torch.tensor([0]))
            if (number, 0) not in server._answered:
                asked = server.read(request, Kind.REQUEST, number)
                if asked is None:
                    raise Harmful(f"the request of client {number} was refused")
                server.answer(asked)
            sent = server.read(upload, Kind.UPLOAD, number)
            if sent is None:
                raise Harmful(f"the upload of client {number} was refused")
            server.take(sent)
        self._check(server)

    def _check(self, server: fs.Server) -> None:
        server.finish()
        for name, value in server.model.items():
            if not bool(value.isfinite().all()):
                raise Harmful(f"{name} is not finite")
        for name, value in server.state_dict().items():
            if name.startswith("parts.") and value.is_floating_point() and not bool(value.isfinite().all()):
                raise Harmful(f"the server's {name} is not finite")


def _learned(server: fs.Server) -> dict[str, torch.Tensor]:
    """What the server has learned of those who are enrolled, in sums of whole numbers."""
    out = {f"sum of {name}": total.double() for name, total in server.enrolled._sums.items() if name != "pace"}
    for place, state in server.states.items():
        out |= {f"{place}.{name}": value.double().clone() for name, value in state.facts_dict().items()}
    return out


def everyone(recipe: Recipe) -> Recipe:
    """The recipe with everybody in every round."""
    return recipe.with_options({"select": "everyone"}) if recipe.select.label == "uniform" else recipe


def tested(federation: Federation) -> Federation:
    """The federation with test samples, which are those that clients train on."""
    return replace(federation, test=federation.train)


# --- counting


@dataclass
class Counts:
    """What became of the mutants of one kind of messages."""

    mutants: int = 0
    refused: int = 0
    harmless: int = 0
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Count those of another recipe too."""
        self.mutants += other.mutants
        self.refused += other.refused
        self.harmless += other.harmless
        self.seconds += other.seconds
        self.errors += other.errors
        self.examples |= other.examples


def count(
    scene: Scene, target: Target, number: int, chance: random.Random, counts: Counts, name: str, thorough: float
) -> None:
    """Read mutants of a message, and follow those that are accepted, this share of them thoroughly."""
    began = time.perf_counter()
    for _ in range(number):
        wrong = mutated(target.data, scene.others, chance)
        counts.mutants += 1
        try:
            accepted = target.read(wrong)
            if accepted is None:
                counts.refused += 1
            else:
                target.follow(accepted, chance.random() < thorough)
                counts.harmless += 1
        except Refused:
            counts.refused += 1
        except Exception as error:
            said = f"{name}: {type(error).__name__}: {str(error)[:90]}"
            counts.errors[said] += 1
            counts.examples.setdefault(said, (name, wrong))
    counts.seconds += time.perf_counter() - began


@contextmanager
def little_room(room: int = ROOM) -> Iterator[None]:
    """A process in which nobody gets more than so many bytes besides what is taken already."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def tried(name: str, mutants: int, seed: int) -> tuple[dict[Kind, Counts], int]:
    """What became of so many mutants of each kind with one recipe, and the largest resident set in KiB."""
    warnings.simplefilter("error", RuntimeWarning)
    torch.set_num_threads(1)
    found, chance = {kind: Counts() for kind in Kind}, random.Random(f"{seed} {name}")
    with double():
        scene = Scene(CASES[name])
        with little_room():
            for kind, counts in found.items():
                targets = [target for target in scene.targets if target.kind is kind]
                for target in targets:
                    count(scene, target, -(-mutants // len(targets)), chance, counts, name, thorough=0.02)
    return found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def table(found: Mapping[Kind, Counts]) -> str:
    """Counts by kind, as text."""
    lines = [f"{'kind':10} {'mutants':>9} {'refused':>9} {'harmless':>9} {'errors':>7} {'ms each':>8}"]
    for kind, counts in found.items():
        each = 1000 * counts.seconds / max(counts.mutants, 1)
        lines.append(
            f"{kind.name:10} {counts.mutants:9,} {counts.refused:9,} {counts.harmless:9,} "
            f"{counts.errors.total():7,} {each:8.2f}"
        )
    said = [(kind, *one) for kind, counts in found.items() for one in counts.errors.most_common()]
    return "\n".join(lines + [f"{kind.name}: {number} times {error}" for kind, error, number in said])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mutants", type=int, nargs="?", default=100_000, help="mutants of each kind")
    parser.add_argument("--cases", default="", help="recipes, separated by semicolons")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    names = [name for name in options.cases.split(";") if name] or list(CASES)
    total, peak = {kind: Counts() for kind in Kind}, 0
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        each = -(-options.mutants // len(names))
        waiting = [pool.submit(tried, name, each, options.seed) for name in names]
        for done, future in enumerate(as_completed(waiting), start=1):
            found, resident = future.result()
            peak = max(peak, resident)
            for kind, counts in found.items():
                total[kind].add(counts)
            print(f"{done} of {len(names)} recipes\n{table(total)}\n", flush=True)
    print(f"largest resident set of a process: {peak / 1024:.0f} MB")


if __name__ == "__main__":
    main()
