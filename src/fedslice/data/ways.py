"""Partitions: the ways in which the papers spread a labelled set over clients.

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

from fedslice.core import rng
from fedslice.core.errors import UserError, unknown

Ints = NDArray[np.int64]

Way = Literal[
    "iid", "non-iid-a", "non-iid-b", "imbalanced", "dirichlet", "pathological", "pfl-dirichlet", "pfl-pathological"
]
WAYS: tuple[str, ...] = get_args(Way)
RARE = (0, 1, 2)
"""The classes of which `imbalanced` keeps fewer samples; FedDD, 6.7, says how many classes that are, and not which."""
RARE_SHARE = Fraction(2, 5)
REDRAWS = 1000
"""Of 100 clients, ten classes and beta 0.1 about one draw in 200 gives everyone what `pfl-dirichlet` asks for."""
LEAST = 40
"""Samples of every client by `pfl-dirichlet`, or half of the fair number if that is less."""

PER_CLASS = 5000
"""Samples of a class that `shards` uses at most."""

_FEW = 3  # classes of a client in FedDD's non-iid-b and class-imbalanced settings
_HELD_OUT, _SHARDS = 1000, 1001  # streams beside those of the ways, which are numbered from 0


def partition(way: str, label: Ints, clients: int, seed: int, beta: float = 0.5, classes: int = 2) -> Ints:
    """The client of each sample.

    ``iid`` deals all samples out. ``non-iid-a`` gives every client 2 to 10 classes and ``non-iid-b`` three (FedDD,
    6.1), and all clients the same number of samples, of which FedDD says nothing. ``imbalanced`` thins the first
    classes out and gives every client three (FedDD, 6.7); ``pathological`` gives every client ``classes`` of them
    (FLSS); in both each class is cut into as many shards as it has holders. ``dirichlet`` draws every class's shares
    from Dir(``beta``) (FLSS). ``pfl-dirichlet`` and ``pfl-pathological`` are FLSS's settings as PFLlib makes them, the
    library whose settings FLSS has: in the one everyone has at least 40 samples, in the other a class's holders have
    very different numbers.
    """
    if way not in WAYS:
        raise unknown("partition", way, WAYS)
    _check_clients(clients, len(label))
    chance = rng.generator(seed, rng.Purpose.SPLIT, WAYS.index(way))
    if way == "iid":
        return _dealt(len(label), clients, chance)
    pools = _thinned(label, chance) if way == "imbalanced" else _pools(label, chance)
    if way in ("dirichlet", "pfl-dirichlet"):
        least = max(1, min(LEAST, len(label) // (2 * clients))) if way == "pfl-dirichlet" else 1
        return _dirichlet(way, pools, len(label), clients, beta, least, chance)
    if way == "pfl-pathological":
        return _in_turn(way, pools, len(label), clients, classes, chance)
    counts = [classes if way == "pathological" else _FEW] * clients
    if way == "non-iid-a":
        counts = chance.integers(min(2, len(pools)), min(10, len(pools)), clients, endpoint=True).tolist()
    held = _holders(way, counts, len(pools), chance)
    spread = _in_equal_counts if way.startswith("non-iid") else _in_shards
    return spread(pools, len(label), held)


def held_out(owner: Ints, seed: int) -> NDArray[np.bool_]:
    """Return flags of the test samples, drawn at random: each client keeps three quarters, rounded down (FLSS)."""
    sizes = np.bincount(owner)
    if (alone := np.flatnonzero(sizes == 1)).size:
        raise UserError(
            f"client {alone[0]} has 1 sample, expected at least 2 where a quarter of each client's is held out; "
            "give fewer clients or more samples."
        )
    tested: NDArray[np.bool_] = (
        _shuffled(owner, rng.generator(seed, rng.Purpose.SPLIT, _HELD_OUT)) >= sizes[owner] * 3 // 4
    )
    return tested


def shards(label: Ints, tested: Ints, clients: int, seed: int, classes: int, most: int) -> tuple[Ints, Ints]:
    """The client of each training sample and of each test sample, as FDRL's published code deals them.

    The first 5,000 samples of each class are cut, in their order, into shards of equal size, to within one sample: as
    many of each class, to within one, and ``classes`` for every client. They are dealt at random, so that a client may
    get two shards of one class. It trains on ``most`` of its samples, drawn at random. The test samples of a class are
    cut into as many shards and go to the clients that have the class, one for each of their training shards: every
    test sample belongs to one client at most. (The published code does so too where there are 100 test samples for
    every client; beyond, it draws the same ones again and again.)
    """
    kinds = np.unique(label)
    _check_clients(clients, len(label))
    _check_classes("shards", classes, len(kinds))
    chance = rng.generator(seed, rng.Purpose.SPLIT, _SHARDS)
    hand = chance.permutation(np.resize(chance.permutation(kinds), clients * classes)).reshape(clients, classes)
    owner, test = (_cut(part, hand, chance) for part in (label, tested))
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    if not sizes.all():
        raise _too_few(min(int((label == one).sum()) for one in kinds), int(max((hand == one).sum() for one in kinds)))
    used = np.flatnonzero(owner >= 0)
    owner[used[_shuffled(owner[used], chance) >= most]] = -1
    return owner, test


def _cut(label: Ints, hand: Ints, chance: np.random.Generator) -> Ints:
    """Each class cut into as many shards as are in the clients' hands [clients, shards], each of which gets one."""
    owner = np.full(len(label), -1)
    for one in np.unique(hand):
        holders = chance.permutation(np.nonzero(hand == one)[0])
        cuts = np.array_split(np.flatnonzero(label == one)[:PER_CLASS], len(holders))
        owner[np.concatenate(cuts)] = np.repeat(holders, [len(cut) for cut in cuts])
    return owner


