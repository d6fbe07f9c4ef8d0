"""MovieLens rating classification with logistic regression (FedSubAvg, section 5.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from torch import nn

from fedslice.data.federation import Federation
from fedslice.datasets import movielens
from fedslice.measure import accuracy, auc
from fedslice.models import SparseLogistic
from fedslice.task import Task
from fedslice.tasks.entry import Entry, Options, Seed, data_folder

NEEDS = "the official ml-1m.zip, or its folder"


class MovieLensOptions(Options):
    """Options: which of the two official sets, and the seed of the split into training and test samples."""

    variant: Literal["1m", "100k"] = "1m"
    data_seed: Seed = 0


def make(options: MovieLensOptions, data: Path | None) -> Task:
    """Positive is a rating of 4 or 5; one-hot gender, age, movie, gender x movie and age x movie; 80/20 by sample."""
    ratings = movielens.read(data_folder("movielens", data, NEEDS), options.variant)
    gender, age = ratings.gender[ratings.user], ratings.age[ratings.user]
    fields = [
        (2, gender),
        (len(movielens.AGES), age),
        (ratings.movies, ratings.movie),
        (2 * ratings.movies, gender * np.int32(ratings.movies) + ratings.movie),
        (len(movielens.AGES) * ratings.movies, age * np.int32(ratings.movies) + ratings.movie),
    ]
    first = np.cumsum([0, *(size for size, _ in fields)])
    ids = np.stack([column + start for (_, column), start in zip(fields, first, strict=False)], axis=1)
    federation = Federation.from_arrays(
        client=ratings.user,
        features={"ids": ids.astype(np.int32)},
        label=(ratings.rating >= 4).astype(np.float32),
        test=0.2,
        seed=options.data_seed,
    )
    return Task(
        federation,
        lambda: SparseLogistic(int(first[-1])),
        nn.BCEWithLogitsLoss(reduction="none"),
        tables={"table.weight": "ids"},
        metrics={"auc": auc, "accuracy": accuracy},
        name="movielens",
        source=f"MovieLens-{options.variant.upper()}, {len(ratings.rating):,} ratings",
    )


ENTRY = Entry(
    name="movielens",
    about="rating classification, logistic regression on crossed one-hot features",
    needs=NEEDS,
    options=MovieLensOptions,
    make=make,
    needs_data=True,
    rounds=400,
    settings={"cohort": 50, "lr": 0.1, "batch_size": 5},
)
