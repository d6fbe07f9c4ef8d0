"""Neighbours: the clients that mask against each other and hold each other's shares.

Up to a hundred clients everyone is a neighbour of everyone. Above, SecAgg+ takes a random graph in which each client
has about logarithmically many: the clients stand on a circle in random order, and neighbours are at most ``degree / 2``
places apart (a Harary graph).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom

from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.privacy.draws import Draw

COMPLETE = 100  # the largest cohort in which everyone is a neighbour of everyone by default
SECURITY, CORRECTNESS = 40, 30  # -log2 of the chance that a random graph is unsafe, or cannot be unmasked


@dataclass(frozen=True)
class Graph:
    """The neighbours of every client of a cohort. Clients are named by their position in it.

    Args:
        size: Number of clients.
        degree: Neighbours of each, even; or ``size - 1`` for the complete graph.
        seed: The seed of the order on the circle.
    """

    size: int
    degree: int
    seed: int = 0

    @property
    def complete(self) -> bool:
        """True if everyone is a neighbour of everyone."""
        return self.degree == self.size - 1

    def neighbours(self, client: int) -> NDArray[np.int64]:
        """Return the neighbours of a client, ascending."""
        if self.complete:
            return np.delete(np.arange(self.size), client)
        order, place = self._circle
        half = self.degree // 2
        offsets = np.concatenate([np.arange(-half, 0), np.arange(1, half + 1)])
        return np.sort(order[(place[client] + offsets) % self.size])

    @cached_property
    def _circle(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The clients in their order, and the place of each."""
        order = np.argsort(rng.bits(self.seed, Draw.GRAPH, np.arange(self.size)), kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(self.size)
        return order, place


def complete(size: int, threshold: int | None = None) -> tuple[Graph, int]:
    """Return the complete graph and its threshold, by default more than half of the clients."""
    most = size // 2 + 1 if threshold is None else threshold
    if not 2 <= most <= size or 2 * most <= size:
        raise UserError(
            f"threshold {most} of {size} clients is not safe; expected more than half, at least 2, at most all.",
            ["threshold"],
        )
    return Graph(size, size - 1), most


def sparse(size: int, seed: int, corrupt: float = 0.1, lost: float = 0.1) -> tuple[Graph, int]:
    """Return a random graph of the smallest safe degree, and the shares that combine a secret.

    Args:
        size: Number of clients.
        seed: Known to everyone, and different in each round.
        corrupt: Largest share of the clients that tell the server what they know.
        lost: Largest share of the clients that are lost during the sum.

    With chance ``1 - 2**-40`` the honest clients that remain are connected, and no client's neighbours include enough
    corrupt ones to combine its secrets; with chance ``1 - 2**-30`` enough neighbours of everyone remain.
    """
    for name, share in (("corrupt", corrupt), ("lost", lost)):
        if not 0 <= share < 0.5:
            raise UserError(f"{name} = {share} is not a share of a cohort; expected 0 to below 0.5.", [name])
    found = _degree(size, corrupt, lost)
    return complete(size) if found is None else (Graph(size, found[0], seed), found[1])


@lru_cache
def _degree(size: int, corrupt: float, lost: float) -> tuple[int, int] | None:
    """The smallest degree and its threshold; none where no degree below the complete graph's is enough."""
    for degree in range(2, size - 1, 2):
        threshold = _threshold(size, degree, corrupt, lost)
        if threshold is not None:
            return degree, threshold
    return None


def _threshold(size: int, degree: int, corrupt: float, lost: float) -> int | None:
    """The smallest threshold with which a degree is safe and correct, if there is one.

    SecAgg+, section 3: a client's secrets are combined by ``threshold`` of its neighbours and itself, and if it is lost
    by its neighbours alone. A circle without some clients falls apart only where ``degree / 2`` in a row are missing,
    at two places at least.
    """
    bad, gone = math.ceil(corrupt * size), math.ceil(lost * size)
    half, missing = degree // 2, min(size, bad + gone)
    run = 0.0 if missing < half else sum(math.log2((missing - i) / (size - i)) for i in range(half))
    if missing >= half and math.log2(size) + run > -SECURITY - 1:
        return None
    around = np.arange(degree + 2)
    told = size * hypergeom.sf(around - 1, size - 1, bad, degree)  # that at least so many neighbours are corrupt
    safe = np.flatnonzero(told <= 2.0 ** (-SECURITY - 1))
    threshold = max(2, int(safe[0]) if safe.size else degree + 1, (degree + 1) // 2 + 1)
    left = size * hypergeom.sf(degree - threshold, size - 1, gone, degree)  # that too few neighbours remain
    return threshold if left <= 2.0**-CORRECTNESS else None
