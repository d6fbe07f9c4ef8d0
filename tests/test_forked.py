"""Training on several processes: the same as on one, whatever becomes of the others."""

import os
import signal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedslice import nn as fnn
from fedslice.engines import Engine, Sequential, Trained, Vectorized, forked
from fedslice.engines.forked import Forked
from fedslice.errors import UserError
from fedslice.experiment import Experiment
from fedslice.federation import Federation, Ragged
from fedslice.local.sgd import SGD
from fedslice.recipe import Recipe
from fedslice.select import Everyone
from fedslice.task import Task
from fedslice.work import Work, download
from toys import assert_same, fitting, squared

pytestmark = pytest.mark.skipif(not forked.AVAILABLE, reason="processes are forked on Linux alone")


def everyone(task: Task, recipe: Recipe) -> Work:
    experiment = Experiment(task, recipe, rounds=1)
    clients = torch.arange(len(task.federation))
    return download(experiment.world, experiment.recipe, experiment.model, 0, clients, torch.zeros_like(clients))


def no_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


@pytest.mark.parametrize("processes", [1, 2, 3, 50])
@pytest.mark.parametrize("name", ["fedavg", "fedsubavg", "scaffold", "fedprox"])
def test_processes_train_what_one_does(name: str, processes: int) -> None:
    task, recipe = fitting(name)
    work = everyone(task, recipe)
    for inner in (Sequential(), Vectorized()):
        alone = Trained(*inner.train(task, recipe.local, work))
        shared = Forked(inner, processes).train(task, recipe.local, work)
        if isinstance(inner, Sequential):
            assert_same(shared.end, alone.end)
        for key, value in alone.end.items():
            torch.testing.assert_close(shared.end[key], value)
        torch.testing.assert_close(shared.losses, alone.losses)
        assert shared.losses.dtype is alone.losses.dtype
    assert no_children()


class Elsewhere:
    """Trains in this process; in any other something happens first."""

    label = "elsewhere"

    def __init__(self, happens: object) -> None:
        self.home, self.happens = os.getpid(), happens

    def train(self, task: Task, local: SGD, work: Work) -> Trained:
        if os.getpid() != self.home:
            if isinstance(self.happens, BaseException):
                raise self.happens
            os.kill(os.getpid(), signal.SIGKILL)
        return Sequential().train(task, local, work)


@pytest.mark.parametrize("happens", [RuntimeError("no memory"), KeyboardInterrupt(), SystemExit(0), None])
def test_the_share_of_a_process_that_dies_is_trained_here(happens: object) -> None:
    task, recipe = fitting("fedsubavg")
    work = everyone(task, recipe)
    with pytest.warns(UserWarning, match="process ended with status"):
        shared = Forked(Elsewhere(happens), 3).train(task, recipe.local, work)
    assert_same(shared.end, Sequential().train(task, recipe.local, work).end)
    assert no_children()


class Failing:
    """Fails on some client, wherever it is trained."""

    label = "failing"

    def __init__(self, client: int) -> None:
        self.client = client

    def train(self, task: Task, local: SGD, work: Work) -> Trained:
        if bool((work.clients == self.client).any()):
            raise UserError("this client cannot be trained")
        return Sequential().train(task, local, work)


@pytest.mark.parametrize("client", [0, 5])
@pytest.mark.filterwarnings("ignore:A training process")
def test_an_error_shows_in_this_process_and_leaves_no_other_behind(client: int) -> None:
    task, recipe = fitting("fedavg")
    with pytest.raises(UserError, match="cannot be trained"):
        Forked(Failing(client), 2).train(task, recipe.local, everyone(task, recipe))
    assert no_children()


def test_processes_draw_noise_of_their_own() -> None:
    task = Task(
        Federation.from_arrays(
            client=[0, 1], features={"input": np.ones((2, 200), np.float32)}, label=[0.0, 0.0], test=0
        ),
        lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(200, 1), nn.Flatten(0)),
        squared,
    )
    recipe = Recipe(select=Everyone(), local=SGD(iterations=1, batch_size=1))
    work = everyone(task, recipe)
    trained = Forked(Sequential(), 2).train(task, recipe.local, work)
    weight = trained.end["1.weight"] - work.start["1.weight"]
    silent = weight.squeeze(1) == 0
    assert 50 < int(silent[0].sum()) < 150
    assert not torch.equal(silent[0], silent[1])


class Reader(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.word = nn.Embedding(20, 4)
        self.lstm = fnn.LSTM(4, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, text: Tensor, text_length: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm.last(self.word(text), text_length))
        return out.squeeze(-1)


@pytest.mark.parametrize(("hidden", "engine"), [(100, Forked), (4, Vectorized)])
def test_many_small_operations_are_shared_out_if_they_are_worth_it(hidden: int, engine: type[Engine]) -> None:
    texts = Ragged.from_lists([[1 + k % 19] * 20 for k in range(400)])
    federation = Federation.from_arrays(
        client=np.repeat(np.arange(40), 10), features={"text": texts}, label=np.zeros(400, np.float32), test=0
    )
    task = Task(federation, lambda: Reader(hidden), squared, tables={"word.weight": "text"})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        experiment = Experiment(task, Recipe(select=Everyone()), rounds=1)
        assert isinstance(experiment.engine.engine, engine)
        rows = experiment.run()
    finally:
        torch.set_num_threads(before)
    assert rows[-1]["rejected"] == 0
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
