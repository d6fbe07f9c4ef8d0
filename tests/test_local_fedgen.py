"""FedGen: the generator is trained on the heads' mean, and clients learn from what it makes."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedslice.combine import Mean
from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.core.slice import Slice, Values
from fedslice.local import FedGen, Local
from fedslice.local.fedgen import GeneratorMemory, GeneratorState, draw, generate
from fedslice.recipe import Recipe, build
from fedslice.select import Everyone, Uniform
from fedslice.server import ServerAdam
from fedslice.task import Task
from fedslice.training.experiment import Experiment
from toys import MLP, assert_close, chosen, classifier, double, memory_of, mlp, run, state_of, training

SETTINGS: dict[str, Any] = {"width": 5, "generated": 6, "server_steps": 4, "epochs": 1, "batch_size": 4, "lr": 0.1}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


def recipe(local: Local, **parts: Any) -> Recipe:
    given: dict[str, Any] = {"select": Uniform(cohort=4), "combine": Mean(weights="uniform")}
    return Recipe(local=local, **(given | parts))


def state(experiment: Experiment) -> GeneratorState:
    """What the server has of the method."""
    found = state_of(experiment)
    assert isinstance(found, GeneratorState)
    return found


def trained(experiment: Experiment) -> Values:
    """The generator."""
    return {name: value.detach() for name, value in state(experiment).generator.items()}


def fedgen(local: Local) -> FedGen:
    """Its settings."""
    (term,) = local.terms
    assert isinstance(term, FedGen)
    return term


def untrained(task: Task, local: Local) -> nn.Sequential:
    """A generator as a network, as it is before the first round."""
    term = fedgen(local)
    made = nn.Sequential(
        nn.Linear(term.width + 3, term.width),
        nn.BatchNorm1d(term.width, track_running_stats=False),
        nn.ReLU(),
        nn.Linear(term.width, 6),
    )
    made.load_state_dict(trained(Experiment(task, recipe(local), rounds=1)))
    return made


def plain(task: Task, local: Local, rounds: int) -> tuple[Values, Values]:
    """Modules and optimizers one after the other, the server asking every client's own head; draws from the method."""
    samples, generator, term = task.federation.train, untrained(task, local), fedgen(local)
    shares = shares_of(task)
    teacher = torch.optim.Adam(generator.parameters(), lr=term.generator_lr)
    received = copy.deepcopy(task.module)
    assert isinstance(received, MLP)

    def drawn(*key: int) -> tuple[Tensor, Tensor]:
        return draw(key, shares, term.generated, term.width, received.second.weight.detach())

    for t in range(rounds):
        modules = []
        for client in chosen(recipe(local), t).clients.tolist():
            network, who = copy.deepcopy(received), torch.tensor([client])
            optimizer = torch.optim.SGD(network.parameters(), lr=local.optimizer.lr)
            batches = local.sampler.batches(t, who, torch.zeros(1), samples.sizes[who], 1, 0)
            for s, (index, real) in enumerate(zip(batches.index[0], batches.real[0], strict=True)):
                if bool(real.any()):
                    given, label = samples.batch(index[real] + samples.offsets[client])
                    classes, noise = drawn(0, rng.Purpose.NOISE, t, client, s)
                    made = network.second(generator(noise).detach())
                    loss = task.loss(network(**given), label).mean() + term.weight * task.loss(made, classes).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            modules.append(network)
        for s in range(term.server_steps):
            classes, noise = drawn(0, rng.Purpose.GENERATOR, t, s)
            made = generator(noise)
            output = sum((network.second(made) for network in modules), torch.zeros(())) / len(modules)
            teacher.zero_grad()
            task.loss(output, classes).mean().backward()
            teacher.step()
        ends = [network.state_dict() for network in modules]
        received.load_state_dict({n: torch.stack([end[n] for end in ends]).mean(0) for n in ends[0]})
    return received.state_dict(), {n: p.detach() for n, p in generator.named_parameters()}


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_it_is_the_method_with_every_clients_head(weight: float) -> None:
    """The mean of linear heads is the head of the mean: the server need not look at any client's own."""
    task, local = mlp(), training(FedGen, weight=weight, **SETTINGS)
    done = run(task, recipe(local), rounds=3, chunk=3)
    model, generator = plain(task, local, 3)
    assert_close(done.model, model, rtol=1e-8, atol=1e-10)
    assert_close(trained(done), generator, rtol=1e-7, atol=1e-9)


def shares_of(task: Task) -> Tensor:
    label = task.federation.train.label.long()
    return (torch.bincount(label, minlength=3) / len(label)).float()


@pytest.mark.parametrize("server", [None, ServerAdam()])
def test_the_server_follows_the_models_head(server: ServerAdam | None) -> None:
    """Whatever its optimizer makes of the clients' mean."""
    task, local = mlp(), training(FedGen, **SETTINGS)
    term = fedgen(local)
    experiment = Experiment(task, recipe(local, **({"server": server} if server else {})), rounds=3, eval_every=1)
    generator, shares = untrained(task, local), shares_of(task)
    teacher = torch.optim.Adam(generator.parameters(), lr=term.generator_lr)
    for row in experiment.stream():
        if not row["round"]:
            continue
        head = [experiment.model[f"second.{name}"] for name in ("weight", "bias")]
        for s in range(term.server_steps):
            key = 0, rng.Purpose.GENERATOR, row["round"] - 1, s
            classes, noise = draw(key, shares, term.generated, term.width, head[0])
            teacher.zero_grad()
            task.loss(nn.functional.linear(generator(noise), *head), classes).mean().backward()
            teacher.step()
        expected = {name: value.detach() for name, value in generator.named_parameters()}
        assert_close(trained(experiment), expected, rtol=1e-9, atol=1e-12)


