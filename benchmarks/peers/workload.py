"""What every peer has to do, and how it is asked to do it.

The work: federated averaging of a logistic regression over MovieLens-1M. In a round, `COHORT` clients are
drawn uniformly without replacement; each takes the whole model (one value per feature, a logit is the sum
of a sample's five), makes `STEPS` steps of SGD on batches of `BATCH` samples drawn with replacement, and
the server averages the updates weighted by the clients' numbers of samples. Nothing is evaluated.

The protocol: a worker prints `ready` when it is warm, then answers each line `rounds N` on its standard
input with one line of JSON, `{"seconds_per_round": [...]}`, and ends at the end of its input.
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

FEATURES = 38_839
COHORT = 50
STEPS = 10
BATCH = 5
LEARNING_RATE = 0.1
WARM_UP = 5


class Clients:
    """The samples of all clients, held in memory, and each client's random batches."""

    def __init__(self, path: str, seed: int | None = None) -> None:
        with np.load(path) as arrays:
            self.offsets = arrays["offsets"].tolist()
            self.ids = torch.from_numpy(arrays["ids"].astype(np.int64))
            self.labels = torch.from_numpy(arrays["labels"].astype(np.float32))
        self._random = np.random.default_rng(seed)
        empty = [client for client in range(len(self)) if self.samples(client) == 0]
        if empty:
            raise ValueError(f"{path}: client {empty[0]} has no samples; every client needs at least one")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def samples(self, client: int) -> int:
        """Return how many samples the client has."""
        return self.offsets[client + 1] - self.offsets[client]

    def batches(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one round's batches, drawn with replacement in one go."""
        first, last = self.offsets[client], self.offsets[client + 1]
        drawn = torch.from_numpy(self._random.integers(first, last, STEPS * BATCH))
        return zip(self.ids[drawn].split(BATCH), self.labels[drawn].split(BATCH), strict=True)


@lru_cache(maxsize=1)
def clients(path: str) -> Clients:
    """Return the clients of a file, read once per process."""
    return Clients(path)


class Requests:
    """The worker's side of the protocol.

    Standard output is kept for the answers alone: whatever else the process or its libraries print goes to
    standard error.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def ready(self) -> None:
        """Say that the next round is a steady one."""
        print("ready", file=self._answers)

    def __iter__(self) -> Iterator[int]:
        """Yield the number of rounds of each request, until the input ends."""
        for line in sys.stdin:
            match line.split():
                case ["rounds", count] if count.isdigit():
                    yield int(count)
                case []:
                    continue
                case _:
                    raise SystemExit(f"expected `rounds N`, found {line.strip()!r}")

    def answer(self, marks: list[float]) -> None:
        """Report the rounds between successive marks of the clock; the first is the first round's start."""
        seconds = [end - start for start, end in pairwise(marks)]
        print(json.dumps({"seconds_per_round": seconds}), file=self._answers)
