"""Which engine is chosen: by counting what a step of one client takes, so that the answer is always the same."""

import pytest
import torch
from torch import Tensor, nn

from fedslice import Experiment, recipes
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


def chosen(module: nn.Module) -> str:
    return Experiment(classifier(module), recipes.get("fedavg", cohort=3), rounds=1).engine.engine.label


@pytest.mark.parametrize(("width", "engine"), [(10, "vectorized"), (120, "vectorized"), (600, "sequential")])
def test_clients_with_many_weights_train_one_by_one(width: int, engine: str) -> None:
    assert chosen(Perceptron(width)) == engine


def test_unless_their_layer_keeps_to_the_cache() -> None:
    assert chosen(Recurrent()) == "vectorized"
