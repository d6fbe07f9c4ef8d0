"""FedGen: the generator is trained on the heads' mean, and clients learn from what it makes."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedslice.combine import Mean
from fedslice.errors import UserError
from fedslice.experiment import Experiment
from fedslice.local import FedGen
from fedslice.recipe import Recipe, build
from fedslice.select import Everyone, Uniform
from fedslice.server import Adam
from fedslice.task import Task
from toys import MLP, assert_close, assert_same, classifier, double, mlp, run

SETTINGS: dict[str, Any] = {"width": 5, "generated": 6, "server_steps": 4, "epochs": 1, "batch_size": 4, "lr": 0.1}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


def recipe(local: FedGen, **parts: Any) -> Recipe:
    given: dict[str, Any] = {"select": Uniform(cohort=4), "combine": Mean(weights="uniform")}
    return Recipe(local=local, **(given | parts))


def method(experiment: Experiment) -> FedGen:
    assert isinstance(experiment.recipe.local, FedGen)
    return experiment.recipe.local


def plain(task: Task, local: FedGen, rounds: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Modules and optimizers one after the other, the server asking every client's own head; draws from the method."""
    begun = Experiment(task, recipe(local), rounds=1)
    draws, samples, cohorts = method(begun)._drawn, task.federation.train, begun.recipe.select
    generator = copy.deepcopy(method(begun)._generator)
    teacher = torch.optim.Adam(generator.parameters(), lr=local.generator_lr)
    received = copy.deepcopy(task.module)
    assert isinstance(received, MLP)
    for t in range(rounds):
        modules = []
        for client in cohorts.choose(t, len(task.federation), 0).clients.tolist():
            module, who = copy.deepcopy(received), torch.tensor([client])
            optimizer = torch.optim.SGD(module.parameters(), lr=local.lr)
            batches = local.batches(t, who, torch.zeros(1), samples.sizes[who], 1, 0)
            for s, (index, real) in enumerate(zip(batches.index[0], batches.real[0], strict=True)):
                if bool(real.any()):
                    given, label = samples.batch(index[real] + samples.offsets[client])
                    classes, noise = draws(t, np.array([client]), s)
                    made = module.second(generator(noise[0]).detach())
                    loss = task.loss(module(**given), label).mean() + local.weight * task.loss(made, classes[0]).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            modules.append(module)
        for s in range(local.server_steps):
            classes, noise = draws(t, np.array([len(task.federation)]), s)
            made = generator(noise[0])
            output = sum((module.second(made) for module in modules), torch.zeros(())) / len(modules)
            teacher.zero_grad()
            task.loss(output, classes[0]).mean().backward()
            teacher.step()
        ends = [module.state_dict() for module in modules]
        received.load_state_dict({n: torch.stack([end[n] for end in ends]).mean(0) for n in ends[0]})
    return received.state_dict(), {n: p.detach() for n, p in generator.named_parameters()}


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_it_is_the_method_with_every_clients_head(weight: float) -> None:
    """The mean of linear heads is the head of the mean: the server need not look at any client's own."""
    task, local = mlp(), FedGen(weight=weight, **SETTINGS)
    done = run(task, recipe(local), rounds=3, chunk=3)
    model, generator = plain(task, local, 3)
    assert_close(done.model, model, rtol=1e-8, atol=1e-10)
    found = {n: p.detach() for n, p in method(done)._generator.named_parameters()}
    assert_close(found, generator, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("server", [None, Adam()])
def test_the_server_follows_the_models_head(server: Adam | None) -> None:
    done = run(mlp(), recipe(FedGen(**SETTINGS), **({"server": server} if server else {})), rounds=3)
    state = done.recipe.local.state_dict()
    assert_same(
        {n: state[f"head.{n}"] for n in ("second.weight", "second.bias")},
        {n: done.model[n] for n in done.model if "second" in n},
    )


def test_training_makes_the_head_say_the_class() -> None:
    """The generator's own loss falls; without steps it stays as it began."""
    task = mlp()

    def made(steps: int) -> float:
        local = FedGen(**SETTINGS | {"server_steps": steps, "generated": 32})
        done = method(run(task, recipe(local)))
        classes, noise = done._drawn(99, np.array([0]), 0)
        with torch.no_grad():
            output = nn.functional.linear(done._generator(noise[0]), *done._head.values())
        return float(task.loss(output, classes[0]).mean())

    assert made(80) < 0.5 * made(0)


def test_classes_are_drawn_as_often_as_labels() -> None:
    """The mean over many draws is the share of a label among all clients' samples; noise is uniform."""
    task = mlp()
    experiment = Experiment(task, recipe(FedGen(**SETTINGS | {"generated": 3000})), rounds=1)
    classes, given = method(experiment)._drawn(3, np.arange(6), 2)
    assert classes.shape == (6, 3000)
    shares = torch.bincount(task.federation.train.label.long(), minlength=3) / len(task.federation.train)
    assert (torch.bincount(classes.flatten(), minlength=3) / classes.numel()).tolist() == pytest.approx(
        shares.tolist(), abs=0.02
    )
    assert torch.equal(given[..., 5:].argmax(-1), classes)
    assert torch.equal(given[..., 5:].sum(-1), torch.ones_like(given[..., 0]))
    noise = given[..., :5]
    assert 0 <= float(noise.min()) < 0.01
    assert 0.99 < float(noise.max()) < 1
    assert float(noise.mean()) == pytest.approx(0.5, abs=0.01)
    others = method(experiment)._drawn(3, np.array([4]), 2)
    assert torch.equal(others[1][0], given[4])
    assert not torch.equal(method(experiment)._drawn(3, np.array([4]), 3)[1], others[1])


def test_a_class_that_nobody_has_is_never_drawn() -> None:
    task = mlp()
    task.federation.train.label.clamp_(max=1)
    local = method(Experiment(task, recipe(FedGen(**SETTINGS | {"generated": 2000})), rounds=1))
    assert set(local._drawn(0, np.array([0]), 0)[0].flatten().tolist()) == {0, 1}


def test_a_head_without_bias() -> None:
    class Bare(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.Linear(6, 3, bias=False)

    torch.manual_seed(0)
    task, local = classifier(Bare()), FedGen(**SETTINGS)
    one, other = (run(task, recipe(local), rounds=2, engine=engine) for engine in ("vectorized", "sequential"))
    assert_close(one.model, other.model, rtol=1e-9, atol=1e-12)
    assert "head.second.bias" not in one.recipe.local.state_dict()


def test_the_global_generator_of_chance_is_left_alone() -> None:
    task, before = mlp(), torch.random.get_rng_state()
    run(task, recipe(FedGen(**SETTINGS), select=Everyone()), rounds=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_defaults_are_those_of_s4() -> None:
    assert (FedGen().server_steps, FedGen().generator_lr) == (1000, 0.005)
    with pytest.raises(UserError, match="generated=1"):
        build("local", FedGen, {"generated": 1})  # one sample has no spread to be normalised by
