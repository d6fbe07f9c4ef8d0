"""Ten families of models, small and of a realistic size: clients trained together, one by one, and as chosen.

The choice counts and does not time (``fedslice.training.engines.choose``); here its answers are timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedslice import Experiment, Federation, Task, recipes
from fedslice.core.errors import UserError
from fedslice.data.ragged import Ragged
from fedslice.models import DIN
from fedslice.nn import LSTM
from fedslice.training.engines.scope import threads
from fedslice.training.rounds import play_round

COHORT, CLASSES = 20, 4
ENGINES = ("vectorized", "sequential", "auto")
BATCHES = (5, 32)


class Perceptron(nn.Module):
    """Linear layers with ReLU between them; without hidden layers, logistic regression."""

    def __init__(self, inputs: int, *hidden: int):
        super().__init__()
        sizes = (inputs, *hidden)
        layers = [part for a, b in zip(sizes, hidden, strict=False) for part in (nn.Linear(a, b), nn.ReLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes] for x [B, inputs]."""
        return self.layers(x)


class Branching(Perceptron):
    """A network that takes another way for some batches, which ``vmap`` cannot follow."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes] for x [B, inputs]."""
        return super().forward(x.abs() if x.mean() > 0 else x)


class Convolutions(nn.Module):
    """Two convolutions with pooling, and two Linear layers."""

    def __init__(self, side: int, first: int, second: int, hidden: int):
        super().__init__()
        self.first = nn.Conv2d(3, first, 5, padding=2)
        self.second = nn.Conv2d(first, second, 5, padding=2)
        self.hidden = nn.Linear(second * (side // 4) ** 2, hidden)
        self.out = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes] for x [B, 3, side, side]."""
        x = F.max_pool2d(self.first(x).relu(), 2)
        x = F.max_pool2d(self.second(x).relu(), 2)
        return self.out(self.hidden(x.flatten(1)).relu())


class _Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, out) for _ in range(2))
        self.short = nn.Conv2d(channels, out, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(y)) + self.short(x)).relu()


class Residual(nn.Module):
    """Three stages of residual blocks with group normalisation, as He et al. build them for CIFAR-10."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        stages = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        blocks = [_Block(*((a, b, s) if d == 0 else (b, b, 1))) for a, b, s in stages for d in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Linear(4 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes] for x [B, 3, side, side]."""
        return self.out(self.blocks(self.stem(x)).mean((-1, -2)))


class Reader(nn.Module):
    """A table of words, a layer that reads their sequence, and a Linear layer on its last state."""

    def __init__(self, words: int, dim: int, layer: nn.Module, size: int):
        super().__init__()
        self.word = nn.Embedding(words, dim)
        self.layer = layer
        self.out = nn.Linear(size, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        """Logits [B, classes] for words [B, T]."""
        words = self.word(text)
        if isinstance(self.layer, LSTM):
            return self.out(self.layer.last(words, torch.full_like(text[:, 0], text.shape[1])))
        return self.out(self.layer(words)[0][:, -1])


class Attentive(nn.Module):
    """A table of words, PyTorch's encoder layers, and a Linear layer on the mean."""

    def __init__(self, words: int, dim: int, heads: int, wide: int, layers: int, dropout: float):
        super().__init__()
        self.word = nn.Embedding(words, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, wide, dropout, batch_first=True) for _ in range(layers)
        )
        self.out = nn.Linear(dim, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        """Logits [B, classes] for words [B, T]."""
        words = self.word(text)
        for layer in self.layers:
            words = layer(words)
        return self.out(words.mean(1))


class TwoTowers(nn.Module):
    """A network for users and one for items, compared by a product."""

    def __init__(self, users: int, items: int, dim: int, hidden: int):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.users, self.items = (
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim)) for _ in range(2)
        )
        self.out = nn.Linear(dim, CLASSES)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits [B, classes] for users [B] and items [B]."""
        return self.out(self.users(self.user(user)) * self.items(self.item(item)))


Features = Callable[[np.random.Generator, int], dict[str, Any]]


class Size(NamedTuple):
    """A model, what it is fed, its tables, and a round's local steps."""

    model: Callable[[], nn.Module]
    features: Features
    tables: Mapping[str, str | tuple[str, ...]] = {}
    steps: int = 10


def _numbers(*shape: int) -> Features:
    return lambda chance, count: {"x": chance.normal(size=(count, *shape)).astype(np.float32)}


def _clicks(users: int, items: int, most: int) -> Features:
    """Users, items, and as many items that a user clicked before as there are, ``most`` at most."""

    def draw(chance: np.random.Generator, count: int) -> dict[str, Any]:
        features: dict[str, Any] = {"user": chance.integers(0, users, count), "item": chance.integers(0, items, count)}
        if most:
            lengths = chance.integers(0, most + 1, count)
            features["history"] = Ragged.from_lists([chance.integers(0, items, n).tolist() for n in lengths])
        return features

    return draw


def _din(users: int, items: int, dim: int, most: int) -> Size:
    tables = {"user.weight": "user", "item.weight": ("item", "history")}
    return Size(lambda: DIN(users, items, dim), _clicks(users, items, most), tables)


