"""Models of all kinds, and federated averaging in plain PyTorch, which knows nothing of fedslice but the batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedslice.core.slice import Values
from fedslice.data.federation import Federation
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES
from fedslice.task import Task
from toys import double, squared_single

WORDS, CLASSES, LENGTH = 9, 3, 4
SIZES = (8, 5, 12)


def labels(output: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(output, label, reduction="none")


@dataclass(frozen=True)
class Kind:
    """A model with what it learns from.

    Args:
        build: The module.
        features: Names of the features that it takes, of those of ``data``.
        loss: Loss per sample.
        label: The name of the label.
        tables: As in a task.
        settings: Of the recipe.
    """

    build: Callable[[], nn.Module]
    features: tuple[str, ...] = ("x",)
    loss: Callable[[Any, Tensor], Tensor] = labels
    label: str = "classes"
    tables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def task(self, sizes: tuple[int, ...] = SIZES, test: float = 0.25) -> Task:
        features, label = data(sizes)
        client = np.repeat(np.arange(len(sizes)), sizes)
        chosen = {name: features[name] for name in self.features}
        torch.manual_seed(0)
        with double():
            federation = Federation.from_arrays(
                client=client, features=chosen, label=label[self.label], test=test, seed=0
            )
            return Task(federation, self.build(), self.loss, tables=self.tables)

    def recipe(self, name: str = "fedavg", **settings: Any) -> Recipe:
        own = {"cohort": len(SIZES), "iterations": 3, "batch_size": 3, "lr": 0.1}
        return RECIPES[name].with_options(own | dict(self.settings) | settings)


def data(sizes: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    draw, count = np.random.default_rng(0), sum(sizes)
    features = {
        "x": draw.normal(size=(count, 4)),
        "series": draw.normal(size=(count, LENGTH, 4)),
        "image": draw.normal(size=(count, 2, 4, 4)),
        "words": draw.integers(0, WORDS, (count, LENGTH)),
    }
    label = {
        "classes": draw.integers(0, CLASSES, count),
        "number": draw.normal(size=count),
        "next": draw.integers(0, WORDS, (count, LENGTH)),
    }
    return features, label


def averaged(task: Task, recipe: Recipe, rounds: int, private: Callable[[str], bool] = lambda _: False) -> Values:
    """Federated averaging of parameters and buffers by samples, each client with a module and optimizer of its own."""
    weights = task.federation.train.sizes.double()
    now = copy.deepcopy(task.build(0)).state_dict()
    mine = [copy.deepcopy(now) for _ in weights]
    for t in range(rounds):
        for client in range(len(weights)):
            start = {n: mine[client][n] if private(n) else value for n, value in now.items()}
            mine[client] = trained(task, recipe, start, t, client)
        for name, value in now.items():
            mean = sum(w * own[name].double() for w, own in zip(weights, mine, strict=True)) / weights.sum()
            now[name] = value if private(name) else mean if value.is_floating_point() else mean.round().to(value.dtype)
    return now


def trained(task: Task, recipe: Recipe, start: Values, t: int, client: int) -> Values:
    """One client's round with ``torch.optim.SGD``."""
    samples, local = task.federation.train, recipe.local
    module = copy.deepcopy(task.build(0))
    module.load_state_dict(start)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=local.optimizer.lr)
    who = torch.tensor([client])
    batches = local.sampler.batches(t, who, torch.zeros(1, dtype=torch.int64), samples.sizes[who], 1, 0)
    for index, real in zip(batches.index[0], batches.real[0], strict=True):
        chosen = index[real] + samples.offsets[client]
        if len(chosen):
            features, label = samples.batch(chosen)
            optimizer.zero_grad()
            task.loss(module(**features), label).mean().backward()
            optimizer.step()
    return copy.deepcopy(module.state_dict())


# --- modules ------------------------------------------------------------------------------------------------------


class Words(nn.Module):
    """Embedded words, what a layer makes of them, and a head."""

    def __init__(self, table: nn.Module, inner: nn.Module | None = None, width: int = 4, classes: int = CLASSES):
        super().__init__()
        self.table, self.inner, self.out = table, inner or nn.Identity(), nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.inner(self.table(words)).tanh())


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(-2)


class First(nn.Module):
    """A recurrent layer's last output."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][..., -1, :]


class Series(nn.Module):
    def __init__(self, inner: nn.Module, width: int = 4):
        super().__init__()
        self.inner, self.out = inner, nn.Linear(width, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        return self.out(self.inner(series))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0].mean(-2)


class Normed(nn.Module):
    """A network with batch normalisation."""

    def __init__(self, **options: Any):
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(4, 5), nn.BatchNorm1d(5, **options), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.first(x)).relu())


class Seeing(nn.Module):
    def __init__(self, norm: nn.Module):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(2, 3, 3), norm, nn.Linear(3, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        return self.out(self.norm(self.conv(image)).relu().mean((-1, -2)))


class Constant(nn.Module):
    """A position encoding and a mask, neither of which changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.linspace(0, 1, LENGTH)[:, None])
        self.register_buffer("steps", torch.arange(LENGTH), persistent=False)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        return self.out(((series + self.places) * (self.steps < 3)[:, None]).sum(-2))


