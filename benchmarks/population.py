"""All recipes with a thousand and with a million clients: a round should cost what its cohort does, and no more.

The task is tiny, so that whatever goes through the population shows. What looks at all clients by its definition, to
choose among them or to give each a share of a budget, stands apart. FedDD and Oort, which would have everyone train in
the first round, have cohorts of the same size here.
"""

import statistics
import sys
import time
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedslice import Experiment, Federation, Task, recipes
from fedslice.models.discriminative import Discriminative
from fedslice.training.devices import Devices
from fedslice.training.engines.scope import threads
from fedslice.training.rounds import play_round

CLIENTS = (1_000, 1_000_000)
COHORT, SAMPLES, INPUTS, CLASSES, ROWS = 50, 2, 8, 4, 500
_ROUNDS = 5  # of a repeat, of which the median counts
_WARM = 3

TRAINING = {"iterations": 2, "batch_size": 2, "lr": 0.05}
SUBSPACE = {"rank": 3, "warmup": 2, "every": 5}
OPTIONS: dict[str, dict[str, Any]] = {
    "flss": SUBSPACE,
    "sign+flss": SUBSPACE,
    "fedprox+flss": SUBSPACE,
    "fedgen": {"server_steps": 2, "width": 4, "generated": 4},
    "feddd": {"select": "uniform"},
    "oort": {"scheme": "full"},
}
ALL_CLIENTS = ("feddd", "oort")


class Perceptron(nn.Module):
    """Two layers."""

    def __init__(self, outputs: int = CLASSES) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, 6)
        self.second = nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """One logit per class."""
        return self.second(self.first(x).tanh())


class Lookup(nn.Module):
    """A score per row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ROWS, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, item: Tensor) -> Tensor:
        """One logit."""
        return self.out(self.item(item)).squeeze(-1)


def tasks(clients: int) -> dict[str, Task]:
    """A classifier, one with a shared and a private encoder, and one with a table."""
    draw, count = np.random.default_rng(0), clients * SAMPLES
    owner = np.repeat(np.arange(clients), SAMPLES)
    pictures = Federation.from_arrays(
        client=owner,
        features={"x": draw.normal(size=(count, INPUTS)).astype(np.float32)},
        label=draw.integers(0, CLASSES, count),
        test=0.0,
    )
    clicks = Federation.from_arrays(
        client=owner,
        features={"item": draw.integers(0, ROWS, count)},
        label=draw.integers(0, 2, count).astype(np.float32),
        test=0.0,
    )
    loss = nn.CrossEntropyLoss(reduction="none")
    return {
        "classes": Task(pictures, Perceptron, loss),
        "encoders": Task(pictures, lambda: Discriminative(Perceptron(6), Perceptron(6), CLASSES), loss),
        "rows": Task(clicks, Lookup, nn.BCEWithLogitsLoss(reduction="none"), tables={"item.weight": "item"}),
    }


def experiment(name: str, made: dict[str, Task]) -> Experiment:
    """A recipe on the task that it fits, with a cohort of ``COHORT``."""
    kind = {"fdrl": "encoders", "fedsubavg": "rows", "submodelavg": "rows"}.get(name, "classes")
    clients = len(made[kind].federation)
    by_budget = name in ("fedcs", "oort")
    own = {"budget": COHORT / clients} if by_budget else {"cohort": COHORT}
    recipe = recipes.get(name, **OPTIONS.get(name, {}), **own, **TRAINING)
    devices = Devices.drawn(clients, 0) if by_budget or name == "feddd" else None
    return Experiment(made[kind], recipe, rounds=10**6, devices=devices)


def compare(name: str, made: dict[int, dict[str, Task]], repeats: int) -> dict[str, Any]:
    """Seconds per round with few and with many clients, in turns."""
    runs = {clients: experiment(name, tasks) for clients, tasks in made.items()}
    seconds: dict[int, list[float]] = {clients: [] for clients in runs}

    def rounds(clients: int, count: int) -> float:
        run, each = runs[clients], []
        for _ in range(count):
            begun = time.perf_counter()
            play_round(run.server, run.transport)
            each.append(time.perf_counter() - begun)
        return statistics.median(each)

    with threads(1):
        for clients in runs:
            rounds(clients, _WARM)
        for _ in range(repeats):
            for clients in runs:
                seconds[clients].append(rounds(clients, _ROUNDS))
    times = [many / few for few, many in zip(*seconds.values(), strict=True)]
    return {
        "recipe": name,
        "all_clients": name in ALL_CLIENTS,
        "seconds": {clients: statistics.median(found) for clients, found in seconds.items()},
        "times": statistics.median(times),
        "times_min": min(times),
        "times_max": max(times),
    }


def rows(repeats: int) -> list[dict[str, Any]]:
    """All recipes, those that look at everyone last."""
    made = {clients: tasks(clients) for clients in CLIENTS}
    found = []
    for name in sorted(recipes.RECIPES, key=lambda name: name in ALL_CLIENTS):
        found.append(compare(name, made, repeats))
        print(f"{name} is done", file=sys.stderr, flush=True)
    return found
