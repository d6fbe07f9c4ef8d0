"""A server and clients in processes of their own that exchange nothing but bytes, and the simulation beside them."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor, nn

import fedslice as fs
from fedslice.codecs import StreamingSubspace
from fedslice.combine import Coverage, HeatCorrected, Mean, Median, TrimmedMean
from fedslice.core.header import Kind, open_message
from fedslice.core.message import Message
from fedslice.core.spec import Spec
from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.data.samples import Samples
from fedslice.local import FDRL
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES
from fedslice.select import Uniform
from fedslice.select.base import Cohort
from fedslice.slices import ChannelDropout, FeatureRows, Shared
from fedslice.task import Task
from fedslice.training.devices import Devices
from fedslice.training.ledger import Ledger
from fedslice.training.rounds import EXCHANGE, Phase, Stage, play_round
from fedslice.training.sums import Purpose, Step, place
from fedslice.training.transports.memory import InMemory
from fedslice.training.transports.pipes import Pipes
from toys import begun, double, fitting, pair, readers, recommender, training

EIGHT = (3, 7, 1, 12, 5, 4, 6, 2)
SILENT = {(1, 2), (2, 2), (1, 5), (3, 0), (2, 6)}  # rounds in which a client does not answer
LOST = {(0, 5), (2, 0), (1, 6), (2, 1)}  # rounds in which what it has trained never arrives
SMALL: dict[str, Any] = {"iterations": 3, "batch_size": 4, "lr": 0.05}

# What the examples put together.
COMBINED: dict[str, tuple[Any, Recipe]] = {
    "fdrl_rows": (
        readers,
        Recipe(
            select=Uniform(cohort=6),
            slices=Shared("shared.*", inner=FeatureRows()),
            local=training(FDRL, alpha=0.1, beta=0.1, **SMALL),
            combine=HeatCorrected(weights="uniform"),
        ),
    ),
    "fdrl_subspace": (
        pair,
        Recipe(
            select=Uniform(cohort=6),
            slices=Shared("shared.*"),
            local=training(FDRL, momentum=0.5, weight_decay=1e-4, **SMALL),
            codec=StreamingSubspace(rank=2, warmup=1, every=2),
            combine=Mean(weights="uniform"),
        ),
    ),
    "fdrl_channels": (
        pair,
        Recipe(
            select=Uniform(cohort=6),
            slices=Shared("shared.*", inner=ChannelDropout(rate=0.5, full_every=3)),
            local=training(FDRL, **SMALL),
            combine=Coverage(weights="uniform"),
        ),
    ),
}
COMBINED |= {
    "median": (
        readers,
        RECIPES["scaffold"].with_options(
            {"cohort": 6, "slices": "feature-rows", "combine": Median(memory=1e-8), **SMALL}
        ),
    ),
    "randomized-heat": (
        recommender,
        RECIPES["fedsubavg"].with_options({"cohort": 6, "heat_source": "randomized-response", "epsilon": 1.0, **SMALL}),
    ),
    "summed-heat": (
        recommender,
        RECIPES["fedsubavg"].with_options({"cohort": 6, "heat_source": "secure-sum", **SMALL}),
    ),
    "secagg": (
        recommender,
        RECIPES["fedavg"].with_options({"cohort": 6, "codec": "secagg", "bound": 0.5, **SMALL}),
    ),
    "secagg-rows": (
        recommender,
        RECIPES["fedsubavg"].with_options({"cohort": 6, "codec": "secagg", "heat_source": "secure-sum", **SMALL}),
    ),
    "trimmed-mean": (
        pair,
        RECIPES["sign"].with_options({"cohort": 6, "combine": TrimmedMean(trim=0.2), **SMALL}),
    ),
}
_FIRST = (Purpose.UPDATES, Step.KEYS)
NAMES = [*RECIPES, *COMBINED]


@dataclass(frozen=True)
class Case:
    """A run that both sides can build, each for itself.

    Args:
        name: A recipe of the table, or a combination of the examples.
        rounds: How long it is.
        options: Other settings.
        silent: Rounds and clients that do not answer.
        lost: Rounds and clients whose upload does not arrive.
        hangs: Whether clients that do not answer stay connected, so that the server waits for them.
    """

    name: str
    rounds: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    silent: frozenset[tuple[int, int]] = frozenset(SILENT)
    lost: frozenset[tuple[int, int]] = frozenset(LOST)
    hangs: bool = False

    def build(self) -> tuple[Task, Recipe]:
        """The task with all data, and the recipe."""
        if self.name in COMBINED:
            make, recipe = COMBINED[self.name]
            return make(EIGHT), recipe.with_options(self.options)
        task, recipe = fitting(self.name, EIGHT)
        if recipe.select.label == "uniform":
            recipe = recipe.with_options({"cohort": 6})
        return task, recipe.with_options(self.options)

    def devices(self) -> Devices | None:
        """Devices, if the recipe cannot do without."""
        return Devices.drawn(len(EIGHT), 0) if self.name in ("fedcs", "oort") else None


class Timed(Case):
    """Clients know how fast their devices are."""

    def devices(self) -> Devices | None:
        return Devices.drawn(len(EIGHT), 0)


@dataclass(frozen=True)
class Outcome:
    """What a run came to: the model, and bytes by direction and field."""

    model: dict[str, Tensor]
    books: dict[str, Any]
    taken: list[list[int]]


class Unreliable(InMemory):
    """Clients of which some do not answer in some rounds, and what others send is lost."""

    def __init__(self, population: Any, case: Case):
        super().__init__(population)
        self._case = case

    def chunks(self, stage: Stage, cohort: Cohort) -> Iterator[Cohort]:
        for one in range(len(cohort.clients)):
            yield Cohort(cohort.clients[one : one + 1], cohort.draws[one : one + 1])

    def exchange(self, server: Any, phase: Phase, downs: Any) -> Iterator[Message]:
        for down in downs:
            here = (down.head.round, int(down.head.clients[0]))
            if (phase in EXCHANGE.phases or _begins(down)) and here in self._case.silent:
                continue
            reply = phase.reply(self.population, down)
            if phase.kind is not Kind.UPLOAD or here not in self._case.lost:
                yield reply


def _begins(down: Message) -> bool:
    """Whether a message is the first of a round whose uploads are summed."""
    return down.head.kind is Kind.SUM and down.head.layout == place(*_FIRST)


def simulated(case: Case) -> Outcome:
    """The run in one process."""
    task, recipe = case.build()
    experiment = begun(task, recipe, rounds=case.rounds, chunk=1, devices=case.devices())
    transport = Unreliable(experiment.population, case)
    taken = [sorted(play_round(experiment.server, transport).taken.tolist()) for _ in range(case.rounds)]
    return Outcome(dict(experiment.model), experiment.ledger.state_dict(), taken)


# --- the server's process


@dataclass(frozen=True)
class Job:
    """What a server is started with: no data, and no task."""

    recipe: Recipe
    module: nn.Module
    loss: Any
    tables: dict[str, Any]
    rounds: int
    timed: bool
    clients: int
    timeout: float
    metrics: tuple[str, ...]


def serve(orders: Connection) -> None:
    """Run jobs until there are no more, each with pipes to its clients."""
    torch.set_num_threads(1)
    while (order := orders.recv()) is not None:
        job, pipes = order
        orders.send("here")
        try:
            with double():
                orders.send(_serve(job, pipes))
        except Exception:
            orders.send(traceback.format_exc())
        finally:
            for pipe in (pipe for spare in pipes for pipe in spare):
                pipe.close()  # clients end when all pipes are closed


def _serve(job: Job, pipes: list[list[Connection]]) -> Outcome:
    server = fs.Server(
        job.recipe,
        job.module,
        loss=job.loss,
        tables=job.tables,
        rounds=job.rounds,
        timed=job.timed,
        metrics=job.metrics,
    )
    ledger = Ledger(server.spec)
    server.events.add(ledger)
    transport, taken = Pipes(timeout=job.timeout), []
    spare = [list(own) for own in pipes]
    for t in range(job.rounds):
        if not t:
            assert transport.gather(server, [own.pop(0) for own in spare]) == list(range(job.clients))
        for number, own in enumerate(spare):
            if number not in transport.connected:
                assert transport.connect(server, own.pop(0)) == number
        taken.append(sorted(play_round(server, transport).taken.tolist()))
        assert server.round == t + 1
    held = [thing for thing in gc.get_objects() if type(thing) in (Federation, Task)]
    assert not held, "the server's process has data"
    assert isinstance(server.spec, Spec)
    return Outcome(dict(server.model), ledger.state_dict(), taken)


# --- the clients' process


def attend(orders: Connection) -> None:
    """Be the clients of one case after the other, each at a pipe of its own."""
    torch.set_num_threads(1)
    while (order := orders.recv()) is not None:
        case, pipes = order
        orders.send("here")
        try:
            with double():
                _attend(case, pipes)
            orders.send(None)
        except Exception:
            orders.send(traceback.format_exc())


def _attend(case: Case, pipes: list[list[Connection]]) -> None:
    task, recipe = case.build()
    devices = case.devices()
    clients = {}
    for number, spare in enumerate(pipes):
        client = alone(task, recipe, number, case.rounds, devices)
        clients[spare.pop(0)] = client
    for pipe, client in clients.items():
        pipe.send_bytes(client.hello())
    while clients:
        for pipe in wait(list(clients)):
            assert isinstance(pipe, Connection)
            try:
                data = pipe.recv_bytes()
            except (EOFError, OSError):
                del clients[pipe]
                continue
            client = clients[pipe]
            head = open_message(data, client._fingerprint).head
            here = (head.round, client.number)
            begins = head.kind is Kind.INVITE or (head.kind is Kind.SUM and head.layout == place(*_FIRST))
            silent = begins and here in case.silent
            reply = b"" if silent else client.reply(data)
            if not silent and (head.kind is not Kind.DOWNLOAD or here not in case.lost):
                pipe.send_bytes(reply)
            elif not case.hangs:  # it goes away, and comes again for the next round
                pipe.close()
                del clients[pipe]
                other = pipes[client.number or 0].pop(0)
                other.send_bytes(client.hello())
                clients[other] = client


def alone(task: Task, recipe: Recipe, number: int, rounds: int, devices: Devices | None, **more: Any) -> fs.Client:
    """A client with its own samples, and a model whose values are not those of the server."""
    module = task.build(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    own = None
    if devices is not None:
        own = Devices(**{name: values[[number]] for name, values in vars(devices).items()})
    return fs.Client(
        samples(task, number),
        recipe,
        _Blank(module),
        task.loss,
        tables=task.tables,
        rounds=rounds,
        devices=own,
        metrics=task.metrics,
        **{"secret": 0, **more},  # that of the simulation
    )


class _Blank:
    """A builder of a module without values of its own."""

    def __init__(self, module: nn.Module):
        self._module = module

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self._module)


def samples(task: Task, number: int) -> Federation:
    """One client's samples."""
    train, test = (_own(part, number) for part in (task.federation.train, task.federation.test))
    return Federation(train, test, task.federation.ids[[number]])


