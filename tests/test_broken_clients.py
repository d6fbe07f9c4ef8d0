"""A client whose numbers overflow can neither end a round nor leave a trace in the model."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedslice.combine import HeatCorrected
from fedslice.data.federation import Federation
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES
from fedslice.select import Everyone
from fedslice.task import Task
from toys import assert_close, assert_same, run, squared


class Overflowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(6, 2)
        self.out = nn.Linear(2, 1)

    def forward(self, item: Tensor, size: Tensor) -> Tensor:
        return self.out(self.item(item)).squeeze(-1) * size


def with_last_client(size: float | None) -> Task:
    """Four clients, and a fifth (the last, so that the others keep their numbers) whose feature is of this size."""
    client = np.repeat(np.arange(5), 4)
    sizes = np.where(client == 4, size or 1.0, 1.0)
    item = np.arange(20) % 6
    keep = slice(None) if size else slice(16)
    features = {"item": item[keep], "size": sizes[keep]}
    data = Federation.from_arrays(client=client[keep], features=features, label=np.ones(20)[keep], test=0.0)
    torch.manual_seed(0)
    return Task(data, Overflowing(), squared, tables={"item.weight": "item"})


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "submodelavg"])
def test_a_client_that_overflows_is_as_if_it_were_not_there(name: str) -> None:
    recipe = RECIPES[name].with_options({"select": "everyone", "iterations": 3})
    without = run(with_last_client(None), recipe, rounds=3)
    for engine, chunk in (("vectorized", 5), ("vectorized", 4), ("sequential", 2)):
        broken = run(with_last_client(1e30), recipe, rounds=3, engine=engine, chunk=chunk)
        assert broken.rejected == 3
        assert_close(broken.model, without.model, rtol=1e-5, atol=1e-6)
    fine = run(with_last_client(1.0), recipe, rounds=3)
    assert fine.rejected == 0
    assert not torch.allclose(fine.model["item.weight"], broken.model["item.weight"], rtol=1e-3)


def test_an_update_that_would_overflow_once_it_is_weighed_is_refused_though_it_is_finite() -> None:
    recipe = RECIPES["fedavg"].with_options({"select": "everyone", "iterations": 1})
    without = run(with_last_client(None), recipe, rounds=2)
    broken = run(with_last_client(1e11), recipe, rounds=2)
    assert broken.rejected == 2
    assert_close(broken.model, without.model, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", ["ratio", "horvitz-thompson"])
def test_fedsubavg_stays_finite_beside_a_client_that_overflows(estimator: str) -> None:
    recipe = RECIPES["fedsubavg"].with_options({"select": "everyone", "estimator": estimator})
    done = run(with_last_client(1e30), recipe, rounds=3)
    assert done.rejected == 3
    assert all(bool(torch.isfinite(value).all()) for value in done.model.values())


def alone(size: float) -> Task:
    features = {"item": [1, 2], "size": [size, size]}
    data = Federation.from_arrays(client=[0, 1], features=features, label=[1.0, 1.0], test=0.0)
    return Task(data, Overflowing(), squared, tables={"item.weight": "item"})


@pytest.mark.parametrize(
    "combine",
    [None, HeatCorrected(), HeatCorrected(estimator="horvitz-thompson")],
    ids=["mean", "ratio", "horvitz-thompson"],
)
def test_a_round_in_which_everyone_overflows_changes_nothing(combine: HeatCorrected | None) -> None:
    task = alone(1e30)
    recipe = Recipe(select=Everyone(), **{"combine": combine} if combine else {})
    done = run(task, recipe, rounds=2)
    assert done.rejected == 4
    assert_same(done.model, task.initial(0))
