"""A generated log of impressions and clicks in the shape of Alibaba's (FedSubAvg, section 5.1), which is not public.

The shape is that of FedSubAvg, table 1: 49,023 clients, 16,864,641 samples, and a feature heat dispersion of 3,142,
which here is 3,111 in the training data of seed 0 and a few per cent off for other seeds. What is planted: items and
categories that everybody clicks more or less on, users who click more or less, and for each user a few favourite
categories, which it meets and clicks more often than others. A favourite shows in the history of clicks before it shows
anywhere else, so a model that compares the target with the history can learn it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedslice.core import rng
from fedslice.datasets.taobao import FEWEST, Clicks

CLIENTS = 49_023
SAMPLES = 16_864_641
ITEMS = 300_000
CATEGORIES = 5_000

_FAVOURITES = 8  # categories per user
_LOYALTY = 0.5  # share of a user's samples that come from its favourites
_FLAT = 0.00174  # popularity is 1 / (rank + this share of the items): a Zipf law with a flat top
_SPREAD = 1.0  # standard deviation of the logarithm of clients' sizes
_BLOCK = 1 << 20

_RATE = -2.6  # the logit of a click where nothing else speaks
_ITEM, _CATEGORY, _USER, _FAVOURITE = 0.7, 0.7, 0.7, 1.5  # what each planted cause adds to it


@dataclass(frozen=True)
class _Shop:
    """Items in the order of their categories, with what draws samples and clicks."""

    edges: NDArray[np.float64]  # popularity summed up to and with each item
    category: NDArray[np.int32]
    appeal: NDArray[np.float32]

    def reach(self, category: NDArray[np.int32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Boundaries of the categories on the line of summed popularity."""
        first, last = (np.searchsorted(self.category, category, side=side) for side in ("left", "right"))
        return np.where(first > 0, self.edges[first - 1], 0.0), self.edges[last - 1]

    def at(self, place: NDArray[np.float64]) -> NDArray[np.int32]:
        """The items at places on that line."""
        return np.minimum(np.searchsorted(self.edges, place, side="right"), len(self.edges) - 1).astype(np.int32)


def generate(scale: float = 1.0, seed: int = 0) -> Clicks:
    """The log, with ``scale`` times the clients, samples, items and categories."""
    clients, items, categories = (max(1, round(scale * whole)) for whole in (CLIENTS, ITEMS, CATEGORIES))
    total = max(FEWEST * clients, round(scale * SAMPLES))
    shop = _shop(items, categories, seed)
    user = np.repeat(np.arange(clients, dtype=np.int32), _sizes(clients, total, seed))
    draw = rng.uniform(seed, rng.Purpose.DATA, 3, np.arange(clients)[:, None], np.arange(_FAVOURITES))
    favourites = shop.category[shop.at(draw * shop.edges[-1])]
    begins, ends = shop.reach(favourites)
    habit = _USER * _normal(clients, seed, 4)
    item, label = np.empty(len(user), np.int32), np.empty(len(user), np.bool_)
    for first in range(0, len(user), _BLOCK):
        part = slice(first, first + _BLOCK)
        who = user[part]
        sample = np.arange(first, first + len(who))
        which, place, chance = (rng.uniform(seed, rng.Purpose.DATA, stream, sample) for stream in (5, 6, 7))
        loyal, slot = which < _LOYALTY, (which / _LOYALTY * _FAVOURITES).astype(np.int32) % _FAVOURITES
        begin, end = np.where(loyal, begins[who, slot], 0.0), np.where(loyal, ends[who, slot], shop.edges[-1])
        item[part] = shop.at(begin + place * (end - begin))
        favourite = (favourites[who] == shop.category[item[part], None]).any(1)
        logit = _RATE + habit[who] + shop.appeal[item[part]] + _FAVOURITE * favourite
        label[part] = chance < 1 / (1 + np.exp(-logit))
    return Clicks(user + np.int32(1), item + np.int32(1), shop.category[item] + np.int32(1), label)


def _shop(items: int, categories: int, seed: int) -> _Shop:
    """Items of all ranks of popularity in categories of very different size: there are hot and cold ones of both."""
    share = np.sort(rng.uniform(seed, rng.Purpose.DATA, 0, np.arange(items)))
    category = (categories * share**2).astype(np.int32)
    rank = rng.generator(seed, rng.Purpose.DATA, 1).permutation(items)
    edges = np.cumsum(1 / (rank + 1 + _FLAT * items))
    appeal = _ITEM * _normal(items, seed, 8) + _CATEGORY * _normal(categories, seed, 9)[category]
    return _Shop(edges, category, appeal)


def _sizes(clients: int, total: int, seed: int) -> NDArray[np.int64]:
    """Log-normal shares of what ``FEWEST`` for everyone leaves of the total, rounded so that none is lost."""
    share = np.exp(_SPREAD * _normal(clients, seed, 2).astype(np.float64))
    ends = np.cumsum(share) / share.sum() * (total - FEWEST * clients)
    sizes: NDArray[np.int64] = FEWEST + np.diff(np.rint(ends).astype(np.int64), prepend=0)
    return sizes


def _normal(count: int, seed: int, stream: int) -> NDArray[np.float32]:
    return rng.generator(seed, rng.Purpose.DATA, stream).standard_normal(count, np.float32)