def _own(all_of_them: Samples, number: int) -> Samples:
    first, end = int(all_of_them.offsets[number]), int(all_of_them.offsets[number + 1])
    own = torch.arange(first, end)
    columns = {
        name: column.take(own) if isinstance(column, Ragged) else column[own]
        for name, column in all_of_them.features.items()
    }
    return Samples(columns, all_of_them.label[own], torch.tensor([0, end - first]))


# --- both


class Sides:
    """Two processes that stay, one for servers and one for clients."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders, self._processes = [], []
        for target in (serve, attend):
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(theirs,), daemon=True)
            process.start()
            self._orders.append(ours)
            self._processes.append(process)

    def run(self, case: Case, timeout: float = 0.0) -> Outcome:
        """Play a case between the two."""
        with double():
            task, recipe = case.build()
            module = task.build(0)
        tables = dict(task.tables)
        job = Job(
            recipe, module, task.loss, tables, case.rounds, case.devices() is not None, len(EIGHT),
            timeout or 60.0, tuple(task.metrics) or ("loss",),
        )  # fmt: skip
        missing = [who for _, who in case.silent | case.lost]
        pairs = [[multiprocessing.Pipe() for _ in range(1 + missing.count(n))] for n in range(len(EIGHT))]
        server, clients = self._orders
        clients.send((case, [[theirs for _, theirs in own] for own in pairs]))
        server.send((job, [[ours for ours, _ in own] for own in pairs]))
        assert server.recv() == clients.recv() == "here"
        for ours, theirs in (ends for own in pairs for ends in own):
            ours.close()  # the two processes have their own ends
            theirs.close()
        outcome, complaint = server.recv(), clients.recv()
        assert complaint is None, complaint
        assert isinstance(outcome, Outcome), outcome
        return outcome

    def close(self) -> None:
        for orders, process in zip(self._orders, self._processes, strict=True):
            orders.send(None)
            process.join(10)


@contextmanager
def sides() -> Iterator[Sides]:
    """Both processes, while the context lasts."""
    both = Sides()
    try:
        yield both
    finally:
        both.close()


def without_words(books: dict[str, Any]) -> dict[str, Any]:
    """The books but for what two processes do not know: the clock of simulated devices."""
    return {name: value for name, value in books.items() if name != "clock"}


__all__ = [
    "COMBINED",
    "EIGHT",
    "NAMES",
    "Case",
    "Outcome",
    "Sides",
    "Timed",
    "alone",
    "sides",
    "simulated",
    "without_words",
]
