"""Who gets which samples: the ways in which the papers spread a labelled set over clients.

Every function here answers with the client of each sample, or -1 for a sample that stays unused; a client always has
at least one. Where clients hold some classes only, classes are given out so that all are in equal demand: which ones a
client gets is random, but were they drawn without regard to the others, equal counts for all clients would leave about
a fifth of the samples unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedslice import rng
from fedslice.errors import UserError, unknown

Ints = NDArray[np.int64]

Way = Literal["iid", "non-iid-a", "non-iid-b", "imbalanced", "dirichlet", "pathological"]
WAYS: tuple[str, ...] = get_args(Way)
RARE = (0, 1, 2)
"""The classes of which `imbalanced` keeps fewer samples; S3, 6.7, says how many classes that are, and not which."""
RARE_SHARE = Fraction(2, 5)
REDRAWS = 100

_FEW = 3  # classes of a client in S3's non-iid-b and class-imbalanced settings


def partition(way: str, label: Ints, clients: int, seed: int, beta: float = 0.5, classes: int = 2) -> Ints:
    """The client of each sample.

    ``iid`` deals all samples out. ``non-iid-a`` gives every client 2 to 10 classes and ``non-iid-b`` three (S3, 6.1),
    and all clients the same number of samples, of which S3 says nothing. ``imbalanced`` thins the first classes out and
    gives every client three (S3, 6.7); ``pathological`` gives every client ``classes`` of them (S4); in both each class
    is cut into as many shards as it has holders. ``dirichlet`` draws every class's shares from Dir(``beta``) (S4).
    """
    if way not in WAYS:
        raise unknown("partition", way, WAYS)
    if not 1 <= clients <= len(label):
        raise UserError(f"clients={clients} for {len(label):,} samples, expected from 1 to one per sample; give fewer.")
    chance = rng.generator(seed, rng.Purpose.SPLIT, WAYS.index(way))
    if way == "iid":
        return _dealt(len(label), clients, chance)
    pools = _thinned(label, chance) if way == "imbalanced" else _pools(label, chance)
    if way == "dirichlet":
        return _dirichlet(pools, len(label), clients, beta, chance)
    counts = [classes if way == "pathological" else _FEW] * clients
    if way == "non-iid-a":
        counts = chance.integers(min(2, len(pools)), min(10, len(pools)), clients, endpoint=True).tolist()
    held = _holders(way, counts, len(pools), chance)
    spread = _in_equal_counts if way.startswith("non-iid") else _in_shards
    return spread(pools, len(label), held)


def _dealt(samples: int, clients: int, chance: np.random.Generator) -> Ints:
    """All samples in random order, one to each client in turn."""
    owner = np.empty(samples, np.int64)
    owner[chance.permutation(samples)] = np.arange(samples) % clients
    return owner


def _pools(label: Ints, chance: np.random.Generator) -> list[Ints]:
    """The samples of each class that occurs, in random order."""
    return [chance.permutation(np.flatnonzero(label == one)) for one in np.unique(label)]


def _thinned(label: Ints, chance: np.random.Generator) -> list[Ints]:
    """n samples of each class, and 0.4 n of the rare ones, for the largest n there is (S3, 6.7)."""
    shares = [RARE_SHARE if one in RARE else Fraction(1) for one in np.unique(label)]
    pools = _pools(label, chance)
    most = min(int(len(pool) / share) for pool, share in zip(pools, shares, strict=True))
    return [pool[: int(most * share)] for pool, share in zip(pools, shares, strict=True)]


def _holders(way: str, counts: Sequence[int], classes: int, chance: np.random.Generator) -> list[Ints]:
    """For each client, which so many classes it holds: those in least demand, ties broken at random.

    A client with k classes needs 1/k of its samples from each.
    """
    if max(counts) > classes:
        raise UserError(
            f"partition={way} with {max(counts)} classes per client, expected at most the {classes} that the samples "
            "have; give fewer classes or more samples."
        )
    demand, held = np.zeros(classes), []
    for count in counts:
        order = np.lexsort((chance.random(classes), demand.round(9)))
        held.append(chance.permutation(order[:count]))
        demand[held[-1]] += 1 / count
    return held


def _in_shards(pools: list[Ints], samples: int, held: list[Ints]) -> Ints:
    """Each class cut into shards of equal size, to within one sample, and one given to each of its holders."""
    owner = np.full(samples, -1)
    for one, pool in enumerate(pools):
        holders = np.array([client for client, classes in enumerate(held) if one in classes], np.int64)
        if len(holders) > len(pool):
            raise _too_few(len(pool), len(holders))
        if len(holders):
            owner[pool] = holders[np.arange(len(pool)) % len(holders)]
    return owner


def _in_equal_counts(pools: list[Ints], samples: int, held: list[Ints]) -> Ints:
    """The largest equal number of samples for all clients, drawn evenly from each client's classes.

    The class in greatest demand decides how many that is; what others have over stays unused.
    """
    client = np.repeat(np.arange(len(held)), [len(classes) for classes in held])
    kind = np.concatenate(held)
    wide = np.concatenate([np.full(len(classes), len(classes)) for classes in held])
    place = np.concatenate([np.arange(len(classes)) for classes in held])
    sizes = np.array([len(pool) for pool in pools])

    def needed(count: int) -> Ints:
        """Samples of each (client, class): ``count`` by client, those over going to its first classes."""
        samples_of: Ints = (count + wide - 1 - place) // wide
        return samples_of

    low, high = 0, samples // len(held) + 1  # the needs grow with the count: look for the last that can be met
    while high - low > 1:
        middle = (low + high) // 2
        met = (np.bincount(kind, needed(middle), minlength=len(pools)) <= sizes).all()
        low, high = (middle, high) if met else (low, middle)
    if low < wide.max():
        raise _too_few(int(sizes.min()), int(np.bincount(kind).max()))
    owner = np.full(samples, -1)
    for one, pool in enumerate(pools):
        mine = kind == one
        owners = np.repeat(client[mine], needed(low)[mine])
        owner[pool[: len(owners)]] = owners
    return owner


def _dirichlet(pools: list[Ints], samples: int, clients: int, beta: float, chance: np.random.Generator) -> Ints:
    """For each class, shares of the clients from Dir(beta); who has its fair number of samples gets no more."""
    for _ in range(REDRAWS):
        owner, filled = np.empty(samples, np.int64), np.zeros(clients, np.int64)
        for pool in pools:
            share = chance.dirichlet(np.full(clients, beta)) * (filled * clients < samples)
            if not share.sum() > 0:  # so small a beta can give all to clients that are full
                break
            cuts = (np.cumsum(share / share.sum())[:-1] * len(pool)).astype(np.int64)
            sizes = np.diff(cuts, prepend=0, append=len(pool))
            owner[pool] = np.repeat(np.arange(clients), sizes)
            filled += sizes
        else:
            if filled.min() > 0:
                return owner
    raise UserError(
        f"partition=dirichlet with beta={beta:g} left some of {clients} clients without a sample in each of {REDRAWS} "
        f"draws from {samples:,} samples; give a larger beta, fewer clients or more samples."
    )


def _too_few(pool: int, holders: int) -> UserError:
    return UserError(
        f"a class has {pool} samples and up to {holders} clients hold one class, expected enough for each; "
        "give fewer clients, fewer classes per client or more samples."
    )