def _shuffled(owner: Ints, chance: np.random.Generator) -> Ints:
    """The place of each sample among its client's, in random order."""
    sizes = np.bincount(owner)
    order = np.lexsort((chance.random(len(owner)), owner))
    place = np.empty(len(owner), np.int64)
    place[order] = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner[order]]
    return place


def _dealt(samples: int, clients: int, chance: np.random.Generator) -> Ints:
    """All samples in random order, one to each client in turn."""
    owner = np.empty(samples, np.int64)
    owner[chance.permutation(samples)] = np.arange(samples) % clients
    return owner


def _pools(label: Ints, chance: np.random.Generator) -> list[Ints]:
    """The samples of each class that occurs, in random order."""
    return [chance.permutation(np.flatnonzero(label == one)) for one in np.unique(label)]


def _thinned(label: Ints, chance: np.random.Generator) -> list[Ints]:
    """n samples of each class, and 0.4 n of the rare ones, for the largest n there is (FedDD, 6.7)."""
    shares = [RARE_SHARE if one in RARE else Fraction(1) for one in np.unique(label)]
    pools = _pools(label, chance)
    most = min(int(len(pool) / share) for pool, share in zip(pools, shares, strict=True))
    return [pool[: int(most * share)] for pool, share in zip(pools, shares, strict=True)]


def _holders(way: str, counts: Sequence[int], classes: int, chance: np.random.Generator) -> list[Ints]:
    """For each client, which so many classes it holds: those in least demand, ties broken at random.

    A client with k classes needs 1/k of its samples from each.
    """
    _check_classes(way, max(counts), classes)
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


def _dirichlet(
    way: str, pools: list[Ints], samples: int, clients: int, beta: float, least: int, chance: np.random.Generator
) -> Ints:
    """For each class, shares of the clients from Dir(beta); who has its fair number of samples gets no more.

    Drawn again until everyone has at least so many.
    """
    for _ in range(REDRAWS):
        counts, filled = [], np.zeros(clients, np.int64)
        for pool in pools:
            share = chance.dirichlet(np.full(clients, beta)) * (filled * clients < samples)
            if not share.sum() > 0:  # so small a beta can give all to clients that are full
                break
            cuts = (np.cumsum(share / share.sum())[:-1] * len(pool)).astype(np.int64)
            counts.append(np.diff(cuts, prepend=0, append=len(pool)))
            filled += counts[-1]
        else:
            if filled.min() >= least:
                owner = np.empty(samples, np.int64)
                owner[np.concatenate(pools)] = np.tile(np.arange(clients), len(pools)).repeat(np.concatenate(counts))
                return owner
    raise UserError(
        f"partition={way} with beta={beta:g} left some of {clients} clients with fewer than {least} "
        f"sample{'s' * (least > 1)} in each of {REDRAWS} draws from {samples:,} samples; give a larger beta, fewer "
        "clients or more samples."
    )


def _in_turn(
    way: str, pools: list[Ints], samples: int, clients: int, classes: int, chance: np.random.Generator
) -> Ints:
    """Each class goes to the first clients that still lack one, as many as are needed on average, rounded up.

    All but the last of them get from a tenth of an equal share to all of it, at random, and the last what is left.
    Where the rounding serves everyone too early the last classes stay unused, and where the groups of clients do not
    come out even the last clients have fewer classes.
    """
    _check_classes(way, classes, len(pools))
    many = -(-clients * classes // len(pools))
    lacking, owner = np.full(clients, classes), np.full(samples, -1)
    for pool in pools:
        holders = np.flatnonzero(lacking)[:many]
        if not len(holders):
            break
        if len(holders) > len(pool):
            raise _too_few(len(pool), len(holders))
        equal = len(pool) // len(holders)
        counts = chance.integers(max(1, equal // 10), equal, len(holders) - 1, endpoint=True)
        owner[pool] = np.repeat(holders, np.append(counts, len(pool) - counts.sum()))
        lacking[holders] -= 1
    return owner


def _check_clients(clients: int, samples: int) -> None:
    if not 1 <= clients <= samples:
        raise UserError(f"clients={clients} for {samples:,} samples, expected from 1 to one per sample; give fewer.")


def _check_classes(way: str, wanted: int, classes: int) -> None:
    if wanted > classes:
        raise UserError(
            f"partition={way} with {wanted} classes per client, expected at most the {classes} that the samples "
            "have; give fewer classes or more samples."
        )


def _too_few(pool: int, holders: int) -> UserError:
    return UserError(
        f"a class has {pool} samples and up to {holders} clients hold one class, expected enough for each; "
        "give fewer clients, fewer classes per client or more samples."
    )
