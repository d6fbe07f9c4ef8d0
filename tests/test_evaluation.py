"""Evaluation by clients: the same scores whatever carries the messages, and no trace in the run."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import fedslice as fs
from fedslice.core.message import Message
from fedslice.recipe import Recipe
from fedslice.task import Task
from fedslice.training.events import Listener
from fedslice.training.ledger import Ledger
from fedslice.training.rounds import evaluate_clients, play_round
from mutations import Device
from toys import assert_same, begun, double, mlp, recommender
from two_sides import EIGHT, Case, alone
from wire import Wire

ROUNDS = 6
OFFSETS = [0, 4, 5, 5, 11, 14, 16, 17, 18]  # one client has no test sample
CASES = {
    "fedavg": Case("fedavg"),
    "fedsubavg": Case("fedsubavg"),
    "scaffold": Case("scaffold"),
    "sign": Case("sign"),
    "lbgm": Case("lbgm", options={"delta": 0.6}),
    "stc": Case("stc", options={"share": 0.2}),
    "stc on rows": Case("fedsubavg", options={"codec": "stc", "share": 0.2, "combine": "mean"}),
    "fetchsgd": Case("fetchsgd"),
    "flss": Case("flss", options={"warmup": 2, "every": 2}),
    "feddd": Case("feddd"),
    "heterofl": Case("heterofl"),
    "fjord": Case("fjord"),
    "fedrep": Case("fedrep"),
    "fedbabu": Case("fedbabu"),
    "fdrl": Case("fdrl"),
    "ditto": Case("ditto"),
    "apfl": Case("apfl"),
    "local": Case("local"),
}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


def built(case: Case) -> tuple[Task, Recipe]:
    """The task, whose test samples name rows that their clients do not hold, and the recipe."""
    task, recipe = case.build()
    sizes = (4, 1, 6, 3, 2, 2)
    other = recommender(sizes, seed=5) if task.tables else mlp(sizes, seed=5)
    test = replace(other.federation.train, offsets=torch.tensor(OFFSETS))
    metrics = {"level": lambda outputs, labels: float(outputs.mean() - labels.double().mean())}
    return replace(task, federation=replace(task.federation, test=test), metrics=metrics), recipe


class Bytes:
    """A server and clients that exchange bytes."""

    def __init__(self, case: Case):
        task, recipe = built(case)
        self.server = fs.Server(
            recipe, task.build(0), loss=task.loss, tables=dict(task.tables), rounds=ROUNDS, metrics=tuple(task.metrics)
        )
        self.ledger = Ledger(self.server.spec)
        self.server.events.add(self.ledger)
        self.transport = Wire()
        for number in range(len(EIGHT)):
            self.transport.connect(self.server, Device(alone(task, recipe, number, ROUNDS, None)))


class Length(Listener):
    """How long the messages of evaluations are, in all."""

    def __init__(self) -> None:
        self.bytes = self.framing = 0

    def previewed(self, request: Message, message: Message) -> None:
        self._add(request)
        self._add(message)

    def scored(self, message: Message) -> None:
        self._add(message)

    def _add(self, message: Message) -> None:
        self.bytes += sum(int(size.sum()) for size in message.sizes().values())
        self.framing += int(message.framing().sum())


def scores(run: Any) -> dict[int, dict[str, float]]:
    """What every client has said, by its number."""
    found = evaluate_clients(run.server, run.transport)
    columns = {name: values.tolist() for name, values in found.columns.items()}
    return {client: {name: own[i] for name, own in columns.items()} for i, client in enumerate(found.clients.tolist())}


@pytest.mark.parametrize("name", CASES)
def test_clients_say_the_same_in_memory_packed_and_in_bytes(name: str) -> None:
    case = CASES[name]
    task, recipe = built(case)
    memory = begun(task, recipe, rounds=ROUNDS, measure=("personal",))
    runs = [memory, begun(task, recipe, rounds=ROUNDS, wire=True), Bytes(case)]
    for run in runs:
        for _ in range(4):
            play_round(run.server, run.transport)
    said = [scores(run) for run in runs]
    memory._row()
    expected = dict(enumerate(memory.clients()["personal_level"]))
    for found in said:
        assert found.keys() == expected.keys()
        for client, own in found.items():
            assert own["samples"] == OFFSETS[client + 1] - OFFSETS[client]
            assert own["level"] == pytest.approx(expected[client], rel=1e-6, abs=1e-9, nan_ok=True)
    books = [run.ledger.evaluation for run in runs]
    assert books[0] == books[1] == books[2]
    assert sum(books[0].values()) > 0 or name == "local"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("carrier", ["memory", "packed", "bytes"])
def test_an_evaluation_changes_nothing_later(name: str, carrier: str) -> None:
    """Not the model, not what either side remembers, and no byte of another direction."""
    case = CASES[name]
    task, recipe = built(case)

    def begin() -> Any:
        return Bytes(case) if carrier == "bytes" else begun(task, recipe, rounds=ROUNDS, wire=carrier == "packed")

    plain, other, length = begin(), begin(), Length()
    other.server.events.add(length)
    for t in range(ROUNDS):
        for run in (plain, other):
            play_round(run.server, run.transport)
        if t in (0, 3, 4):
            scores(other)
    assert_same(dict(plain.server.model), dict(other.server.model))
    assert_same(plain.server.state_dict(facts=False) | _same, other.server.state_dict(facts=False) | _same)
    for direction in ("up", "down", "enrol"):
        assert getattr(plain.ledger, direction) == getattr(other.ledger, direction)
    assert sum(other.ledger.evaluation.values()) == length.bytes
    assert other.ledger.framing == plain.ledger.framing + length.framing
    assert not plain.ledger.evaluation


_same = {"key": torch.zeros(0)}  # a server's key is its own
