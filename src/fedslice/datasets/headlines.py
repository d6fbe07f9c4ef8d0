"""Generated articles of four kinds, for where AG News is not at hand.

Everyone writes the common words, by Zipf's law; a kind of news has words of its own, by Zipf's law too. How many of an
article's words are of its kind differs by article, and some have none: those nobody can tell apart.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedslice.core import rng
from fedslice.datasets.agnews import CLASSES, Articles

COMMON = 20_000
PER_CLASS = 15_000
"""Words that an article may have, those that all share and those of its kind."""
SHORTEST, LONGEST = 10, 80
"""Words of an article, all lengths alike; the mean is that of the real ones, 45."""

_STREAMS = ("class", "length", "share", "own", "rank")


def generate(samples: int, seed: int, first: int = 0) -> Articles:
    """Articles number ``first`` to ``first + samples``; an article depends on the seed and its number alone.

    A word is a whole number, the common words first, by rank.
    """
    article = first + np.arange(samples)
    label = rng.integers(CLASSES, seed, rng.Purpose.DATA, _STREAMS.index("class"), article)
    length = SHORTEST + rng.integers(LONGEST - SHORTEST + 1, seed, rng.Purpose.DATA, _STREAMS.index("length"), article)
    share = _uniform(seed, "share", article) ** 2  # so about one article in eight has no word of its kind
    which = np.repeat(np.arange(samples), length)
    place = np.arange(len(which)) - np.repeat(np.cumsum(length) - length, length)
    own = _uniform(seed, "own", article[which], place) < share[which]
    drawn = _uniform(seed, "rank", article[which], place)
    word = np.where(own, COMMON + label[which] * PER_CLASS + _zipf(drawn, PER_CLASS), _zipf(drawn, COMMON))
    frame = pl.DataFrame({"article": which, "word": word})
    return Articles(label, frame.group_by("article", maintain_order=True).agg("word")["word"])


def _uniform(seed: int, stream: str, *key: rng.Words) -> NDArray[np.float64]:
    return rng.uniform(seed, rng.Purpose.DATA, _STREAMS.index(stream), *key)


def _zipf(uniform: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Ranks from 0, each as often as one by its place."""
    mass = np.cumsum(1 / np.arange(1, count + 1))
    ranks: NDArray[np.int64] = np.searchsorted(mass / mass[-1], uniform, side="right")
    return np.minimum(ranks, count - 1)
