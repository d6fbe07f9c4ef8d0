"""Workers: parts of a chunk that are trained at the same time come to what they come to one after the other."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedslice import Experiment, recipes
from fedslice.core.errors import UserError
from fedslice.nn.threads import shared_out
from fedslice.recipes import RECIPES
from fedslice.task import Task
from fedslice.training.engines import Sequential, Trained, Vectorized
from fedslice.training.engines.workers import Workers, twin
from fedslice.training.work import Work
from toys import MLP, assert_close, assert_same, begun, classifier, fitting, mlp, work_of

TWO = Workers(2)


class Dropping(nn.Module):
    """A perceptron that drops half of its features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(nn.functional.dropout(self.first(x), training=self.training))
        return found


class Attached(nn.Module):
    """A network that calls a layer by a function made for this very network, which a copy would go on to call."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(4, 3)
        self.run = lambda x: self.only(x).tanh()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.run(x)
        return found


class Failing(MLP):
    """A network that cannot stand a batch of four."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(x) == 4:
            raise UserError("a batch of four")
        return super().forward(x)


def first_work(task: Task, **options: Any) -> tuple[Experiment, Work]:
    """Everyone's work in the first round."""
    recipe = recipes.get("fedavg", select="everyone", iterations=3, batch_size=4, **options)
    experiment = Experiment(task, recipe, rounds=1)
    return experiment, work_of(experiment, torch.arange(len(task.federation)))


def joined(parts: list[Trained]) -> Trained:
    """Of several chunks."""
    ends = {name: torch.cat([part.end[name] for part in parts]) for name in parts[0].end}
    return Trained(ends, torch.cat([part.losses for part in parts]))


def assert_equal(one: Trained, other: Trained) -> None:
    assert_same(one.end, other.end)
    assert torch.equal(one.losses, other.losses)


def test_two_workers_train_each_client_as_one_does_to_the_bit() -> None:
    experiment, work = first_work(mlp())
    one = Sequential().train(experiment.task, experiment.recipe.local, work)
    assert_equal(Sequential(TWO).train(experiment.task, experiment.recipe.local, work), one)


def test_two_workers_train_two_halves_of_a_chunk_to_the_bit() -> None:
    experiment, work = first_work(mlp())
    halves = [work.part(slice(3)), work.part(slice(3, 6))]
    one = joined([Vectorized().train(experiment.task, experiment.recipe.local, half) for half in halves])
    assert_equal(Vectorized(TWO).train(experiment.task, experiment.recipe.local, work), one)


@pytest.mark.parametrize("kind", [Vectorized, Sequential])
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_comes_to_the_same_with_two_workers(name: str, kind: type[Vectorized] | type[Sequential]) -> None:
    task, recipe = fitting(name, epochs=2, clip=0.5)
    one, two = (begun(task, recipe, rounds=3, engine=kind.label, chunk=4) for _ in range(2))
    two.population._chosen = two.engine._replace(engine=kind(TWO))
    one.run()
    two.run()
    assert_close(two.model, one.model, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [Vectorized, Sequential])
def test_what_a_layer_drops_does_not_depend_on_how_the_threads_take_turns(
    kind: type[Vectorized] | type[Sequential],
) -> None:
    torch.manual_seed(0)
    experiment, work = first_work(classifier(Dropping()))

    def once() -> Trained:
        torch.manual_seed(1)
        return kind(Workers(2, noisy=True)).train(experiment.task, experiment.recipe.local, work)

    first = once()
    for _ in range(5):
        assert_equal(once(), first)
    after = torch.rand(3)
    once()
    assert torch.equal(torch.rand(3), after), "what comes after does not depend on it either"


def test_parts_drop_other_features() -> None:
    torch.manual_seed(0)
    experiment, work = first_work(classifier(Dropping()))
    same = work.part(torch.tensor([3, 3]))
    found = Sequential(Workers(2, noisy=True)).train(experiment.task, experiment.recipe.local, same)
    assert not torch.equal(found.losses[:1], found.losses[1:])


def test_a_twin_shares_the_parameters_and_not_the_places_where_they_hang() -> None:
    task = mlp()
    other = twin(task)
    names, mine, theirs = task.shapes, task.module, other.module
    assert isinstance(mine, MLP)
    assert isinstance(theirs, MLP)
    assert all(mine.get_parameter(name) is theirs.get_parameter(name) for name in names)
    assert mine.first._parameters is not theirs.first._parameters


@pytest.mark.parametrize("build", [True, False], ids=["built", "given"])
def test_a_network_whose_copy_calls_the_original_has_one_worker(build: bool, many_threads: None) -> None:
    def workers(module: type[nn.Module]) -> int:
        task = classifier(module() if not build else module)  # type: ignore[arg-type]
        found = Experiment(task, recipes.get("fedavg", cohort=4, batch_size=20_000), rounds=1).engine.engine
        assert isinstance(found, Vectorized | Sequential)
        return found._workers.count

    assert workers(MLP) == 2
    assert workers(Attached) == 1


def test_what_fails_in_a_worker_fails_here() -> None:
    experiment, work = first_work(classifier(Failing()))
    with pytest.raises(UserError, match="a batch of four"):
        Sequential(TWO).train(experiment.task, experiment.recipe.local, work)


def test_a_piece_runs_on_one_thread_and_the_caller_keeps_its_own(many_threads: None) -> None:
    assert shared_out(lambda _: torch.get_num_threads(), range(4)) == [1] * 4
    assert torch.get_num_threads() == 2
    assert shared_out(lambda _: torch.get_num_threads(), range(4), most=1) == [2] * 4


def test_a_piece_has_gradients_where_the_caller_has_them(many_threads: None) -> None:
    assert shared_out(lambda _: torch.is_grad_enabled(), range(2)) == [True] * 2
    with torch.no_grad():
        assert shared_out(lambda _: torch.is_grad_enabled(), range(2)) == [False] * 2


@pytest.fixture
def many_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
