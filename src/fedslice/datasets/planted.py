"""Generated texts with the statistics of a real set and a planted sentiment, for where the real set is not at hand.

Everyone writes the common words, most of them by Zipf's law; each user writes about a few topics of its own, and
a topic has words of its own by Zipf's law too. So a few words are held by nearly all clients and most words by a
few. Some users hardly write the common words, as those do who write in another language: that is why even the
hottest word is missing at some clients (FedSubAvg, table 1: 1,451 of 1,473).

Of all but the hottest words, most have a polarity, hot or cold. A text's label is drawn by a logistic law
from the sum of its words' polarities, so the best that any model can reach is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedslice.core import rng
from fedslice.datasets import text

TOPICS = 50
TOPICS_PER_USER = 3
NEUTRAL = 0.05
"""Share of the common words, the hottest of them, that say nothing about the sentiment, as "the" and "i" do not."""
POLAR = 0.7
"""Share of the other words that have a polarity; it is uniform from -1 to 1."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a set, and the laws that were tuned until its published statistics came out."""

    users: int
    texts: int
    at_least: int  # texts of every user
    inequality: float  # texts beyond that follow a Pareto law: the smaller, the more a few users write
    words_per_text: float
    longest: int
    common: int  # words that everyone writes
    per_topic: int  # words of a topic; some of them never occur
    common_share: float  # a user writes u^x of them, u uniform: the larger x, the more users hardly do
    topic_exponent: float  # of Zipf's law inside a topic
    signal: float  # standard deviation of the planted logit
    bias: float  # of the planted logit

    def scaled(self, scale: float) -> Shape:
        """The same with that share of the users, and of the words."""
        users = max(1, round(self.users * scale))
        return replace(
            self,
            users=users,
            texts=round(self.texts * users / self.users),
            common=max(1, round(self.common * scale)),
            per_topic=max(1, round(self.per_topic * scale)),
        )


SENT140 = Shape(
    users=1_473,
    texts=79_050,
    at_least=41,
    inequality=2.5,
    words_per_text=13,
    longest=30,
    common=2_000,
    per_topic=785,
    common_share=0.93,
    topic_exponent=1.2,
    signal=4.8,
    bias=0.0,
)
"""FedSubAvg, table 1: clients, samples and feature heat dispersion; FedSubAvg's draft, table 1: sparsity."""

RENTTHERUNWAY = Shape(
    users=1_395,
    texts=24_493,
    at_least=10,
    inequality=2.0,
    words_per_text=57,
    longest=377,
    common=1_500,
    per_topic=222,
    common_share=0.5,
    topic_exponent=1.4,
    signal=4.8,
    bias=1.4,
)
"""Measured on the users with at least ten reviews."""


@dataclass(frozen=True, eq=False)
class Planted:
    """Texts, and what was planted in them: the true logit of every text, whole as it was before the cut."""

    texts: text.Texts
    logit: NDArray[np.float64]
    polarity: NDArray[np.float64]
    """Per word number, on the scale of the logit; 0 for padding."""


def generate(shape: Shape, seed: int, tokens: int | None = None) -> Planted:
    """All texts, cut after `tokens` words; the draws do not depend on the cut."""
    sizes = _sizes(shape, seed)
    owner = np.repeat(np.arange(shape.users), sizes)
    lengths = _lengths(shape, seed)
    sample = np.repeat(np.arange(shape.texts), lengths)
    word = _words(shape, seed, owner[sample])

    polarity = _polarity(shape, seed)
    total = np.bincount(sample, polarity[word], minlength=shape.texts)
    unit = shape.signal / total.std()
    logit = shape.bias + unit * (total - total.mean())
    positive = _uniform(seed, "label", np.arange(shape.texts)) < 1 / (1 + np.exp(-logit))

    if tokens is not None:
        place = np.arange(len(word)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        word, lengths = word[place < tokens], np.minimum(lengths, tokens)
    numbers, words = text.number(pl.Series(word))
    texts = text.Texts(
        user=owner.astype(np.int32),
        label=positive.astype(np.int8),
        tokens=numbers,
        offsets=text.offsets(lengths),
        words=words,
    )
    return Planted(texts, logit, np.concatenate([[0.0], unit * polarity[words.to_numpy()]]))


_STREAMS = ("size", "length", "share", "common", "rank", "topic", "slot", "polar", "polarity", "label")


def _uniform(seed: int, stream: str, *key: rng.Words) -> NDArray[np.float64]:
    return rng.uniform(seed, rng.Purpose.DATA, _STREAMS.index(stream), *key)


def _integers(below: int, seed: int, stream: str, *key: rng.Words) -> NDArray[np.int64]:
    return rng.integers(below, seed, rng.Purpose.DATA, _STREAMS.index(stream), *key)


def _sizes(shape: Shape, seed: int) -> NDArray[np.int64]:
    """Texts per user: what is over the least is dealt out by a Pareto law, to the last text."""
    weight = (1 - _uniform(seed, "size", np.arange(shape.users))) ** (-1 / shape.inequality) - 1
    over = shape.texts - shape.at_least * shape.users
    dealt = np.floor(weight / weight.sum() * over).astype(np.int64)
    dealt[: over - dealt.sum()] += 1
    sizes: NDArray[np.int64] = shape.at_least + dealt
    return sizes


def _lengths(shape: Shape, seed: int) -> NDArray[np.int64]:
    """Words per text: at least one, and a Gamma law of shape 3 beyond (the sum of three exponential draws)."""
    draws = _uniform(seed, "length", np.arange(shape.texts)[:, None], np.arange(3)[None])
    beyond = -np.log(1 - draws).sum(1) * (shape.words_per_text - 0.5) / 3
    lengths: NDArray[np.int64] = np.minimum(1 + beyond.astype(np.int64), shape.longest)
    return lengths


def _words(shape: Shape, seed: int, user: NDArray[np.int64]) -> NDArray[np.int64]:
    """A word for every place in the texts, which is known by its user; common words come first, by rank."""
    place = np.arange(len(user))
    rank = np.argsort(np.argsort(_uniform(seed, "share", np.arange(shape.users))))
    share = ((rank + 0.5) / shape.users) ** shape.common_share  # in even steps, so that the heat varies less by seed
    common = _uniform(seed, "common", place) < share[user]
    drawn = _uniform(seed, "rank", place)
    topic = _integers(TOPICS, seed, "topic", user, _integers(TOPICS_PER_USER, seed, "slot", place))
    own = shape.common + _zipf(drawn, shape.per_topic, shape.topic_exponent) * TOPICS + topic
    words: NDArray[np.int64] = np.where(common, _zipf(drawn, shape.common, 1.2), own)
    return words


def _zipf(uniform: NDArray[np.float64], count: int, exponent: float) -> NDArray[np.int64]:
    """Ranks from 0 by the law of Zipf and Mandelbrot, which is flatter at the head than Zipf's."""
    mass = np.cumsum((np.arange(count) + 3.0) ** -exponent)
    ranks: NDArray[np.int64] = np.minimum(np.searchsorted(mass / mass[-1], uniform, side="right"), count - 1)
    return ranks


def _polarity(shape: Shape, seed: int) -> NDArray[np.float64]:
    """The polarity of every word that could occur."""
    word = np.arange(shape.common + shape.per_topic * TOPICS)
    polarity = np.where(_uniform(seed, "polar", word) < POLAR, 2 * _uniform(seed, "polarity", word) - 1, 0.0)
    polarity[: round(NEUTRAL * shape.common)] = 0.0
    return polarity