def _towers(users: int, items: int, dim: int, hidden: int) -> Size:
    tables = {"user.weight": "user", "item.weight": "item"}
    return Size(lambda: TwoTowers(users, items, dim, hidden), _clicks(users, items, 0), tables)


def _text(model: Callable[[], nn.Module], words: int, length: int) -> Size:
    return Size(
        model, lambda chance, count: {"text": chance.integers(0, words, (count, length))}, {"word.weight": "text"}
    )


def _reader(layer: Callable[[int, int], nn.Module], words: int, dim: int, size: int, length: int) -> Size:
    return _text(lambda: Reader(words, dim, layer(dim, size), size), words, length)


def _attentive(words: int, dim: int, heads: int, wide: int, layers: int, dropout: float, length: int) -> Size:
    return _text(lambda: Attentive(words, dim, heads, wide, layers, dropout), words, length)


def _gru(inputs: int, size: int) -> nn.Module:
    return nn.GRU(inputs, size, batch_first=True)


def _lstm(inputs: int, size: int) -> nn.Module:
    return nn.LSTM(inputs, size, batch_first=True)


FAMILIES: dict[str, tuple[Size, Size]] = {
    "lr": (Size(lambda: Perceptron(32), _numbers(32)), Size(lambda: Perceptron(784), _numbers(784))),
    "mlp": (Size(lambda: Perceptron(32, 32), _numbers(32)), Size(lambda: Perceptron(784, 200, 200), _numbers(784))),
    "din": (_din(100, 500, 8, 5), _din(20_000, 60_000, 18, 40)),
    "cnn": (
        Size(lambda: Convolutions(8, 4, 8, 16), _numbers(3, 8, 8)),
        Size(lambda: Convolutions(32, 32, 64, 512), _numbers(3, 32, 32), steps=2),
    ),
    "resnet": (
        Size(lambda: Residual(4, 1), _numbers(3, 8, 8)),
        Size(lambda: Residual(16, 3), _numbers(3, 32, 32), steps=1),
    ),
    "gru": (_reader(_gru, 500, 8, 16, 8), _reader(_gru, 20_000, 25, 100, 30)),
    "lstm": (_reader(_lstm, 500, 8, 16, 8), _reader(_lstm, 20_000, 25, 100, 30)),
    "fedslice.nn.LSTM": (_reader(LSTM, 500, 8, 16, 8), _reader(LSTM, 20_000, 25, 100, 30)),
    "transformer": (
        _attentive(500, 16, 2, 32, 1, 0.0, 8),
        _attentive(20_000, 128, 4, 256, 2, 0.1, 32)._replace(steps=2),
    ),
    "branch": (
        Size(lambda: Branching(32, 32), _numbers(32)),
        Size(lambda: Branching(784, 200, 200), _numbers(784)),
    ),
    "two towers": (_towers(100, 500, 8, 16), _towers(20_000, 60_000, 32, 128)),
}


def task(size: Size, batch: int, clients: int = COHORT) -> Task:
    """Noise for some clients, two batches each."""
    chance, count = np.random.default_rng(0), clients * 2 * batch
    federation = Federation.from_arrays(
        client=np.arange(count) % clients,
        features=size.features(chance, count),
        label=chance.integers(0, 2, count),
        test=0.0,
    )
    return Task(federation, size.model, nn.CrossEntropyLoss(reduction="none"), tables=size.tables)


def experiment(size: Size, batch: int, engine: str) -> Experiment:
    """FedAvg with all clients in every round."""
    recipe = recipes.get("fedavg", cohort=COHORT, batch_size=batch, iterations=size.steps)
    return Experiment(task(size, batch), recipe, rounds=1, engine=engine)


def compare(family: str, realistic: bool, batch: int, repeats: int) -> dict[str, Any]:
    """Seconds per round of both engines, where vmap can carry the model, and of the choice; in turns."""
    runs: dict[str, Experiment] = {}
    for engine in ENGINES:
        run = experiment(FAMILIES[family][realistic], batch, engine)
        try:
            assert run.engine
        except UserError:  # vmap cannot carry the model
            continue
        runs[engine] = run
    seconds: dict[str, list[float]] = {engine: [] for engine in runs}
    for _ in range(1 + repeats):
        for engine, run in runs.items():
            begun = time.perf_counter()
            with threads(run.engine.round_threads):
                play_round(run.server, run.transport)
            seconds[engine].append(time.perf_counter() - begun)
    medians = {engine: statistics.median(found[1:]) for engine, found in seconds.items()}  # the first warms up
    chosen = runs["auto"].engine
    return {
        "family": family,
        "size": "realistic" if realistic else "small",
        "batch": batch,
        "seconds": medians,
        "chosen": chosen.engine.label,
        "reason": chosen.reason,
        "auto_over_best": medians["auto"] / min(medians.values()),
    }


def rows(repeats: int) -> list[dict[str, Any]]:
    """All families, both sizes, both batches."""
    return [
        compare(family, realistic, batch, repeats)
        for family in FAMILIES
        for realistic in (False, True)
        for batch in BATCHES
    ]
