"""FDRL in a streaming subspace: most rounds the shared encoder's update travels as a few coefficients.

After a warm-up the server and all clients know the directions in which the shared encoder moves; from then on a client
sends its coordinates along them, and every fifth round a full update that keeps the directions up to date (FLSS). The
private encoder and the head have no part in any of it.
"""

import numpy as np
import polars as pl
from torch import nn

from fedslice import Experiment, Federation, Recipe, Task
from fedslice.codecs import Dense, StreamingSubspace
from fedslice.combine import Mean
from fedslice.local import FDRL, SGD, Local
from fedslice.measure import accuracy
from fedslice.models.discriminative import Discriminative
from fedslice.select import Uniform
from fedslice.slices import Shared

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
for codec in (Dense(), StreamingSubspace(rank=5, warmup=10, every=5)):
    recipe = Recipe(
        select=Uniform(cohort=10),
        slices=Shared("shared.*"),
        local=Local(FDRL(), optimizer=SGD(lr=0.05, momentum=0.5, weight_decay=1e-4)),
        codec=codec,
        combine=Mean(weights="uniform"),
    )
    rows = Experiment(task, recipe, rounds=40, eval_every=20, measure=["personal"]).run()
    print(f"codec={codec.label}")
    print(pl.DataFrame(rows).select("round", "personal_accuracy", "personal_accuracy_worst", "up_bytes", "down_bytes"))