def test_training_makes_the_head_say_the_class() -> None:
    """The generator's own loss falls; without steps it stays as it began."""
    task = mlp()

    def made(steps: int) -> float:
        local = training(FedGen, **SETTINGS | {"server_steps": steps, "generated": 32})
        done = run(task, recipe(local))
        head = [done.model[f"second.{name}"] for name in ("weight", "bias")]
        classes, noise = draw((0, 99), shares_of(task), 32, SETTINGS["width"], head[0])
        with torch.no_grad():
            output = nn.functional.linear(generate(list(trained(done).values()), noise), *head)
        return float(task.loss(output, classes).mean())

    assert made(80) < 0.5 * made(0)


def test_classes_are_drawn_as_often_as_labels() -> None:
    """The mean over many draws is the share of a label among all clients' samples; noise is uniform."""
    task, like = mlp(), torch.zeros(())
    shares = state(Experiment(task, recipe(training(FedGen, **SETTINGS)), rounds=1)).shares
    assert torch.equal(shares, shares_of(task))

    def drawn(clients: list[int], s: int) -> tuple[Tensor, Tensor]:
        return draw((0, rng.Purpose.NOISE, 3, np.array(clients)[:, None], s), shares, 3000, 5, like)

    classes, given = drawn(list(range(6)), 2)
    assert classes.shape == (6, 3000)
    assert (torch.bincount(classes.flatten(), minlength=3) / classes.numel()).tolist() == pytest.approx(
        shares.tolist(), abs=0.02
    )
    assert torch.equal(given[..., 5:].argmax(-1), classes)
    assert torch.equal(given[..., 5:].sum(-1), torch.ones_like(given[..., 0]))
    noise = given[..., :5]
    assert 0 <= float(noise.min()) < 0.01
    assert 0.99 < float(noise.max()) < 1
    assert float(noise.mean()) == pytest.approx(0.5, abs=0.01)
    others = drawn([4], 2)
    assert torch.equal(others[1][0], given[4])
    assert not torch.equal(drawn([4], 3)[1], others[1])


def test_a_class_that_nobody_has_is_never_drawn() -> None:
    task = mlp()
    task.federation.train.label.clamp_(max=1)
    shares = state(Experiment(task, recipe(training(FedGen, **SETTINGS)), rounds=1)).shares
    assert set(draw((0,), shares, 2000, 1, torch.zeros(()))[0].tolist()) == {0, 1}


def test_what_comes_down_is_the_servers_generator() -> None:
    """All its values in a line, the same for every client, with the shares of the classes."""
    experiment = run(mlp(), recipe(training(FedGen, **SETTINGS)))
    local, spec, clients = fedgen(experiment.recipe.local), experiment.spec, torch.arange(3)
    told = local.tell(state(experiment), 1, clients, Slice.whole(3, spec.shapes))
    assert {name: tuple(entries.shape[1:]) for name, entries in told.items()} == {
        name: field.shape for name, field in local.down_fields(spec, Slice.whole(3, spec.shapes)).items()
    }
    memory = memory_of(experiment)
    assert isinstance(memory, GeneratorMemory)
    for client in range(3):
        parts = memory.generator(told["generator"][client], told["generator"])
        for part, value in zip(parts, trained(experiment).values(), strict=True):
            assert torch.equal(part, value)


def test_labels_are_told_once_and_taken_back() -> None:
    """Who enrols later counts from then on, and who leaves no longer."""
    task = mlp()
    experiment = Experiment(task, recipe(training(FedGen, **SETTINGS)), rounds=1)
    label, offsets = task.federation.train.label, task.federation.train.offsets.tolist()
    counts = experiment.server.enrolled.facts("labels", torch.tensor([4, 1]))
    for own, client in zip(counts, (4, 1), strict=True):
        assert torch.equal(own, torch.bincount(label[offsets[client] : offsets[client + 1]].long(), minlength=3))
    experiment.server.enrolled.remove(torch.tensor([0]))
    left = torch.bincount(label[offsets[1] :].long(), minlength=3)
    torch.testing.assert_close(state(experiment).shares, (left / left.sum()).float())


def test_a_head_without_bias() -> None:
    class Bare(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.Linear(6, 3, bias=False)

    torch.manual_seed(0)
    task, local = classifier(Bare()), training(FedGen, **SETTINGS)
    one, other = (run(task, recipe(local), rounds=2, engine=engine) for engine in ("vectorized", "sequential"))
    assert_close(one.model, other.model, rtol=1e-9, atol=1e-12)
    assert state(one).head == ["second.weight"]


def test_the_global_generator_of_chance_is_left_alone() -> None:
    task, before = mlp(), torch.random.get_rng_state()
    run(task, recipe(training(FedGen, **SETTINGS), select=Everyone()), rounds=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_defaults_are_those_of_flss() -> None:
    assert (FedGen().server_steps, FedGen().generator_lr) == (1000, 0.005)
    with pytest.raises(UserError, match="generated=1"):
        build("local", FedGen, {"generated": 1})  # one sample has no spread to be normalised by
