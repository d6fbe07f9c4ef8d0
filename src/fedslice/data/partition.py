"""Ways to spread samples over clients, as values: ``partition.dirichlet(0.1)``, ``partition.shards(classes=2)``.

For sets that know no clients, see :meth:`fedslice.Federation.partition`. :mod:`fedslice.data.ways` has the algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedslice.core.errors import UserError
from fedslice.data import ways
from fedslice.data.ways import Ints, Way

NOBODY = -1  # owns a test sample that belongs to no client


@dataclass(frozen=True)
class Partition:
    """A way to spread samples over clients, with its numbers.

    Args:
        way: The name of the way.
        beta: The concentration of Dirichlet draws; small is far from equal shares.
        classes: Classes that a client holds, or shards that it gets.
        limit: Training samples that a client gets at most, of shards.
    """

    way: Way | Literal["shards"]
    beta: float = 0.5
    classes: int = 2
    limit: int = 500

    def __post_init__(self) -> None:
        if not 0 < self.beta < float("inf"):
            raise UserError(f"beta={self.beta} of a partition, expected a number above 0.")
        if self.classes < 1 or self.limit < 1:
            raise UserError(f"classes={self.classes} and limit={self.limit} of a partition, expected at least 1 each.")

    def owners(self, label: Ints, tested: Ints, clients: int, seed: int) -> tuple[Ints, Ints]:
        """The client of each training and of each test sample, or -1 for those that no client gets.

        Test samples are dealt out by shards alone.
        """
        if self.way == "shards":
            return ways.shards(label, tested, clients, seed, self.classes, self.limit)
        owner = ways.partition(self.way, label, clients, seed, self.beta, self.classes)
        return owner, np.full(len(tested), NOBODY)


def iid() -> Partition:
    """All samples dealt out at random, as many to each client."""
    return Partition("iid")


def dirichlet(beta: float = 0.5) -> Partition:
    """The clients' shares of each class drawn from Dir(``beta``); every client has a sample."""
    return Partition("dirichlet", beta=beta)


def pfl_dirichlet(beta: float = 0.5) -> Partition:
    """As :func:`dirichlet`, with at least 40 samples for each client, as PFLlib has it."""
    return Partition("pfl-dirichlet", beta=beta)


def pathological(classes: int = 2) -> Partition:
    """So many classes for each client; a class is cut into equal shards for those who have it."""
    return Partition("pathological", classes=classes)


def pfl_pathological(classes: int = 2) -> Partition:
    """As :func:`pathological`, with parts of very different size, as PFLlib has it."""
    return Partition("pfl-pathological", classes=classes)


def non_iid_a() -> Partition:
    """Two to ten classes and the same number of samples for each client (FedDD, section 6.1)."""
    return Partition("non-iid-a")


def non_iid_b() -> Partition:
    """Three classes and the same number of samples for each client (FedDD, section 6.1)."""
    return Partition("non-iid-b")


def imbalanced() -> Partition:
    """Three classes for each client, of a set in which the first three classes are rare (FedDD, section 6.7)."""
    return Partition("imbalanced")


def shards(classes: int = 2, limit: int = 500) -> Partition:
    """So many shards of one class each, and at most ``limit`` training samples, for each client (FDRL's code)."""
    return Partition("shards", classes=classes, limit=limit)