class Tied(nn.Module):
    """A language model whose output layer is its table."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 4, **options), nn.Linear(4, WORDS, bias=False)
        self.out.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.table(words))


class Several(nn.Module):
    """Outputs by name, or one after the other."""

    def __init__(self, named: bool):
        super().__init__()
        self.named, self.inner, self.out, self.size = named, nn.Linear(4, 5), nn.Linear(5, CLASSES), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Any:
        inner = self.inner(x).tanh()
        both = self.out(inner), self.size(inner)
        return dict(zip(("classes", "size"), both, strict=True)) if self.named else both


def words(output: Tensor, label: Tensor) -> Tensor:
    """Of [n, T, V] and [n, T]: one loss per sample."""
    return F.cross_entropy(output.transpose(1, 2), label, reduction="none").mean(1)


def by_name(output: dict[str, Tensor], label: Tensor) -> Tensor:
    return labels(output["classes"], label) + 0.1 * output["size"].squeeze(1) ** 2


def in_order(output: tuple[Tensor, Tensor], label: Tensor) -> Tensor:
    return labels(output[0], label) + 0.1 * output[1].squeeze(1) ** 2


def partly_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    model[0].weight.requires_grad_(False)
    return Renamed(model)


class Renamed(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Bags(nn.Module):
    """Words by offsets: one bag after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.EmbeddingBag(WORDS, 4, mode="sum"), nn.Linear(4, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        offsets = torch.arange(0, words.numel(), words.shape[-1])
        return self.out(self.table(words.flatten(), offsets))


def stack(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, **options)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), Mean())


TABLE = {"table.weight": "words"}
KINDS: dict[str, Kind] = {
    "padding_idx": Kind(lambda: Words(nn.Embedding(WORDS, 4, padding_idx=0), Mean()), ("words",)),
    "padding_idx-table": Kind(lambda: Words(nn.Embedding(WORDS, 4, padding_idx=0), Mean()), ("words",), tables=TABLE),
    "padding_idx-tied": Kind(lambda: Tied(padding_idx=0), ("words",), words, "next"),
    "bag": Kind(lambda: Words(nn.EmbeddingBag(WORDS, 4)), ("words",)),
    "bag-table": Kind(lambda: Words(nn.EmbeddingBag(WORDS, 4)), ("words",), tables=TABLE),
    "bag-sum-table": Kind(lambda: Words(nn.EmbeddingBag(WORDS, 4, mode="sum")), ("words",), tables=TABLE),
    "bag-max-table": Kind(lambda: Words(nn.EmbeddingBag(WORDS, 4, mode="max")), ("words",), tables=TABLE),
    "bag-offsets": Kind(Bags, ("words",)),
    "bag-offsets-table": Kind(Bags, ("words",), tables=TABLE),
    "bag-padding": Kind(lambda: Words(nn.EmbeddingBag(WORDS, 4, padding_idx=2)), ("words",)),
    "batchnorm": Kind(Normed),
    "batchnorm-momentum": Kind(lambda: Normed(momentum=0.4)),
    "batchnorm-cumulative": Kind(lambda: Normed(momentum=None)),
    "batchnorm-plain": Kind(lambda: Normed(affine=False)),
    "batchnorm-untracked": Kind(lambda: Normed(track_running_stats=False)),
    "batchnorm2d": Kind(lambda: Seeing(nn.BatchNorm2d(3)), ("image",)),
    "instancenorm": Kind(lambda: Seeing(nn.InstanceNorm2d(3, track_running_stats=True)), ("image",)),
    "buffers": Kind(Constant, ("series",)),
    "tied": Kind(Tied, ("words",), words, "next"),
    "attention": Kind(lambda: Series(Attending()), ("series",)),
    "transformer": Kind(lambda: Series(stack()), ("series",)),
    "transformer-norm-first": Kind(lambda: Series(stack(norm_first=True, activation="gelu")), ("series",)),
    "gru": Kind(lambda: Series(First(nn.GRU(4, 4, batch_first=True))), ("series",)),
    "lstm": Kind(lambda: Series(First(nn.LSTM(4, 4, num_layers=2, batch_first=True))), ("series",)),
    "rnn": Kind(lambda: Series(First(nn.RNN(4, 2, batch_first=True, bidirectional=True))), ("series",)),
    "frozen": Kind(partly_frozen),
    "language": Kind(lambda: Words(nn.Embedding(WORDS, 4), classes=WORDS), ("words",), words, "next"),
    "number": Kind(lambda: Renamed(nn.Linear(4, 1)), loss=squared_single, label="number"),
    "named-outputs": Kind(lambda: Several(named=True), loss=by_name),
    "outputs": Kind(lambda: Several(named=False), loss=in_order),
}
