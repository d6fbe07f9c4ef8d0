"""The round loop, the only one of the project: for simulations, for processes, and for whatever carries messages.

A round is a row of stages, and a stage a list of phases: in each phase the server sends one message to every client
and receives one back. A stage is a barrier: what one client sends in a stage may depend on what all clients sent in the
stage before. Enrolment and evaluation are stages of their own, outside of rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fedslice.core.header import Kind
from fedslice.core.message import Message
from fedslice.core.part import Round
from fedslice.select.base import Cohort

if TYPE_CHECKING:
    from fedslice.training.population import Population
    from fedslice.training.server import Scores, Server


@dataclass(frozen=True)
class Phase:
    """One message each way.

    Args:
        kind: What the client sends.
        reply: The client's half: from what came down to what goes up.
        take: The server's half: from what came up to what goes down in the next phase, if there is one.
    """

    kind: Kind
    reply: Callable[[Population, Message], Message]
    take: Callable[[Server, Message], Message | None]


@dataclass(frozen=True)
class Stage:
    """A list of phases that each client goes through without waiting for others.

    Args:
        name: What happens.
        open: Return the first message to some clients.
        phases: The phases in their order.
        settles: Whether it is known at the end whose uploads were taken.
    """

    name: str
    open: Callable[[Server, Cohort], Message]
    phases: tuple[Phase, ...]
    settles: bool = True


class Transport(Protocol):
    """Whatever carries messages between a server and clients. It knows no method and looks into no message."""

    def chunks(self, stage: Stage, cohort: Cohort) -> Iterable[Cohort]:
        """Return the clients of a cohort in chunks that are exchanged with at once."""
        ...

    def exchange(self, server: Server, phase: Phase, downs: Iterable[Message]) -> Iterable[Message]:
        """Carry messages down, and return what came up and the server could read.

        Clients may never answer: then nothing of them is returned.
        """
        ...

    def settle(self, clients: Tensor, taken: Tensor) -> None:
        """Tell clients the last round of which the server took each upload, if they can be told for nothing."""
        ...


EXCHANGE = Stage(
    "exchange",
    lambda server, clients: server.invitation(clients),
    (
        Phase(Kind.REQUEST, lambda population, down: population.request(down), lambda server, up: server.answer(up)),
        Phase(Kind.UPLOAD, lambda population, down: population.train(down), lambda server, up: server.take(up)),
    ),
)
ENROLMENT = Stage(
    "enrolment",
    lambda server, clients: server.welcome(clients),
    (
        Phase(
            Kind.ENROL,
            lambda population, down: population.introduce(down.head.clients, down.head.round),
            lambda server, up: server.enrol(up),
        ),
    ),
)
EVALUATION = Stage(
    "evaluation",
    lambda server, clients: server.examination(clients),
    (
        Phase(Kind.REQUEST, lambda population, down: population.examined(down), lambda server, up: server.preview(up)),
        Phase(Kind.SCORES, lambda population, down: population.score(down), lambda server, up: server.scored(up)),
    ),
)
SUM = Stage(
    "sum",
    lambda server, clients: server.sums.open(clients),
    (Phase(Kind.PART, lambda population, down: population.summed(down), lambda server, up: server.sums.take(up)),),
    settles=False,
)

SEALED_EXCHANGE = Stage(
    "exchange",
    lambda server, clients: server.sums.open(clients),
    (
        Phase(Kind.REQUEST, lambda population, down: population.delivered(down), EXCHANGE.phases[0].take),
        EXCHANGE.phases[1],
    ),
    settles=False,
)


def play_round(server: Server, transport: Transport) -> Round:
    """Play one round and return what it came to."""
    cohort, settled = server.invite(), True
    for stage, clients in server.stages(cohort):
        play_stage(server, transport, stage, clients)
        settled &= stage.settles
    end = server.finish()
    if not settled:
        transport.settle(cohort.clients, server.taken_rounds(cohort.clients))
    return end


def play_stage(server: Server, transport: Transport, stage: Stage, cohort: Cohort) -> None:
    """Go through the phases of a stage with every client of a cohort that answers."""
    for clients in transport.chunks(stage, cohort):
        downs = [stage.open(server, clients)]
        for phase in stage.phases:
            ups = transport.exchange(server, phase, downs)
            downs = [down for up in ups if (down := phase.take(server, up)) is not None]
        if stage.settles:
            transport.settle(clients.clients, server.taken_rounds(clients.clients))


def enrol(server: Server, transport: Transport, clients: Tensor) -> None:
    """Enrol clients of these numbers, and then learn of all newcomers what they tell in sums alone."""
    play_stage(server, transport, ENROLMENT, _once(clients))
    for stage, newcomers in server.sums.tallies():
        play_stage(server, transport, stage, newcomers)


def evaluate_clients(server: Server, transport: Transport, clients: Tensor | None = None) -> Scores:
    """Return the scores of clients on their own test samples, each with the model that it would start from.

    Args:
        server: The server.
        transport: The clients.
        clients: Their numbers; by default everybody who is enrolled.
    """
    play_stage(server, transport, EVALUATION, _once(server.enrolled.numbers() if clients is None else clients))
    return server.scores()


def _once(clients: Tensor) -> Cohort:
    return Cohort(clients, torch.zeros_like(clients))
