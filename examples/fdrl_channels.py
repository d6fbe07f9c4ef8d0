"""FDRL with channel dropout: of the shared encoder only the channels that have most to tell go up.

After training a client scores the channels of each layer by importance (FedDD) and uploads a part of those that are
shared; the others stay as it trained them until the whole encoder comes down again. The private encoder and the head
are its own throughout.
"""

import numpy as np
import polars as pl
from torch import nn

from fedslice import Experiment, Federation, Recipe, Task
from fedslice.combine import Coverage
from fedslice.local import FDRL, SGD, Local
from fedslice.measure import accuracy
from fedslice.models.discriminative import Discriminative
from fedslice.select import Uniform
from fedslice.slices import ChannelDropout, Shared, Whole

CLIENTS, SAMPLES, INPUTS, CLASSES = 30, 3_000, 16, 6

rng = np.random.default_rng(0)
client = rng.integers(0, CLIENTS, SAMPLES)
label = (client + rng.integers(0, 3, SAMPLES)) % CLASSES  # three classes each
kinds, styles = rng.normal(size=(CLASSES, INPUTS)), rng.normal(size=(CLIENTS, INPUTS))
x = kinds[label] * (1 + styles[client]) + rng.normal(size=(SAMPLES, INPUTS))


def encoder() -> nn.Module:
    """Eight features."""
    return nn.Sequential(nn.Linear(INPUTS, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU())


task = Task(
    Federation.from_arrays(client=client, features={"x": x}, label=label),
    lambda: Discriminative(encoder(), encoder(), head=CLASSES),
    nn.CrossEntropyLoss(reduction="none"),
    metrics={"accuracy": accuracy},
)
for inner in (Whole(), ChannelDropout(budget=0.5, full_every=5)):
    recipe = Recipe(
        select=Uniform(cohort=10),
        slices=Shared("shared.*", inner=inner),
        local=Local(FDRL(), optimizer=SGD(lr=0.1)),
        combine=Coverage(weights="uniform"),
    )
    rows = Experiment(task, recipe, rounds=40, eval_every=20, measure=["personal"]).run()
    print(f"inner={inner}")
    print(pl.DataFrame(rows).select("round", "personal_accuracy", "personal_accuracy_worst", "up_bytes", "down_bytes"))
