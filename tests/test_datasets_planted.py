"""Generated texts: their statistics, and what is planted in them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedslice.datasets import planted, text


def chance(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))


def loss(true: np.ndarray, said: np.ndarray) -> float:
    """Expected cross-entropy of a logit where the true one is known."""
    p = chance(true)
    return float(np.mean(p * np.logaddexp(0, -said) + (1 - p) * np.logaddexp(0, said)))


def heat_of(texts: text.Texts) -> np.ndarray:
    owner = np.repeat(texts.user, np.diff(texts.offsets)).astype(np.int64)
    rows = len(texts.words) + 1
    return np.bincount(np.unique(owner * rows + texts.tokens) % rows, minlength=rows)


def part(found: planted.Planted, chosen: np.ndarray) -> np.ndarray:
    """Per text the sum of the polarities of the chosen words."""
    sample = np.repeat(np.arange(len(found.logit)), np.diff(found.texts.offsets))
    return np.bincount(sample, (found.polarity * chosen)[found.texts.tokens], minlength=len(found.logit))


@pytest.fixture(scope="module")
def tweets() -> planted.Planted:
    return planted.generate(planted.SENT140, seed=0)


def test_generated_tweets_have_the_published_statistics(tweets: planted.Planted) -> None:
    texts = tweets.texts
    sizes = np.bincount(texts.user)
    lengths = np.diff(texts.offsets)
    assert (texts.users, len(texts.label), sizes.sum()) == (1_473, 79_050, 79_050)
    assert sizes.min() == 41
    assert sizes.max() > 5 * np.median(sizes)
    assert (lengths.min(), lengths.max()) == (1, 30)
    assert lengths.mean() == pytest.approx(13, abs=0.3)
    assert len(texts.words) == pytest.approx(37_000, rel=0.01)
    assert texts.words.n_unique() == len(texts.words)
    assert np.array_equal(np.unique(texts.tokens), np.arange(1, len(texts.words) + 1))
    counts = np.bincount(texts.tokens)[1:]
    assert (np.diff(counts) <= 0).all()
    heat = heat_of(texts)[1:]
    assert 1_440 < heat.max() < 1_473
    assert (heat < 20).mean() > 0.8


def test_the_best_loss_on_generated_tweets_is_below_the_target_and_needs_cold_words(tweets: planted.Planted) -> None:
    best = np.maximum(chance(tweets.logit), 1 - chance(tweets.logit)).mean()
    assert loss(tweets.logit, tweets.logit) == pytest.approx(0.285, abs=0.01)
    assert best == pytest.approx(0.87, abs=0.01)
    said = (tweets.logit > 0) == (tweets.texts.label == 1)
    assert said.mean() == pytest.approx(best, abs=4 * np.sqrt(best * (1 - best) / len(said)))
    cold = heat_of(tweets.texts) < 20
    power = np.bincount(tweets.texts.tokens, minlength=len(cold)) * tweets.polarity**2
    assert power[cold].sum() / power.sum() == pytest.approx(0.25, abs=0.04)
    hot = part(tweets, ~cold)
    unknown = part(replace(tweets, polarity=tweets.polarity**2), cold)
    shrunk = (hot - hot.mean()) / np.sqrt(1 + np.pi / 8 * unknown)  # the best guess, by MacKay's approximation
    assert loss(tweets.logit, shrunk) > 0.385


def test_the_planted_logit_is_the_sum_of_polarities(tweets: planted.Planted) -> None:
    total = part(tweets, np.ones_like(tweets.polarity))
    np.testing.assert_allclose(tweets.logit, total - total.mean(), atol=1e-9)
    assert tweets.logit.std() == pytest.approx(planted.SENT140.signal)
    assert tweets.polarity[0] == 0


def test_users_write_about_different_things(tweets: planted.Planted) -> None:
    texts = tweets.texts
    owner = np.repeat(texts.user, np.diff(texts.offsets))
    sets = [set(texts.tokens[owner == user].tolist()) for user in range(20)]
    shared = [len(a & b) / min(len(a), len(b)) for i, a in enumerate(sets) for b in sets[:i]]
    assert np.mean(shared) < 0.5


def test_generated_reviews_have_the_sizes_of_the_real_ones() -> None:
    texts = planted.generate(planted.RENTTHERUNWAY, seed=0).texts
    assert (texts.users, len(texts.label), np.bincount(texts.user).min()) == (1_395, 24_493, 10)
    assert len(texts.words) == pytest.approx(12_400, rel=0.02)
    assert np.diff(texts.offsets).mean() == pytest.approx(57, abs=1)
    assert np.median(np.diff(texts.offsets)) == pytest.approx(51, abs=1)
    assert texts.label.mean() == pytest.approx(0.637, abs=0.01)
    assert heat_of(texts).max() in range(1_390, 1_396)


SMALL = planted.SENT140.scaled(0.02)


def same(a: text.Texts, b: text.Texts) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in text.Texts.__dataclass_fields__)


def test_a_seed_gives_the_same_texts_and_another_seed_others() -> None:
    once, again, other = (planted.generate(SMALL, seed) for seed in (3, 3, 4))
    assert same(once.texts, again.texts)
    assert np.array_equal(once.logit, again.logit)
    assert not any(
        np.array_equal(getattr(once.texts, n), getattr(other.texts, n)) for n in ("user", "label", "offsets")
    )
    assert not np.array_equal(once.texts.tokens, other.texts.tokens)


def test_the_cut_changes_nothing_but_what_it_cuts() -> None:
    whole, cut = planted.generate(SMALL, 0), planted.generate(SMALL, 0, tokens=5)
    assert np.array_equal(whole.texts.label, cut.texts.label)
    assert np.array_equal(whole.logit, cut.logit)
    ends = list(zip(whole.texts.offsets, cut.texts.offsets, strict=True))
    for (start, begin), (_, end) in pairwise(ends):
        kept = [cut.texts.words[int(n) - 1] for n in cut.texts.tokens[begin:end]]
        assert kept == [whole.texts.words[int(n) - 1] for n in whole.texts.tokens[start : start + len(kept)]]
    assert np.array_equal(np.diff(cut.texts.offsets), np.minimum(np.diff(whole.texts.offsets), 5))


@given(st.floats(1e-4, 1), st.sampled_from([planted.SENT140, planted.RENTTHERUNWAY]))
def test_a_scale_shrinks_users_texts_and_words(scale: float, shape: planted.Shape) -> None:
    small = shape.scaled(scale)
    assert small.users == max(1, round(scale * shape.users))
    assert small.texts / small.users == pytest.approx(shape.texts / shape.users, abs=0.5)
    assert small.texts >= small.at_least * small.users
    assert small.common == max(1, round(scale * shape.common))


@pytest.mark.parametrize("scale", [1e-4, 0.001, 0.01])
def test_the_smallest_sets_are_sound(scale: float) -> None:
    texts = planted.generate(planted.SENT140.scaled(scale), 0).texts
    assert np.bincount(texts.user).min() >= 41
    assert set(texts.label.tolist()) == {0, 1}
