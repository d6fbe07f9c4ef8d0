"""What a round costs follows its cohort, and the rows that its cohort names: operations are looked at, not clocks."""

import tracemalloc
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedslice.core.errors import UserError
from fedslice.core.part import Round
from fedslice.core.store import Store
from fedslice.data.federation import Federation
from fedslice.recipes import RECIPES, get
from fedslice.task import Task
from fedslice.training.enrolled import Enrolled
from fedslice.training.experiment import Experiment
from fedslice.training.rounds import play_round
from toys import MLP, Pair, Plain, begun, squared

CLIENTS, COHORT = 20_000, 8
ALL_OF_THEM = ("oort",)  # it puts all clients in order of their worth, in every round
# Operations that read or write a few places of a tensor, or give it another shape, at a cost that is not its size.
PLACES = {
    f"aten::{name}"
    for name in (
        *("index.Tensor", "index_put_", "index_select", "index_copy_", "index_fill_.int_Scalar"),
        *("slice.Tensor", "select.int", "detach", "alias", "view", "expand"),
    )
}


class Large(TorchDispatchMode):
    """Notes operations on tensors of at least so many values that do more than look a few of them up."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self.found: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        values = tree_leaves((args, kwargs, out))
        if func.name() not in PLACES and any(isinstance(v, Tensor) and v.numel() >= self._size for v in values):
            self.found.add(func.name())
        return out


@cache
def task(kind: str, clients: int = CLIENTS, items: int = 500) -> Task:
    """Two samples for every client, and a network that is the same however many clients there are."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(clients), 2)
    count = len(client)
    if kind == "rows":
        features = {"item": draw.integers(0, items, (count, 2)), "tag": draw.integers(0, 6, count)}
        federation = Federation.from_arrays(client=client, features=features, label=draw.normal(size=count), test=0.0)
        return Task(federation, lambda: Plain(items), squared, tables={"item.weight": "item", "tag.weight": "tag"})
    columns = {"x": draw.normal(size=(count, 4))}
    label = draw.integers(0, 3, count)
    federation = Federation.from_arrays(client=client, features=columns, label=label, test=0.0)
    return Task(federation, Pair if kind == "pair" else MLP, nn.CrossEntropyLoss(reduction="none"))


def experiment(name: str, made: Task, **options: Any) -> Experiment:
    """A recipe with a small cohort, whoever its own would be."""
    own: dict[str, dict[str, Any]] = {
        "centralsgd": {"cohort": 2},
        "feddd": {"rate": 0.5, "select": "uniform", "cohort": COHORT},
        "fedcs": {"budget": COHORT / CLIENTS},
        "fedgen": {"cohort": COHORT, "server_steps": 2, "width": 4, "generated": 4},
    }
    for key in ("flss", "sign+flss", "fedprox+flss"):
        own[key] = {"cohort": COHORT, "rank": 2, "warmup": 1, "every": 2}
    settings = own.get(name, {"cohort": COHORT}) | {"iterations": 2, "batch_size": 2, "lr": 0.05} | options
    return begun(made, get(name, **settings), rounds=9)


