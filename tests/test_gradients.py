"""The gradient of the global objective against one client at a time (its norms, T04, are in ``test_theory``)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedslice.core.slice import Values
from fedslice.data.federation import Federation
from fedslice.measure import full_gradient, gradient_norms
from fedslice.measure.gradients import blocks
from fedslice.task import Task, evaluating
from toys import assert_close, assert_same, classifier, double, mlp, recommender, samples_of, squared


@pytest.fixture
def float64() -> Iterator[None]:
    with double():
        yield


def by_clients(task: Task, model: Values) -> Values:
    """(1/N)·Σ ∇f_i, each client's samples in one batch."""
    leaves = {name: value.detach().requires_grad_() for name, value in model.items()}
    total, train = torch.zeros(()), task.federation.train
    for client in range(len(task.federation)):
        features, label = train.batch(torch.tensor(samples_of(train, client)))
        total = total + task.loss(task.forward(leaves, features), label).mean() / len(task.federation)
    parts = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, parts, strict=True))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("batch", [1, 5, 4096])
@pytest.mark.parametrize(
    "build", [recommender, lambda: recommender(ragged=False), mlp], ids=["sequences", "columns", "dense"]
)
def test_blocks_add_up_to_the_mean_of_the_clients(build: Callable[[], Task], batch: int) -> None:
    task = replace(build(), eval_batch=batch)
    start = task.initial(0)
    kept = {name: value.clone() for name, value in start.items()}
    found = full_gradient(task, start)
    assert_close(found, by_clients(task, start), rtol=1e-11, atol=1e-14)
    assert_same(start, kept)
    assert not any(value.requires_grad for value in [*start.values(), *found.values()])


@pytest.mark.usefixtures("float64")
def test_every_client_weighs_the_same_whatever_its_samples() -> None:
    task = replace(recommender(), eval_batch=4)
    shares = torch.cat([block.share for block in blocks(task)])
    owner = torch.repeat_interleave(torch.arange(len(task.federation)), task.federation.train.sizes)
    weight = torch.zeros(len(task.federation)).index_add_(0, owner, shares)
    assert weight.tolist() == pytest.approx([1 / len(task.federation)] * len(task.federation))


class Level(nn.Module):
    """A single weight, which has no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.level


def test_sums_of_blocks_stay_accurate_in_single_precision() -> None:
    """The first and the last block cancel; a running float32 sum would lose all that lies between them."""
    label = np.array([2.0**30, *[-3.0] * 62, -(2.0**30)])
    features = {"x": np.ones(64, dtype=np.float32)}
    data = Federation.from_arrays(client=np.zeros(64), features=features, label=label, test=0.0)
    task = replace(Task(data, Level(), squared), eval_batch=1)
    model = task.initial(0)
    assert model["level"].dtype == torch.float32
    found = full_gradient(task, model)["level"]
    assert found.shape == ()
    assert float(found) == 2 * 3 * 62 / 64


@pytest.mark.usefixtures("float64")
def test_rows_that_nobody_holds_have_no_gradient_and_no_weight() -> None:
    task = recommender(items=40, seed=3)
    cold = task.index_sets[0].heat == 0
    assert 0 < int(cold.sum()) < 40
    found = full_gradient(task, task.initial(0))["item.weight"]
    assert not bool(found[cold].any())
    assert bool(found[~cold].any())
    norms = gradient_norms(task, task.initial(0))
    assert all(np.isfinite(list(norms.values())))
    assert norms["elementwise_gradient_norm2"] > norms["gradient_norm2"] > 0


@pytest.mark.usefixtures("float64")
def test_where_everyone_holds_everything_the_two_norms_are_one() -> None:
    for task in (mlp(), recommender((8, 9, 7), items=12, everything=True)):
        norms = gradient_norms(task, task.initial(0))
        assert norms["elementwise_gradient_norm2"] == pytest.approx(norms["gradient_norm2"], rel=1e-12)


@pytest.mark.usefixtures("float64")
def test_dropout_is_off_and_nothing_is_drawn() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 3)
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(self.drop(x))

    task = classifier(Dropped())
    before = torch.default_generator.get_state()
    found = full_gradient(task, task.initial(0))
    assert torch.equal(before, torch.default_generator.get_state())
    assert task.module.training
    with evaluating(task.module):
        assert_close(found, by_clients(task, task.initial(0)))


@pytest.mark.usefixtures("float64")
def test_a_model_that_compares_the_samples_of_a_batch_has_the_gradient_of_its_blocks() -> None:
    class Compared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.line(x)
            return y * torch.sigmoid(y - y.mean(0))

    torch.manual_seed(0)
    module = Compared()
    halves, whole = (replace(classifier(module, sizes=(4, 4)), eval_batch=b) for b in (4, 8))
    start = halves.initial(0)
    found = full_gradient(halves, start)
    assert_close(found, by_clients(halves, start), rtol=1e-11)  # a block is a client here
    assert not torch.allclose(found["line.weight"], full_gradient(whole, start)["line.weight"], rtol=1e-3)
