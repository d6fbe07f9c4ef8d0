"""Mutated messages of secure sums: refused, or at worst the round ends without a sum. Nothing else comes out."""

import random
from collections.abc import Iterable, Iterator

import pytest
import torch

from fedslice.core.errors import Refused
from fedslice.core.header import HEADER_BYTES, Kind
from fedslice.core.message import Message
from fedslice.training.experiment import spec_of
from fedslice.training.population import Population
from fedslice.training.rounds import Phase, enrol, play_round
from fedslice.training.server import Server
from fedslice.training.sums import placed
from fedslice.training.transports.memory import Packed
from test_sealed_updates import EVERYONE, SIZES, _Heard, sealed
from toys import double, fitting, recommender

ROUNDS = 25
VICTIM = 3


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The message with bits flipped, cut short, made longer, or with a number overwritten."""
    kind = chance.randrange(5)
    if kind == 0:
        out = bytearray(data)
        for _ in range(chance.randint(1, 8)):
            out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
        return bytes(out)
    if kind == 1:
        return data[: chance.randrange(len(data))]
    if kind == 2:
        return data + chance.randbytes(chance.randint(1, 64))
    start = chance.randrange(HEADER_BYTES - 8, max(len(data) - 8, HEADER_BYTES - 7))
    word = chance.choice([b"\xff" * 8, bytes(8), chance.randbytes(8)])
    return data[:start] + word + data[start + 8 :]


class _Mutating(Packed):
    """Changes what one client is sent, or sends, in some sums."""

    def __init__(self, population: Population, seed: int, down: bool):
        super().__init__(population)
        self._chance, self._down = random.Random(seed), down
        self.refused = self.tried = 0

    def exchange(self, server: Server, phase: Phase, downs: Iterable[Message]) -> Iterator[Message]:
        fingerprint = server.spec.fingerprint
        for down in downs:
            for place, number in enumerate(down.head.clients.tolist()):
                request = down.pack(place, fingerprint)
                mine = phase.kind is Kind.PART and number == VICTIM and self._chance.random() < 0.5
                self.tried += mine
                try:
                    if mine and self._down:
                        request = mutated(request, self._chance)
                    reply = phase.reply(self.population, self.population.read(request)).pack(0, fingerprint)
                except Refused:
                    self.refused += 1
                    continue
                if mine and not self._down:
                    reply = mutated(reply, self._chance)
                up = server.read(reply, phase.kind, number)
                if up is None:
                    self.refused += mine
                else:
                    yield up


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_one_clients_mutated_messages_spoil_no_round(name: str, masked: bool, down: bool) -> None:
    """Every round ends, with a finite model; with this many clients nearly all of them with a sum."""
    with double():
        _, plain = fitting(name, SIZES)
        recipe = sealed(plain.with_options(EVERYONE))
        task = recommender(SIZES)
        spec, heard = spec_of(task, recipe, 0, ROUNDS), _Heard()
        server = Server(spec, {n: v.clone() for n, v in task.initial(0).items()}, masked=masked)
        server.events.add(heard)
        population = Population(spec, task, masked=masked)
        enrol(server, Packed(population), torch.arange(len(SIZES)))
        transport = _Mutating(population, 0, down)
        for _ in range(ROUNDS):
            play_round(server, transport)
        assert server.round == ROUNDS
        assert all(bool(value.isfinite().all()) for value in server.model.values())
        assert transport.tried >= 20
        assert transport.refused > transport.tried / 3
        after = {name: value.clone() for name, value in server.model.items()}
        play_round(server, Packed(population))
        assert any(not torch.equal(after[name], value) for name, value in server.model.items())


@pytest.mark.parametrize("layout", [2**10, 2**25, 2**32 - 1])
def test_a_sum_for_an_unknown_purpose_is_refused(layout: int) -> None:
    with pytest.raises(Refused, match="unknown purpose"):
        placed(layout)
