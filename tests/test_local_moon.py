"""MOON and FedNTD against plain modules, one client after the other; their terms against their formulas."""

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedslice.combine import Mean
from fedslice.local import FedNTD, Local, Moon
from fedslice.recipe import Recipe
from fedslice.select import Uniform
from fedslice.task import Task
from toys import MLP, assert_close, chosen, double, memory_of, mlp, run, training

ROUNDS = 3
Term = Callable[[nn.Module, nn.Module, nn.Module, dict[str, Tensor], Tensor], Tensor]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


def features(module: nn.Module, given: dict[str, Tensor]) -> Tensor:
    assert isinstance(module, MLP)
    return module.first(given["x"]).tanh()


def contrast(mu: float, tau: float) -> Term:
    """Li et al. 2021, equation 3, as printed."""

    def term(now: nn.Module, received: nn.Module, last: nn.Module, given: dict[str, Tensor], _: Tensor) -> Tensor:
        with torch.no_grad():
            other, own = features(received, given), features(last, given)
        z = features(now, given)
        near = torch.exp((z * other).sum(1) / z.norm(dim=1) / other.norm(dim=1) / tau)
        far = torch.exp((z * own).sum(1) / z.norm(dim=1) / own.norm(dim=1) / tau)
        return mu * -torch.log(near / (near + far)).mean()

    return term


def distillation(beta: float, tau: float) -> Term:
    """Lee et al. 2022: KL over the wrong classes, sample by sample and class by class."""

    def term(now: nn.Module, received: nn.Module, _: nn.Module, given: dict[str, Tensor], label: Tensor) -> Tensor:
        with torch.no_grad():
            teacher = received(**given)
        total = torch.zeros(())
        for student, other, y in zip(now(**given), teacher, label.tolist(), strict=True):
            wrong = [c for c in range(3) if c != y]
            q, p = (torch.exp(logits[wrong] / tau) for logits in (student, other))
            q, p = q / q.sum(), p / p.sum()
            total = total + sum(p[c] * torch.log(p[c] / q[c]) for c in range(2))
        return beta * tau**2 * total / len(label)

    return term


def plain(task: Task, recipe: Recipe, term: Term) -> dict[str, Tensor]:
    """FedAvg in which every loss has one more term."""
    samples, local = task.federation.train, recipe.local
    received = copy.deepcopy(task.module)
    last = {client: copy.deepcopy(task.module) for client in range(len(task.federation))}
    for t in range(ROUNDS):
        ends = []
        for client in chosen(recipe, t, len(task.federation)).clients.tolist():
            module, who = copy.deepcopy(received), torch.tensor([client])
            optimizer = torch.optim.SGD(module.parameters(), lr=local.optimizer.lr)
            batches = local.sampler.batches(t, who, torch.zeros(1), samples.sizes[who], 1, 0)
            for index, real in zip(batches.index[0], batches.real[0], strict=True):
                if bool(real.any()):
                    given, label = samples.batch(index[real] + samples.offsets[client])
                    loss = task.loss(module(**given), label).mean() + term(module, received, last[client], given, label)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            last[client] = module
            ends.append(module.state_dict())
        received.load_state_dict({n: torch.stack([end[n] for end in ends]).mean(0) for n in ends[0]})
    return received.state_dict()


SETTINGS = {"epochs": 2, "batch_size": 4, "lr": 0.1}
METHODS: dict[str, tuple[Local, Term]] = {
    "moon": (training(Moon, mu=2, tau=0.5, **SETTINGS), contrast(2, 0.5)),  # type: ignore[arg-type]
    "fedntd": (training(FedNTD, beta=1.5, tau=2, **SETTINGS), distillation(1.5, 2)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", METHODS)
def test_it_is_the_published_method(name: str) -> None:
    local, term = METHODS[name]
    task, method = mlp(), Recipe(local=local, select=Uniform(cohort=4), combine=Mean(weights="uniform"))
    done = run(task, method, rounds=ROUNDS, chunk=3)
    assert_close(done.model, plain(task, method, term), rtol=1e-9, atol=1e-11)


def test_a_client_remembers_where_it_ended() -> None:
    """With one client the model is where it ended."""
    task = mlp(sizes=(5,))
    done = run(task, Recipe(local=training(Moon, iterations=2), select=Uniform(cohort=1)), rounds=2)
    for name, value in done.model.items():
        memory = memory_of(done).get(f"last/{name}", torch.tensor([0]))
        assert memory is not None
        torch.testing.assert_close(memory[0][0], value, rtol=1e-14, atol=1e-15)


def test_defaults_are_those_that_flss_compares_with() -> None:
    assert (Moon().mu, Moon().tau) == (0.01, 1)
    assert (FedNTD().beta, FedNTD().tau) == (0.001, 1)


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=6), st.data(), st.floats(0.5, 3))
@settings(max_examples=30)
def test_the_true_class_says_nothing(logits: list[float], data: st.DataObject, tau: float) -> None:
    """log q sums to one over the wrong classes, in their order, whatever the true class's output is."""
    y = data.draw(st.integers(0, len(logits) - 1))
    local = FedNTD(tau=tau)
    output = torch.tensor([[logits]])
    found = local._wrong(output, torch.tensor([[y]]))[0, 0]
    wrong = [value for c, value in enumerate(logits) if c != y]
    scale = sum(math.exp(value / tau) for value in wrong)
    assert found.exp().tolist() == pytest.approx([math.exp(value / tau) / scale for value in wrong])
    output[0, 0, y] = 1e6
    assert torch.equal(local._wrong(output, torch.tensor([[y]]))[0, 0], found)
