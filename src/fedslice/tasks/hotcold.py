"""A generated recommender with hot and cold items: no data needed, any size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.measure import accuracy, auc
from fedslice.task import Task
from fedslice.tasks.entry import Entry, Options, Seed

Size = Annotated[int, Field(ge=1, le=10**9)]


class HotColdOptions(Options):
    """Sizes, and ``zipf``, the exponent of item popularity: 0 is even, larger is more dispersed heat."""

    clients: Size = 1000
    items: Size = 10_000
    samples: Size = 60  # per client
    factors: Size = 8
    zipf: Annotated[float, Field(ge=0, le=3)] = 1.0
    signal: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0  # standard deviation of the planted logit
    data_seed: Seed = 0


class Taste(nn.Module):
    """Score of a user profile and an item: taste(profile) · item + the item's own bias."""

    def __init__(self, items: int, factors: int):
        super().__init__()
        self.taste = nn.Linear(factors, factors)
        self.item = nn.Embedding(items, factors)
        self.bias = nn.Embedding(items, 1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, profile: Tensor, item: Tensor) -> Tensor:
        """One logit per sample."""
        match: Tensor = (self.taste(profile) * self.item(item)).sum(-1)
        bias: Tensor = self.bias(item).squeeze(-1)
        return match + bias


def make(options: HotColdOptions, data: Path | None) -> Task:
    """Users meet items by Zipf's law and like them by planted factors; 20% of the samples are held out."""
    if data is not None:
        raise UserError(f"task 'hotcold' is generated, so --data {data} has no place in it; leave it out.")
    seed, count = options.data_seed, options.clients * options.samples
    client = np.repeat(np.arange(options.clients), options.samples)
    sample = np.arange(count)
    item = zipf_ranks(rng.uniform(seed, rng.Purpose.DATA, 1, sample), options.items, options.zipf)
    profile = _normal(seed, 2, np.arange(options.clients), options.factors)[client]
    planted = _normal(seed, 3, item, options.factors + 1)
    match = (profile * planted[:, :-1]).sum(1) / np.sqrt(options.factors) + planted[:, -1]
    chance = 1 / (1 + np.exp(-options.signal * match / np.sqrt(2)))
    liked = rng.uniform(seed, rng.Purpose.DATA, 4, sample) < chance
    federation = Federation.from_arrays(
        client=client,
        features={"profile": profile.astype(np.float32), "item": item},
        label=liked.astype(np.float32),
        test=0.2,
        seed=seed,
    )
    return Task(
        federation,
        lambda: Taste(options.items, options.factors),
        nn.BCEWithLogitsLoss(reduction="none"),
        tables={"item.weight": "item", "bias.weight": "item"},
        metrics={"auc": auc, "accuracy": accuracy},
        name="hotcold",
        source=f"generated (data_seed {seed})",
    )


def zipf_ranks(uniform: NDArray[np.float64], items: int, exponent: float) -> NDArray[np.int64]:
    """Items by popularity rank, drawn by inverting the continuous Zipf law: no array as long as the table."""
    if abs(exponent - 1) < 1e-9:
        rank = np.exp(uniform * np.log(items + 1))
    else:
        rank = (1 + uniform * ((items + 1.0) ** (1 - exponent) - 1)) ** (1 / (1 - exponent))
    ranks: NDArray[np.int64] = np.minimum(rank.astype(np.int64) - 1, items - 1)
    return ranks


def _normal(seed: int, stream: int, rows: NDArray[np.int64], columns: int) -> NDArray[np.float64]:
    """Normal values that belong to a row number, whichever rows are asked for (Box and Muller)."""
    key = (seed, rng.Purpose.DATA, stream, rows[:, None], np.arange(columns)[None])
    radius = np.sqrt(-2 * np.log(1 - rng.uniform(*key, 0)))
    values: NDArray[np.float64] = radius * np.cos(2 * np.pi * rng.uniform(*key, 1))
    return values


ENTRY = Entry(
    name="hotcold",
    about="generated recommender, Zipf item heat, planted user and item factors",
    needs="nothing: it is generated",
    options=HotColdOptions,
    make=make,
    rounds=200,
    settings={"cohort": 50, "lr": 0.1, "batch_size": 5},
)
