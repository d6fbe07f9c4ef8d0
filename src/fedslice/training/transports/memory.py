"""Messages that never leave memory: the transport of simulations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from fedslice.core.message import Message
from fedslice.select.base import Cohort
from fedslice.training.population import Population
from fedslice.training.rounds import Phase, Stage
from fedslice.training.server import Server


class InMemory:
    """Hand messages over as they are: the fields of a chunk stay tensors, and are only sized.

    Args:
        population: The clients.
    """

    def __init__(self, population: Population):
        self.population = population

    def chunks(self, stage: Stage, cohort: Cohort) -> Iterator[Cohort]:
        """Return chunks as large as the population takes, of clients that are alike."""
        return self.population.chunks(stage.name, cohort)

    def exchange(self, server: Server, phase: Phase, downs: Iterable[Message]) -> Iterator[Message]:  # noqa: ARG002
        """Return the clients' replies."""
        return (phase.reply(self.population, down) for down in downs)

    def settle(self, clients: Tensor, taken: Tensor) -> None:
        """Commit at once what clients remember, so that nothing is kept twice."""
        self.population.settle(clients, taken)


class Packed(InMemory):
    """The same, but every message becomes bytes, and is read and checked by the other side. For checking."""

    def exchange(self, server: Server, phase: Phase, downs: Iterable[Message]) -> Iterator[Message]:
        """Return the clients' replies, one by one."""
        fingerprint = server.spec.fingerprint
        for down in downs:
            for client in range(down.clients):
                number = int(down.head.clients[client])
                reply = phase.reply(self.population, self.population.read(_bytes(down, client, fingerprint)))
                up = server.read(_bytes(reply, 0, fingerprint), phase.kind, number)
                if up is not None:
                    yield up


def _bytes(message: Message, client: int, fingerprint: bytes) -> bytes:
    """One client's message, which must be as long as it is counted."""
    data = message.pack(client, fingerprint)
    counted = int(message.framing()[client]) + sum(int(size[client]) for size in message.sizes().values())
    if len(data) != counted:
        raise RuntimeError(f"a message takes {len(data)} bytes where {counted} are counted")
    return data
