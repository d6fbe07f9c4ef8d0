"""A server and clients in one process that exchange nothing but bytes and continue from nothing but their folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedslice as fs
from fedslice.core.header import Kind
from fedslice.core.message import Message
from fedslice.core.part import Round
from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged, ranges
from fedslice.data.samples import Samples
from fedslice.select.base import Cohort
from fedslice.training import parties
from fedslice.training.devices import Devices
from fedslice.training.events import Listener, Refusal
from fedslice.training.experiment import spec_of
from fedslice.training.population import Population
from fedslice.training.rounds import EXCHANGE, Phase, Stage, enrol, play_round
from fedslice.training.server import Server
from fedslice.training.transports.memory import InMemory
from two_sides import EIGHT, Case, alone

# What a client remembers of what it was sent: in a simulation the server's model is read instead.
COPIES = ("first.", "codec.copy/", "codec.basis/", "codec.round")


class Killed(Exception):
    """What becomes of a process that is killed."""


class Disk:
    """Writes states to files. By name of the file the next write may be one during which its process is killed.

    Faults are ``computed`` (before anything is written), ``torn`` (in the middle of it), ``unnamed`` (all is written,
    and not yet under its name) and ``written`` (afterwards).
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.faults: dict[str, str] = {}
        self._write = parties.write
        monkeypatch.setattr(parties, "write", self.write)
        monkeypatch.setattr(os, "fsync", lambda file: None)  # processes are killed here, and disks are not

    def write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        fault = self.faults.pop(path.name, None)
        if fault == "computed":
            raise Killed
        if fault in ("torn", "unnamed"):
            aside = path.parent / "aside" / path.name
            self._write(aside, tensors)
            data = aside.read_bytes()
            path.with_suffix(".partial").write_bytes(data if fault == "unnamed" else data[: len(data) // 2])
            raise Killed
        self._write(path, tensors)
        if fault == "written":
            raise Killed


class Device:
    """A client that can be killed and started again.

    Args:
        world: What is run.
        data: Whose samples it has, by the number of the client in the task.
        name: The name of its folder.
    """

    def __init__(self, world: World, data: int, name: str = ""):
        self._world, self.data = world, data
        self.folder = world.folder / (name or f"client-{data}")
        self.restart()

    @property
    def number(self) -> int | None:
        return self.client.number

    def restart(self) -> None:
        """Forget everything but the folder."""
        world = self._world
        self.client = alone(
            world.task, world.recipe, self.data, world.case.rounds, world.case.devices(), directory=self.folder
        )


class World(Listener):
    """A server and devices with folders of their own, and a transport between them.

    Args:
        case: The run.
        folder: Where all folders are.
        enrolled: Whose samples those have who enrol first, in the order of their numbers.
        wire: What carries messages.

    Attributes:
        uploads: Whose upload was taken, by round.
        refusals: Messages that were refused.
    """

    def __init__(self, case: Case, folder: Path, enrolled: Iterable[int] = range(len(EIGHT)), wire: Wire | None = None):
        self.case, self.folder = case, folder
        self.task, self.recipe = case.build()
        self.uploads: dict[int, list[int]] = {}
        self.refusals: list[Refusal] = []
        self.restart_server()
        self.wire = wire or Wire()
        self.devices = [Device(self, data) for data in enrolled]
        self.connect()

    def restart_server(self) -> None:
        """Start the server with nothing but its folder, and the model that training begins with."""
        task = self.task
        self.server = fs.Server(
            self.recipe,
            task.build(0),
            loss=task.loss,
            tables=dict(task.tables),
            rounds=self.case.rounds,
            timed=self.case.devices() is not None,
            metrics=tuple(task.metrics) or ("loss",),
            directory=self.folder / "server",
        )
        self.server.events.add(self)

    def connect(self) -> None:
        """Let every device greet the server, and enrol those that it does not know."""
        for device in self.devices:
            self.wire.connect(self.server, device)

    def play(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            play_round(self.server, self.wire)

    def finished(self, end: Round) -> None:
        self.uploads[end.number] = sorted(end.taken.tolist())

    def refused(self, event: Refusal) -> None:
        self.refusals.append(event)


class Wire:
    """Carries bytes between a server and devices, one by one. Tests override :meth:`carry`."""

    def __init__(self) -> None:
        self.devices: dict[int, Device] = {}

    def connect(self, server: fs.Server, device: Device) -> int:
        """Admit a device, and enrol it if it is new."""
        number = server.admit(device.client.hello())
        self.devices = {n: d for n, d in self.devices.items() if d is not device} | {number: device}
        if not bool(server.enrolled.has(torch.tensor([number]))):
            enrol(server, self, torch.tensor([number]))
        return number

    def chunks(self, stage: Stage, cohort: Cohort) -> Iterator[Cohort]:
        yield cohort

    def exchange(self, server: fs.Server, phase: Phase, downs: Iterable[Message]) -> Iterator[Message]:
        for down in downs:
            for place, number in enumerate(down.head.clients.tolist()):
                data = self.carry(server, phase, number, down.pack(place, server.spec.fingerprint))
                up = None if data is None else self.read(server, phase, number, data)
                if up is not None:
                    yield up

    def read(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> Message | None:
        """What the server makes of a client's message."""
        return server.read(data, phase.kind, number)

    def carry(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> bytes | None:
        """A client's answer to a message, if there is one."""
        device = self.devices.get(number)
        return None if device is None else device.client.reply(data)

    def settle(self, clients: Tensor, taken: Tensor) -> None:
        pass


class Losing(Wire):
    """A wire on which some clients are not reached in some rounds, and some uploads get lost.

    Args:
        silent: Rounds and clients that are not reached.
        lost: Rounds and clients whose uploads get lost.
    """

    def __init__(self, silent: Iterable[tuple[int, int]] = (), lost: Iterable[tuple[int, int]] = ()):
        super().__init__()
        self.silent, self.lost = set(silent), set(lost)

    def carry(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> bytes | None:
        here = (server.round, number)
        if here in self.silent and phase in EXCHANGE.phases:
            return None
        answer = super().carry(server, phase, number, data)
        return None if phase.kind is Kind.UPLOAD and here in self.lost else answer


class Chosen(InMemory):
    """Clients in memory of whom some take part in a round, and nobody hears of the others."""

    def __init__(self, population: Any, taken: dict[int, list[int]]):
        super().__init__(population)
        self._taken = taken

    def chunks(self, stage: Stage, cohort: Cohort) -> Iterator[Cohort]:
        for one in range(len(cohort.clients)):
            yield Cohort(cohort.clients[one : one + 1], cohort.draws[one : one + 1])

    def exchange(self, server: Any, phase: Phase, downs: Iterable[Message]) -> Iterator[Message]:
        for down in downs:
            here = int(down.head.clients[0]) in self._taken[down.head.round]
            if here or phase not in EXCHANGE.phases:
                yield phase.reply(self.population, down)


class Reference:
    """The simulation in which the same clients take part in each round, and nothing is ever interrupted.

    Args:
        case: The run.
        sources: Whose samples each client has.
        enrolled: Who enrols before the first round; by default everybody.
    """

    def __init__(self, case: Case, sources: Sequence[int] = range(len(EIGHT)), enrolled: Sequence[int] | None = None):
        task, recipe = case.build()
        devices = case.devices()
        if devices is not None:
            devices = Devices(**{name: values[list(sources)] for name, values in vars(devices).items()})
        task = replace(task, federation=members(task.federation, sources))
        spec = spec_of(task, recipe, 0, case.rounds, devices is not None)
        self.population = Population(spec, task, devices=devices, chunk=1)
        self.memories = self.population.memories
        self.server = Server(spec, task.initial(0))
        self.enrol(range(len(sources)) if enrolled is None else enrolled)

    def enrol(self, clients: Iterable[int]) -> None:
        """Enrol more clients."""
        enrol(self.server, InMemory(self.population), torch.tensor(list(clients)))

    def play(self, uploads: dict[int, list[int]], rounds: int | None = None) -> Reference:
        """Play some rounds, or all, with those whose uploads were taken."""
        transport = Chosen(self.population, uploads)
        for _ in range(len(uploads) if rounds is None else rounds):
            play_round(self.server, transport)
        return self

    def roll_back(self, client: int, older: dict[str, Tensor]) -> None:
        """Let a client remember what :func:`remembered` found earlier, and nothing else."""
        store, who = self.memories.store, torch.tensor([client])
        for name in {*store._rows, *store._sparse}:
            store.forget(name, who)
        for name, value in older.items():
            if f"{name} rows" in older:
                ids = older[f"{name} rows"]
                store.put_rows(name, who, ids[None], torch.ones(1, len(ids), dtype=torch.bool), value[None])
            elif not name.endswith(" rows") and name != "committed":
                store.put(name, who, value[None])
        self.memories.committed[client] = self.memories.model_round[client] = int(older["committed"])


def members(federation: Federation, sources: Sequence[int]) -> Federation:
    """A federation whose clients have the samples of these clients, who may occur more than once."""
    index, sizes = ranges(federation.train.offsets, torch.tensor(list(sources)))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(sizes, minlength=len(sources)).cumsum(0)])
    features = {
        name: column.take(index) if isinstance(column, Ragged) else column[index]
        for name, column in federation.train.features.items()
    }
    train = Samples(features, federation.train.label[index], offsets)
    test = replace(federation.test, offsets=torch.zeros(len(sources) + 1, dtype=torch.int64))
    return Federation(train, test, np.arange(len(sources)))


def remembered(memories: Any, client: int) -> dict[str, Tensor]:
    """What a client remembers for certain, but for copies of what it was sent."""
    store, who = memories.store, torch.tensor([client])
    out: dict[str, Tensor] = {"committed": memories.committed[client].double()}
    for name in store._rows:
        found = store.get(name, who)
        if found is not None and bool(found[1]):
            out[name] = found[0][0]
    for name, own in store._sparse.items():
        if client in own:
            out[f"{name} rows"], out[name] = own[client]
    return {name: value for name, value in out.items() if not name.startswith(COPIES)}


def settled(world: World, device: Device) -> dict[str, Tensor]:
    """What a device remembers once it has heard what was taken; it is started again for this."""
    device.restart()
    number = device.number
    assert number is not None
    population, who = device.client.population, torch.tensor([number])
    population.settle(who, world.server.taken_rounds(who))
    return remembered(population.memories, number)
