"""Which engine is chosen: by counting what a step of one client takes, so that the answer is always the same."""

import sys
import warnings
from typing import Any

import pytest
import torch
from benchmarks import families
from torch import Tensor, nn

from fedslice import Experiment, UserError, recipes
from fedslice.nn import LSTM
from fedslice.training.engines import Sequential, Vectorized
from fedslice.training.work import Work
from toys import assert_close, classifier, work_of

counting = sys.modules["fedslice.training.engines.choose"]  # the package's own `choose` is the function

UNLIKE = "vmap cannot carry this model"
CHOSEN = {  # with a word of the reason, small and of a realistic size
    "lr": ("many small operations", "many small operations"),
    "mlp": ("many small operations", "many small operations"),
    "din": ("many small operations", "many small operations"),
    "cnn": ("many small operations", "the way of many weights to the memory"),
    "resnet": ("many small operations", "convolutions outweigh"),
    "gru": (UNLIKE, UNLIKE),
    "lstm": (UNLIKE, UNLIKE),
    "fedslice.nn.LSTM": ("many small operations", "many small operations"),
    "transformer": ("many small operations", "the memory that vectorised operations move"),
    "branch": (UNLIKE, UNLIKE),
    "two towers": ("many small operations", "many small operations"),
}


class Recurrent(nn.Module):
    """As many weights as a wide perceptron, in a layer that divides a chunk of clients by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = LSTM(2, 260, 1)
        self.head = nn.Linear(260, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm.last(x.view(-1, 2, 2), torch.full_like(x[:, 0], 2, dtype=torch.int64)))
        return found


class Perceptron(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(x)
        return found


class Branches(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Counts(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * int((x > 0).any())


class Fills(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.zeros(x.shape).add_(x))


class Draws(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * torch.ones(4).uniform_())


class Picks(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x[x > 0].sum()


class Exports(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.from_numpy(x.numpy()).mean()


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class OwnGradient(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = Doubles.apply(super().forward(x))
        return found


REASONS = {
    Branches: "data-dependent control flow",
    Counts: "item()",
    Fills: "broadcast shape",
    Draws: "inplace randomness",
    Picks: "dynamic shape",
    Exports: "data pointer",
    OwnGradient: "setup_context",
}


@pytest.mark.parametrize("module", REASONS)
def test_a_model_that_cannot_be_vectorised_is_named_where_vectorising_was_asked_for(module: type[nn.Linear]) -> None:
    task = classifier(module(4, 3))
    asked = Experiment(task, recipes.get("fedavg", cohort=3), rounds=1, engine="vectorized")
    with pytest.raises(UserError) as caught:
        asked.run()
    told = str(caught.value)
    assert told.startswith(f"{module.__name__} cannot train with engine=vectorized (")
    assert REASONS[module] in told
    assert told.endswith("; use engine=sequential, or auto, which finds out by itself.")
    assert "\n" not in told
    assert ". " not in told
    assert chosen(module(4, 3)) == "sequential"


class Fails(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 2:  # not in the trial that a task makes
            raise RuntimeError("a mistake of its own")
        return super().forward(x)


@pytest.mark.parametrize("engine", ["vectorized", "sequential", "auto"])
def test_a_model_s_own_mistake_is_not_taken_for_that(engine: str) -> None:
    with pytest.raises(RuntimeError, match="a mistake of its own"):
        Experiment(classifier(Fails(4, 3)), recipes.get("fedavg", cohort=3), rounds=1, engine=engine).run()


def chosen(module: nn.Module) -> str:
    return Experiment(classifier(module), recipes.get("fedavg", cohort=3), rounds=1).engine.engine.label


@pytest.mark.parametrize(("width", "engine"), [(10, "vectorized"), (120, "vectorized"), (600, "sequential")])
def test_clients_with_many_weights_train_one_by_one(width: int, engine: str) -> None:
    assert chosen(Perceptron(width)) == engine


def test_unless_their_layer_keeps_to_the_cache() -> None:
    assert chosen(Recurrent()) == "vectorized"


class Stepwise(nn.Module):
    """Reads numbers one after the other with a cell for which vmap has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(1, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 8)
        for number in (*x.unbind(1), *x.unbind(1)):
            state = self.cell(number[:, None], state)
        found: Tensor = self.head(state)
        return found