def play(run: Experiment) -> Round:
    """One round, without an evaluation."""
    return play_round(run.server, run.transport)


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ALL_OF_THEM])
def test_no_round_goes_through_all_clients(name: str) -> None:
    kind = "pair" if name == "fdrl" else "rows" if name in ("fedsubavg", "submodelavg") else "mlp"
    run = experiment(name, task(kind))
    assert run.engine
    with Large(CLIENTS // 2) as large:
        for _ in range(3):
            play(run)
    assert not large.found
    tracemalloc.start()
    play(run)  # what NumPy takes is told to tracemalloc
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 4 * CLIENTS


@pytest.mark.parametrize(
    ("name", "options"),
    [("fedavg", {}), ("flss", {}), ("fedprox+flss", {}), ("ditto", {"slices": "feature-rows"})],
)
def test_no_client_goes_through_a_table_of_which_its_batches_name_a_few_rows(
    name: str, options: dict[str, Any]
) -> None:
    """The server may, once: with FLSS the model moves as a whole."""
    items = 4000
    run = experiment(name, task("rows", clients=50, items=items), **options)
    assert run.engine
    with Large(COHORT * items * 3) as large:
        for _ in range(4):
            play(run)
    assert not large.found


@pytest.mark.parametrize("name", ["ditto", "moon", "lbgm", "local", "feddyn"])
def test_what_clients_remember_grows_with_those_who_took_part(name: str) -> None:
    run = experiment(name, task("mlp"))
    seen: set[int] = set()
    for _ in range(4):
        seen |= set(play(run).taken.tolist())
        state = run.population.memories.state_dict()
        assert {len(value) for value in state.values()} == {len(seen)}


def test_a_store_has_places_for_those_alone_of_whom_it_knows_something() -> None:
    """However large their numbers are; what names of one kind share, names of another do not see."""
    store, clients = Store(10**12), torch.tensor([10**11, 3, 10**11 + 1])
    store.put("own/a", clients, torch.arange(3.0))
    store.put("own/b", clients[1:], torch.arange(2.0))
    store.put("other", clients[:1], torch.arange(1.0))
    assert {name: value.tolist() for name, value in store.state_dict().items()} == {
        "own/places": [10**11, 3, 10**11 + 1],
        "other/places": [10**11],
        "own/a/known": [True] * 3,
        "own/a/rows": [0, 1, 2],
        "own/b/known": [False, True, True],
        "own/b/rows": [0, 0, 1],
        "other/known": [True],
        "other/rows": [0],
    }
    memory = store.get("own/b", torch.tensor([10**11, 5, 10**11 + 1]))
    assert memory is not None
    assert memory[1].tolist() == [False, False, True]


@pytest.mark.parametrize(("name", "room"), [("lbgm", 30_000), ("sign", 15_000)])
def test_codecs_with_memories_need_room_for_those_who_can_take_part(
    monkeypatch: pytest.MonkeyPatch, name: str, room: int
) -> None:
    """A model of 51 values takes 204 bytes: those of nine rounds of eight clients fit into 15 kB, twice as much where
    both sides remember one, and the population's do not.
    """
    monkeypatch.setattr("fedslice.codecs.memory._MOST", room)
    assert experiment(name, task("mlp"))
    with pytest.raises(UserError, match="a whole model for each of 20,000 clients"):
        Experiment(task("mlp"), get(name, select="everyone"), rounds=9)
    monkeypatch.setattr("fedslice.codecs.memory._MOST", room // 2)
    with pytest.raises(UserError, match="a whole model for each of 72 clients"):
        experiment(name, task("mlp"))


@given(
    st.lists(st.tuples(st.sampled_from(("enrol", "take", "leave")), st.sets(st.integers(0, 7), min_size=1))),
    st.booleans(),
)
def test_what_is_known_of_all_clients_is_what_a_look_at_each_of_them_finds(
    events: list[tuple[str, set[int]]], restarted: bool
) -> None:
    """Sums of facts and the oldest round: they change with those who enrol, upload and leave."""
    enrolled = Enrolled()
    samples: dict[int, int] = {}
    rounds: dict[int, int] = {}
    for t, (what, who) in enumerate(events):
        here = sorted(who if what == "enrol" else who & samples.keys())
        clients = torch.tensor(here, dtype=torch.int64)
        if what == "enrol":
            samples |= {client: 10 * t + client for client in here}
            enrolled.add(clients, {"samples": torch.tensor([[samples[client]] for client in here])})
        elif what == "take":
            rounds |= dict.fromkeys(here, t)
            enrolled.took(torch.cat([clients, clients]), t)  # a client may be drawn twice in a round
        else:
            samples = {client: own for client, own in samples.items() if client not in here}
            rounds = {client: own for client, own in rounds.items() if client not in here}
            enrolled.remove(clients)
    if restarted and samples:
        facts, state, enrolled = enrolled.facts_dict(), enrolled.state_dict(), Enrolled()
        enrolled.load_facts_dict(facts)
        enrolled.load_state_dict(state)
    assert enrolled.numbers().tolist() == sorted(samples)
    assert enrolled.oldest() == min(rounds.values(), default=0)
    if samples:
        assert enrolled.sum("samples") == sum(samples.values())
