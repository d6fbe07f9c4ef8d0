"""Heat that the server estimates from bits that may be lies, through enrolments as messages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedslice as fs
from fedslice.combine import HeatCorrected
from fedslice.core.errors import Refused, UserError
from fedslice.core.header import Kind, open_message
from fedslice.core.message import Message
from fedslice.data.federation import Federation
from fedslice.privacy.heat import RandomizedHeat
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES
from fedslice.select.base import Cohort
from fedslice.task import Task
from fedslice.training.events import Listener
from fedslice.training.experiment import spec_of
from fedslice.training.population import Population
from fedslice.training.rounds import enrol, play_round
from fedslice.training.server import Server
from fedslice.training.transports.memory import InMemory, Packed
from toys import recommender, run, squared

ROWS = 24


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ROWS, 1)

    def forward(self, item: Tensor) -> Tensor:
        return self.item(item).squeeze(-1)


def with_heat(heat: list[int], repeats: list[int] | None = None) -> Task:
    """Row m is named by the first ``heat[m]`` clients, ``repeats[client]`` times each."""
    pairs = [(c, m) for m, n in enumerate(heat) for c in range(n) for _ in range(repeats[c] if repeats else 1)]
    client, item = (np.array(column) for column in zip(*pairs, strict=True))
    data = Federation.from_arrays(client=client, features={"item": item}, label=np.zeros(len(item)), test=0.0)
    return Task(data, Looked(), squared, tables={"item.weight": "item"})


def recipe(**settings: Any) -> Recipe:
    return Recipe(combine=HeatCorrected(heat_source="randomized-response", **settings))


def enrolled(task: Task, recipe: Recipe, secret: int, wire: bool = False) -> Server:
    """A server to which all clients of a task have told what the recipe asks for."""
    spec = spec_of(task, recipe, 0, 1)
    population = Population(spec, task, secret=secret)
    server = Server(spec, task.initial(0))
    clients = torch.arange(len(task.federation))
    enrol(server, (Packed if wire else InMemory)(population), clients)
    return server


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_estimates_have_the_mean_and_the_variance_of_the_formula(weights: str) -> None:
    """40 secrets and 24 rows of four heats each: the mean by four standard errors, the variance by a fifth."""
    clients, draws = 120, 40
    heat = [(120, 60, 20, 3)[m % 4] for m in range(ROWS)]
    repeats = [1 + c % 3 for c in range(clients)]
    task, method = with_heat(heat, repeats), recipe(weights=weights, epsilon=1.0, shrink=0.0)
    mechanism = RandomizedHeat(1.0)
    found = []
    exact = enrolled(task, Recipe(combine=HeatCorrected(weights=weights)), 0)  # type: ignore[arg-type]
    truth = exact.states["combine"].weight["item.weight"].numpy()
    for secret in range(draws):
        server = enrolled(task, method, secret)
        state = server.states["combine"]
        each = method.combine.weigh(state, torch.arange(clients))
        found.append(mechanism.estimate(state.weight["item.weight"].numpy(), float(each.sum())) - truth)
    variance = mechanism.variance(float(each.square().sum()))
    errors = np.array(found)
    assert abs(errors.mean()) < 4 * np.sqrt(variance / errors.size)
    assert np.abs(errors.mean(0)).max() < 5 * np.sqrt(variance / draws)
    assert np.mean(errors**2) == pytest.approx(variance, rel=0.2)


def test_factors_divide_by_what_is_usable() -> None:
    """The clipped estimate, at least ``shrink`` standard deviations, at most everyone."""
    task = with_heat([(40, 1)[m % 2] for m in range(ROWS)])
    server = enrolled(task, recipe(weights="uniform", epsilon=1.0, shrink=2.0), 3)
    method, state = server.spec.recipe.combine, server.states["combine"]
    assert isinstance(method, HeatCorrected)
    mechanism = RandomizedHeat(1.0)
    estimate = (state.weight["item.weight"].numpy() - 40 * mechanism.q) / (mechanism.p - mechanism.q)
    floor = 2 * np.sqrt(40 * mechanism.p * mechanism.q) / (mechanism.p - mechanism.q)
    expected = 40 / np.clip(estimate, floor, 40)
    assert method.coefficients(state, "item.weight").numpy() == pytest.approx(expected, rel=1e-6)
    assert expected.max() > expected.min() >= 1


def test_a_large_epsilon_is_the_exact_correction() -> None:
    task = recommender()
    base = RECIPES["fedsubavg"].with_options({"lr": 0.05, "iterations": 2, "batch_size": 4, "cohort": 3})
    for weights in ("uniform", "samples"):
        honest = base.with_options({"heat_source": "randomized-response", "epsilon": 40.0, "shrink": 0.0})
        pair = (run(task, one.with_options({"weights": weights}), rounds=3).model for one in (base, honest))
        for before, after in zip(*(model.values() for model in pair), strict=True):
            assert torch.allclose(before, after, rtol=1e-6, atol=1e-9)


class _Heard(Listener):
    def __init__(self) -> None:
        self.messages: list[Message] = []

    def enrolled(self, message: Message) -> None:
        self.messages.append(message)

    def requested(self, message: Message) -> None:
        self.messages.append(message)

    def taken(self, event: Any) -> None:
        self.messages.append(event.message)


def test_the_server_is_told_no_rows() -> None:
    """All that arrives: a number of samples and a bit per row, which is the truth for some and a lie for others."""
    task = recommender()
    method = recipe(epsilon=1.0).with_options({"cohort": 4, "iterations": 2, "batch_size": 4})
    spec, heard = spec_of(task, method, 0, 2), _Heard()
    population = Population(spec, task, secret=5)
    server = Server(spec, task.initial(0))
    server.events.add(heard)
    transport, clients = Packed(population), torch.arange(len(task.federation))
    enrol(server, transport, clients)
    for _ in range(2):
        play_round(server, transport)
    assert {message.head.kind for message in heard.messages} == {Kind.ENROL, Kind.REQUEST, Kind.UPLOAD}
    names = {name for message in heard.messages for name in message.fields}
    assert names == {"samples", "bits/item.weight", "bits/tag.weight", "values"}
    for sets in task.index_sets:
        told = [m.body[f"bits/{sets.tables[0]}"][0].bool() for m in heard.messages if m.head.kind is Kind.ENROL]
        held = torch.zeros(len(clients), sets.rows, dtype=torch.bool)
        axis = sets.axis(clients)
        held[torch.repeat_interleave(clients, axis.counts), axis.flat] = True
        bits = torch.stack(told)
        for answer in (True, False):
            assert bool((bits[held] == answer).any())
            assert bool((bits[~held] == answer).any())


def test_a_row_changes_its_own_bit_alone() -> None:
    """So the loss of privacy is that of one bit for each row in which two clients differ."""
    first, second = (with_heat([3] * 5 + [heat] + [3] * (ROWS - 6)) for heat in (0, 3))
    told = []
    for task in (first, second):
        spec = spec_of(task, recipe(epsilon=0.5), 0, 1)
        told.append(Population(spec, task, secret=1).introduce(torch.arange(3)).body["bits/item.weight"])
    differs = (told[0] != told[1]).any(0)
    assert not bool(differs[torch.arange(ROWS) != 5].any())


def both_sides(tmp_path: Path, **client: Any) -> tuple[fs.Server, fs.Client]:
    task = with_heat([1] * ROWS)
    server = fs.Server(recipe(epsilon=1.0), Looked(), tables={"item.weight": "item"})
    told = fs.Client(task.federation, recipe(epsilon=1.0), Looked(), squared, tables={"item.weight": "item"}, **client)
    return server, told


def introduced(server: fs.Server, client: fs.Client) -> bytes:
    number = torch.tensor([server.admit(client.hello())])
    welcome = server.welcome(Cohort(number, torch.zeros_like(number)))
    return client.reply(welcome.pack(0, server.spec.fingerprint))


def test_answers_stay_across_restarts_and_are_of_a_secret_that_nobody_gave(tmp_path: Path) -> None:
    """A client that answered again would be averaged; one that answered from the shared seed would be seen through."""
    server, client = both_sides(tmp_path, directory=tmp_path)
    said = introduced(server, client)
    _, again = both_sides(tmp_path, directory=tmp_path)
    assert introduced(server, again) == said
    answers = [introduced(*both_sides(tmp_path))[-ROWS // 8 :] for _ in range(4)]
    assert len({*answers, said[-ROWS // 8 :]}) > 1


def test_a_client_that_leaves_takes_its_bits_with_it(tmp_path: Path) -> None:
    server, client = both_sides(tmp_path)
    data = introduced(server, client)
    message = server.read(data, Kind.ENROL, 0)
    assert message is not None
    server.enrol(message)
    assert float(server.states["combine"].weight["item.weight"].sum()) > 0
    assert server.read(client.farewell(), Kind.ENROL, 0) is None
    assert float(server.states["combine"].weight["item.weight"].abs().sum()) == 0


def test_two_sides_with_other_chances_do_not_talk(tmp_path: Path) -> None:
    server, _ = both_sides(tmp_path)
    task = with_heat([1] * ROWS)
    other = fs.Client(task.federation, recipe(epsilon=2.0), Looked(), squared, tables={"item.weight": "item"})
    with pytest.raises(Refused, match="schema"):
        open_message(other.hello(), server.spec.fingerprint)


def test_an_epsilon_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="epsilon"):
        Recipe(combine=HeatCorrected()).with_options({"heat_source": "randomized-response", "epsilon": 0})
    with pytest.raises(UserError, match="heat_source"):
        Recipe(combine=HeatCorrected()).with_options({"heat_source": "guess"})
