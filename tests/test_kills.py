"""Either side is killed at any instant and started again, and the run continues as if nothing had happened."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedslice as fs
from fedslice.select.base import Cohort
from fedslice.training.rounds import Phase
from toys import assert_close, double
from two_sides import Case, Timed
from wire import Device, Disk, Killed, Losing, Reference, Wire, World, remembered, settled

ROUNDS = 12
KILLS = 12  # of each side, for each recipe: more than a hundred together


# Error feedback, look-backs, control variates, masks, a basis, and private blocks.
CASES = {
    "sign": Case("sign", ROUNDS),
    "stc": Case("stc", ROUNDS, {"share": 0.2}),
    "lbgm": Case("lbgm", ROUNDS, {"delta": 0.6}),
    "scaffold": Case("scaffold", ROUNDS),
    "feddd": Case("feddd", ROUNDS),
    "feddd, allocated": Timed("feddd", ROUNDS, {"rate": None}),
    "flss": Case("flss", ROUNDS, {"warmup": 2}),
    "sign+flss": Case("sign+flss", ROUNDS, {"warmup": 2}),
    "fedrep": Case("fedrep", ROUNDS),
    "fdrl": Case("fdrl", ROUNDS),
}
CLIENT = ("read", "computed", "torn", "unnamed", "written", "sent")
SERVER = ("between", "between", "computed", "torn", "unnamed", "written")


class Deadly(Wire):
    """Kills clients at random instants, and the server between two messages or while it writes.

    A client that was killed takes no further part in the round: its connection is gone.
    """

    def __init__(self, disk: Disk, seed: int, clients: float, server: float):
        super().__init__()
        self._disk, self._chance = disk, random.Random(seed)
        self._of_clients, self._of_server = clients, server
        self._gone: set[int] = set()
        self._left: int | None = None  # messages until the server is killed
        self.kills: dict[tuple[str, str], int] = {}

    def begin(self) -> None:
        """Everybody is connected, and nobody knows what comes."""
        self._gone.clear()
        self._left = None
        self._disk.faults.clear()
        if self._chance.random() < self._of_server:
            instant = self._chance.choice(SERVER)
            self._count("server", instant)
            if instant == "between":
                self._left = self._chance.randrange(1, 12)
            else:
                self._disk.faults["server.safetensors"] = instant

    def carry(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> bytes | None:
        self._tick()
        if number in self._gone:
            return None
        instant = self._chance.choice(CLIENT) if self._chance.random() < self._of_clients else None
        if instant is None:
            return super().carry(server, phase, number, data)
        self._count("clients", instant)
        self._gone.add(number)
        answer = None
        try:
            if instant != "read":
                self._disk.faults |= {} if instant == "sent" else {"client.safetensors": instant}
                answer = super().carry(server, phase, number, data)
        except Killed:
            pass
        self.devices[number].restart()
        return answer

    def read(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> Any:
        self._tick()
        return super().read(server, phase, number, data)

    def _tick(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise Killed

    def _count(self, side: str, instant: str) -> None:
        self.kills[side, instant] = self.kills.get((side, instant), 0) + 1


def killed(case: Case, disk: Disk, folder: Path, seed: int, clients: float, server: float) -> tuple[World, Deadly]:
    """A run in which clients and the server are killed again and again."""
    world = World(case, folder)
    wire = Deadly(disk, seed, clients, server)
    world.wire = wire
    while world.server.round < case.rounds:
        try:
            wire.begin()
            world.connect()
            world.play()
        except Killed:
            world.restart_server()
    wire.kills["server", "between"] = wire.kills.get(("server", "between"), 0)
    return world, wire


def assert_equals(world: World, expected: Reference) -> None:
    """Model, memories of all clients, and what the server remembers of each of them."""
    assert_close(world.server.model, expected.server.model, rtol=1e-6, atol=1e-9)
    for device in world.devices:
        found = settled(world, device)
        assert device.number is not None
        assert_close(found, remembered(expected.memories, device.number), rtol=1e-6, atol=1e-9)
        assert_close(found, found | halves(world.server, device.number), rtol=0, atol=0)


def halves(server: fs.Server, client: int) -> dict[str, Tensor]:
    """What the server remembers of a client that the client remembers as well, under the client's names."""
    codec, slices = server.states["codec"], server.states["slices"]
    stores = {"codec": getattr(codec, "store", None), "slices": getattr(slices, "masks", None)}
    who = torch.tensor([client])
    out = {}
    for place, store in stores.items():
        for name in () if store is None else store._rows:
            found = store.get(name, who)
            if found is not None and bool(found[1]):
                out[f"{place}.{name}"] = found[0][0]
    return out


