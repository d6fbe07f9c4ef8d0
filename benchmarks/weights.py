"""Perceptrons of growing width, 20 clients: trained together or one by one, and which of both the choice takes."""

import statistics
import time
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedslice import Experiment, Federation, Task, recipes
from fedslice.training.engines.scope import threads
from fedslice.training.rounds import play_round

CLIENTS, STEPS, INPUTS, CLASSES = 20, 6, 784, 10
ENGINES = ("vectorized", "sequential")
SIZES = [
    ((32,), 10),
    ((128,), 10),
    ((128,), 128),
    ((256, 256), 10),
    ((256, 256), 128),
    ((512, 512), 10),
    ((1024,) * 2, 10),
]


class Perceptron(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, hidden: tuple[int, ...]):
        super().__init__()
        sizes = (INPUTS, *hidden)
        layers = [part for a, b in zip(sizes, hidden, strict=False) for part in (nn.Linear(a, b), nn.ReLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.layers(x)


def task(hidden: tuple[int, ...], batch: int) -> Task:
    """A batch of noise for every client."""
    chance, count = np.random.default_rng(0), CLIENTS * batch
    federation = Federation.from_arrays(
        client=np.arange(count) % CLIENTS,
        features={"x": chance.normal(size=(count, INPUTS)).astype(np.float32)},
        label=chance.integers(0, CLASSES, count),
        test=0.0,
    )
    return Task(federation, lambda: Perceptron(hidden), nn.CrossEntropyLoss(reduction="none"))


def compare(hidden: tuple[int, ...], batch: int, repeats: int) -> dict[str, Any]:
    """CPU seconds per client and step of both engines, on one thread, in turns."""
    made, recipe = task(hidden, batch), recipes.get("fedavg", cohort=CLIENTS, batch_size=batch, iterations=STEPS)
    with threads(1):
        chosen = Experiment(made, recipe, rounds=1).engine.engine.label
        runs = {engine: Experiment(made, recipe, rounds=1, engine=engine) for engine in ENGINES}
        seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for _ in range(1 + repeats):
            for engine, run in runs.items():
                begun = time.process_time()
                play_round(run.server, run.transport)
                seconds[engine].append((time.process_time() - begun) / CLIENTS / STEPS)
    medians = {engine: statistics.median(found[1:]) for engine, found in seconds.items()}  # the first warms up
    weights = sum(shape.numel() for shape in made.shapes.values())
    return {"hidden": hidden, "weights": weights, "batch": batch, "seconds": medians, "chosen": chosen}


def rows(repeats: int) -> list[dict[str, Any]]:
    """All sizes."""
    return [compare(hidden, batch, repeats) for hidden, batch in SIZES]
