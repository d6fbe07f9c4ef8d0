"""Which engine is chosen: by counting what a step of one client takes, so that the answer is always the same."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedslice import Experiment, UserError, recipes
from fedslice.nn import LSTM
from toys import classifier


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