@pytest.mark.parametrize("name", CASES)
def test_nothing_diverges_from_a_run_without_kills(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen kills of each side per recipe: all ends as if the same clients had taken part and nothing had fallen."""
    case = CASES[name]
    with double():
        world, wire = killed(case, Disk(monkeypatch), tmp_path, seed=0, clients=0.15, server=0.7)
        for side in ("clients", "server"):
            assert sum(number for (one, _), number in wire.kills.items() if one == side) >= KILLS
        assert len({tuple(taken) for taken in world.uploads.values()}) > 2, "the same clients were there in every round"
        assert not world.refusals
        world.restart_server()
        assert_equals(world, Reference(case).play(world.uploads))


def invite_all(world: World) -> None:
    """Begin a round in which everybody is invited, and play it no further."""
    server = world.server
    server.invite()
    for device in world.devices:
        one = torch.tensor([device.number])
        device.client.reply(server.invitation(Cohort(one, one * 0)).pack(0, server.spec.fingerprint))


@pytest.mark.parametrize("name", CASES)
def test_a_server_that_continues_from_an_older_state_gets_into_step_with_its_clients(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some have been taken since, of some the upload got lost, and some meet it only after a few rounds."""
    Disk(monkeypatch)
    lost = {(t, n) for t in (4, 5, 6) for n in (1, 5, 6)}
    case = CASES[name]
    with double():
        world = World(case, tmp_path, wire=Losing(lost=lost))
        expected = Reference(case)
        world.play(4)
        expected.play(world.uploads)
        shutil.copytree(tmp_path / "server", tmp_path / "older")
        older = {name: value.clone() for name, value in expected.server.state_dict().items()}
        world.play(3)
        expected.play(world.uploads, 3)
        invite_all(world)  # so that everybody knows what was taken, as in a simulation
        shutil.rmtree(tmp_path / "server")
        shutil.copytree(tmp_path / "older", tmp_path / "server")
        world.restart_server()
        expected.server.load_state_dict(older)
        world.wire = Losing(silent={(t, n) for t in (4, 5, 6, 7) for n in (1, 2, 6)} | {(4, 0), (4, 3)})
        world.connect()
        world.play(ROUNDS - 4)
        expected.play(world.uploads, ROUNDS - 4)
        assert not world.refusals
        assert_equals(world, expected)


@pytest.mark.parametrize("name", CASES)
def test_clients_that_continue_from_an_older_state_get_into_step_with_the_server(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is worthless without the server's half they forget; a private block, say, is as old as it is."""
    Disk(monkeypatch)
    old, lost = (1, 4), {(5, 1), (7, 4), (8, 1)}
    case = CASES[name]
    with double():
        world = World(case, tmp_path, wire=Losing(lost=lost))
        expected = Reference(case)
        world.play(4)
        expected.play(world.uploads)
        invite_all(world)
        older = {client: remembered(expected.memories, client) for client in old}
        for client in old:
            shutil.copytree(tmp_path / f"client-{client}", tmp_path / f"older-{client}")
        world.server.abandon()
        world.play(3)
        expected.play(world.uploads, 3)
        for client in old:
            shutil.rmtree(tmp_path / f"client-{client}")
            shutil.copytree(tmp_path / f"older-{client}", tmp_path / f"client-{client}")
            world.devices[client].restart()
            expected.roll_back(client, older[client])
        world.connect()
        world.play(ROUNDS - 7)
        expected.play(world.uploads, ROUNDS - 7)
        assert not world.refusals
        assert_equals(world, expected)


@pytest.mark.parametrize("name", CASES)
def test_a_client_that_has_lost_everything_comes_as_a_new_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old number stays with the server, and is never heard of again."""
    Disk(monkeypatch)
    case = CASES[name]
    with double():
        world = World(case, tmp_path)
        expected = Reference(case, [*range(8), 3], range(8))
        world.play(4)
        expected.play(world.uploads)
        gone = world.devices.pop(3)
        del world.wire.devices[3]
        shutil.rmtree(gone.folder)
        world.devices.append(Device(world, 3))
        world.connect()
        assert world.devices[-1].number == 8
        expected.enrol([8])
        world.play(ROUNDS - 4)
        expected.play(world.uploads, ROUNDS - 4)
        assert 8 in {client for taken in world.uploads.values() for client in taken}
        assert not world.refusals
        assert_equals(world, expected)