class Bounded(Perceptron):
    """A perceptron that bounds its inputs, an operation for which vmap has no rule either."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.renorm(2, 0, 1.0))


def first_work(experiment: Experiment) -> Work:
    """What two clients do in the first round."""
    cohort = experiment.recipe.select.choose(experiment.server.states["select"], 0)
    return work_of(experiment, cohort.clients[:2])


def operations(experiment: Experiment) -> tuple[int, int, int]:
    """Of a step of one client alone, and of two and four together."""
    work, counted = first_work(experiment), []
    for kind, clients in ((Sequential, 1), (Vectorized, 2), (Vectorized, 4)):
        cost = counting._count(kind, experiment.task, experiment.recipe.local, work, clients)
        counted.append(cost.operations)
    one, two, four = counted
    return one, two, four


@pytest.mark.parametrize("realistic", [False, True], ids=["small", "realistic"])
@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_choice_for_each_family_of_models(family: str, realistic: bool) -> None:
    found = families.experiment(families.FAMILIES[family][realistic], 5, "auto").engine
    reason = CHOSEN[family][realistic]
    assert found.reason.startswith(reason)
    assert found.engine.label == ("vectorized" if reason == "many small operations" else "sequential")
    assert found.forced == (reason == UNLIKE)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_each_family_trains_alike_on_both_engines(family: str) -> None:
    size = families.FAMILIES[family][0]._replace(steps=3)
    alone = families.experiment(size, 5, "sequential")
    alone.run()
    for engine in ("auto",) if CHOSEN[family][0] == UNLIKE else ("auto", "vectorized"):
        other = families.experiment(size, 5, engine)
        other.run()
        assert_close(other.model, alone.model, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", [family for family in families.FAMILIES if CHOSEN[family][0] != UNLIKE])
def test_vectorised_operations_do_not_grow_with_the_clients(family: str) -> None:
    """Attention among them, which has a fused kernel that vmap would run client by client."""
    one, two, four = operations(families.experiment(families.FAMILIES[family][0], 5, "auto"))
    assert four - two < one / 100


def test_operations_that_vmap_runs_client_by_client_are_seen() -> None:
    experiment = Experiment(classifier(Stepwise()), recipes.get("fedavg", cohort=3), rounds=1)
    one, two, four = operations(experiment)
    assert (four - two) / 2 > 0.8 * one
    assert experiment.engine.reason.startswith("operations that vmap runs client by client")
    assert not experiment.engine.forced


def test_a_single_one_of_them_does_not_outweigh_the_rest() -> None:
    experiment = Experiment(classifier(Bounded(10)), recipes.get("fedavg", cohort=3), rounds=1)
    _, two, four = operations(experiment)
    assert four > two
    assert experiment.engine.engine.label == "vectorized"


def test_the_calibration_says_nothing_of_its_own_and_draws_nothing() -> None:
    dropping = Perceptron(10)
    dropping.append(nn.Dropout(0.5))
    experiment = Experiment(classifier(dropping), recipes.get("fedavg", cohort=3), rounds=1)
    before = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert experiment.engine
    assert torch.equal(torch.get_rng_state(), before)


def test_vectorising_what_vmap_cannot_carry_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"Branching cannot train with engine=vectorized.*use engine=sequential"):
        assert families.experiment(families.FAMILIES["branch"][0], 5, "vectorized").engine


@pytest.mark.parametrize(("cohort", "most", "workers", "chunk"), [(20, 7, 1, 7), (20, 7, 2, 6), (20, 1, 2, 2)])
def test_chunks_are_about_even_and_shared_alike_by_all_workers(
    cohort: int, most: int, workers: int, chunk: int
) -> None:
    assert counting._even(cohort, most, workers) == chunk
