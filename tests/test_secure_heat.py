"""Heat as a secure sum over clients that enrol together, as messages."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fedslice.core.header import Kind
from fedslice.core.message import Message
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES
from fedslice.training.events import Listener
from fedslice.training.experiment import Experiment, spec_of
from fedslice.training.population import Population
from fedslice.training.rounds import Phase, enrol
from fedslice.training.server import Server
from fedslice.training.sum_stages import NOBODY
from fedslice.training.sums import Step
from fedslice.training.transports.memory import InMemory, Packed
from test_private_heat import ROWS, with_heat
from toys import assert_same, recommender, run

HEAT = [1 + m % 7 for m in range(ROWS)]


def recipe(source: str = "secure-sum", **settings: Any) -> Recipe:
    return RECIPES["fedsubavg"].with_options({"slices": "whole", "heat_source": source, **settings})


class _Heard(Listener):
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.refusals: list[Any] = []

    def enrolled(self, message: Message) -> None:
        self.messages.append(message)

    def summed(self, message: Message) -> None:
        self.messages.append(message)

    def refused(self, event: Any) -> None:
        self.refusals.append(event)


class _Losing(InMemory):
    """Some clients never answer some steps."""

    def __init__(self, population: Population, lost: dict[Step, set[int]]):
        super().__init__(population)
        self.lost = lost

    def exchange(self, server: Any, phase: Phase, downs: Iterable[Message]) -> Iterator[Message]:
        for reply in super().exchange(server, phase, downs):
            head = reply.head
            if phase.kind is Kind.PART:
                gone = torch.tensor([c in self.lost.get(Step(head.layout % 4), ()) for c in head.clients.tolist()])
                declined = gone if head.declined is None else head.declined | gone
                object.__setattr__(head, "declined", declined)
            yield reply


def played(
    recipe: Recipe, masked: bool, clients: Iterable[int] | None = None, lost: dict[Step, set[int]] | None = None
) -> tuple[Server, _Heard, InMemory]:
    task = with_heat(HEAT, [1 + c % 3 for c in range(7)])
    spec, heard = spec_of(task, recipe, 0, 1), _Heard()
    server = Server(spec, task.initial(0), masked=masked)
    server.events.add(heard)
    population = Population(spec, task, masked=masked)
    transport = Packed(population) if masked and lost is None else _Losing(population, lost or {})
    enrol(server, transport, torch.tensor(list(range(7) if clients is None else clients)))
    return server, heard, transport


def exact(weights: str, clients: Iterable[int] | None = None) -> Tensor:
    server, _, _ = played(recipe("exact", weights=weights), False, clients)
    found: Tensor = server.states["combine"].weight["item.weight"]
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_the_sum_is_the_exact_heat(weights: str, masked: bool) -> None:
    server, heard, _ = played(recipe(weights=weights), masked)
    assert torch.equal(server.states["combine"].weight["item.weight"], exact(weights))
    assert server.states["combine"].numbers.tolist() == list(range(7))
    assert not heard.refusals


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("step", list(Step))
def test_who_is_lost_is_lost_with_and_without_masks(step: Step, masked: bool) -> None:
    """Lost before its vector arrives a client is not counted, and waits; lost later it is. The rest does not notice."""
    server, heard, _ = played(recipe(weights="uniform"), masked, lost={step: {2, 5}})
    counted = [c for c in range(7) if step is Step.REVEAL or c not in (2, 5)]
    state, method = server.states["combine"], server.spec.recipe.combine
    assert state.numbers.tolist() == counted
    assert torch.equal(state.weight["item.weight"], exact("uniform", counted))
    assert state.total == len(counted)
    assert method.uncounted(state).tolist() == [c for c in range(7) if c not in counted]
    assert not heard.refusals


@pytest.mark.parametrize("masked", [False, True])
def test_too_few_that_remain_are_no_sum_and_wait_for_others(masked: bool) -> None:
    server, heard, transport = played(recipe(weights="uniform"), masked, range(5), lost={Step.VECTORS: {0, 1, 2}})
    state = server.states["combine"]
    assert not len(state.numbers)
    assert not bool(state.weight["item.weight"].any())
    assert [refusal.client for refusal in heard.refusals] == [NOBODY]
    assert "ended without a sum" in heard.refusals[0].reason
    assert isinstance(transport, _Losing)
    transport.lost = {}
    enrol(server, transport, torch.tensor([5, 6]))
    assert torch.equal(state.weight["item.weight"], exact("uniform"))


def test_two_clients_wait_for_a_third() -> None:
    server, heard, transport = played(recipe(weights="uniform"), True, [0, 1])
    assert not len(server.states["combine"].numbers)
    assert {message.head.kind for message in heard.messages} == {Kind.ENROL}
    enrol(server, transport, torch.tensor([6]))
    assert torch.equal(server.states["combine"].weight["item.weight"], exact("uniform", [0, 1, 6]))


def test_the_server_is_told_no_clients_rows() -> None:
    """A masked vector is uniform: it is neither the client's own nor the same as in another sum."""
    vectors = []
    for _ in range(2):
        _, heard, _ = played(recipe(weights="uniform"), True)
        names = {name for message in heard.messages if message.head.kind is Kind.ENROL for name in message.fields}
        assert not names
        sent = [m for m in heard.messages if m.head.kind is Kind.PART and m.head.layout == Step.VECTORS]
        assert sorted(int(message.head.clients[0]) for message in sent) == list(range(7))
        vectors.append(torch.stack([m.body["heat/item.weight"][0] for m in sent]))
    first, second = (own.long() % 8 for own in vectors)  # 7 clients: a ring of 3 bits
    assert bool((first > 1).any(1).all())
    assert bool((first != second).any(1).all())


def test_training_is_that_with_exact_heat() -> None:
    task = recommender()
    small = {"lr": 0.05, "iterations": 2, "batch_size": 4, "cohort": 3}
    recipes = [RECIPES["fedsubavg"].with_options({**small, "heat_source": s}) for s in ("exact", "secure-sum")]
    runs = [run(task, method, rounds=3) for method in recipes]
    assert_same(runs[0].model, runs[1].model)
    assert runs[1].ledger.enrol["heat/item.weight"] > 0
    assert "rows/item.weight" not in runs[1].ledger.enrol


def test_what_was_summed_survives_a_restart() -> None:
    server, _, _ = played(recipe(weights="samples"), True)
    again = Server(server.spec, {name: value.clone() for name, value in server.model.items()}, masked=True)
    again.load_state_dict(server.state_dict())
    method: Any = server.spec.recipe.combine
    for one in (server, again):
        assert one.states["combine"].numbers.tolist() == list(range(7))
    before, after = (method.coefficients(one.states["combine"], "item.weight") for one in (server, again))
    assert torch.equal(before, after)


def test_an_experiment_resumes_with_the_same_books() -> None:
    task = recommender()
    method = RECIPES["fedsubavg"].with_options(
        {"heat_source": "secure-sum", "cohort": 3, "iterations": 2, "batch_size": 4}
    )
    whole = run(task, method, rounds=4)
    first = Experiment(task, method, rounds=4)
    for _ in range(2):
        next(iter(first.stream()))
    half = Experiment(task, method, rounds=4)
    half.load_state_dict(*first.state_dict())
    half.run()
    assert_same(half.model, whole.model)
    assert half.ledger.enrol == whole.ledger.enrol
