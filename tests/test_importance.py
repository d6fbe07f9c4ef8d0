"""Scores of channels: closed forms, laws, and what they make of zeros (FedDD, equation 20)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedslice.slices.importance import SCORES, importance, norm_ratio

WAYS = list(SCORES)


def values(rows: list[list[float]]) -> Tensor:
    """One client: [1, channels, entries]."""
    return torch.tensor(rows, dtype=torch.float64)[None]


def score(way: str, before: Tensor, after: Tensor, sizes: Tensor | None = None) -> Tensor:
    every = torch.full((len(before),), before[0].numel()) if sizes is None else sizes
    return SCORES[way](before, after, every)


def test_closed_forms() -> None:
    """q = ΔW·(W + ΔW)/W: 1·2/1 = 2 and 2·4/2 = 4; −1·1/2 and 3·6/3."""
    before, after = values([[1.0, 2.0], [2.0, 3.0]]), values([[2.0, 4.0], [1.0, 6.0]])
    expected = {
        "importance": [math.hypot(2, 4), math.hypot(0.5, 6)],
        "norm-ratio": [math.sqrt(5) * math.sqrt(20) / math.sqrt(5), math.sqrt(10) * math.sqrt(37) / math.sqrt(13)],
        "max": [math.sqrt(20), math.sqrt(37)],
        "delta": [math.sqrt(5), math.sqrt(10)],
    }
    assert set(expected) == set(SCORES) == set(WAYS)
    for way, numbers in expected.items():
        assert score(way, before, after)[0].tolist() == pytest.approx(numbers, rel=1e-14)  # type: ignore[arg-type]


def by_hand(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Equation 20 of one client, entry by entry, with the floor at a thousandth of the layer's root mean square."""
    floor = 1e-3 * math.sqrt((before**2).mean()) or 1e-8
    out = np.zeros(len(before))
    for k, (old, new) in enumerate(zip(before, after, strict=True)):
        for w, v in zip(old, new, strict=True):
            divisor = max(abs(w), floor) * (-1 if w < 0 else 1)
            out[k] += ((v - w) * v / divisor) ** 2
    return np.sqrt(out)


layer = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**31))


def drawn(size: tuple[int, int, int], clients: int = 1) -> tuple[Tensor, Tensor]:
    """Weights, a third of them zero or tiny, and what training made of them."""
    channels, entries, seed = size
    draw = np.random.default_rng(seed)
    before = draw.normal(size=(clients, channels, entries)) * draw.choice([0.0, 1e-9, 1, 1, 1, 1], (channels, entries))
    return torch.from_numpy(before), torch.from_numpy(before + draw.normal(size=before.shape))


@given(layer)
@settings(deadline=None)
def test_importance_is_equation_20(size: tuple[int, int, int]) -> None:
    before, after = drawn(size)
    expected = by_hand(before[0].numpy(), after[0].numpy())
    np.testing.assert_allclose(score("importance", before, after)[0].numpy(), expected, rtol=1e-12)


@given(layer, st.sampled_from(WAYS), st.sampled_from([1e-6, 0.3, 7.0, 1e5]))
@settings(deadline=None)
def test_scaled_weights_have_scaled_scores(size: tuple[int, int, int], way: str, factor: float) -> None:
    """T37: I(cW, cΔ) = c·I(W, Δ), the floor included; so units of the weights choose nothing."""
    before, after = drawn(size)
    before[0, 0, 0] = 0.5  # a layer of zeros has a floor of its own
    found = score(way, factor * before, factor * after)
    torch.testing.assert_close(found, factor * score(way, before, after), rtol=1e-9, atol=0.0)


@given(layer, st.sampled_from(WAYS))
@settings(deadline=None)
def test_scores_are_finite_and_not_negative(size: tuple[int, int, int], way: str) -> None:
    """T37: with zeros among the weights, in both precisions."""
    before, after = drawn(size)
    for kind in (torch.float32, torch.float64):
        found = score(way, before.to(kind), after.to(kind))
        assert found.dtype == kind
        assert bool((found.isfinite() & (found >= 0)).all())


@pytest.mark.parametrize("way", WAYS)
def test_what_has_not_moved_has_nothing_to_tell_but_its_size(way: str) -> None:
    before = values([[0.0, 1.0], [-2.0, 0.0]])
    assert score(way, before, before)[0].tolist() == ([1.0, 2.0] if way == "max" else [0.0, 0.0])


def test_a_layer_of_zeros_takes_a_floor_of_its_own() -> None:
    """As biases are at first: I = Δ²/1e-8, finite, and larger changes count for more."""
    before, after = values([[0.0], [0.0], [0.0]]), values([[1e-3], [2e-3], [0.0]])
    assert score("importance", before, after)[0].tolist() == pytest.approx([1e2, 4e2, 0.0], rel=1e-12)
    assert score("norm-ratio", before, after)[0].tolist() == pytest.approx([1e2, 4e2, 0.0], rel=1e-12)
    single = score("importance", before.float(), after.float())
    assert bool(single.isfinite().all())


def test_a_weight_below_the_floor_counts_as_large_as_the_floor_with_its_own_sign() -> None:
    """W = −1e-9 beside W = 1: RMS² = (1 + 1e-18)/2, the floor is 1e-3·RMS; zero counts as positive."""
    floor = 1e-3 * math.sqrt(0.5)
    for tiny, sign in ((-1e-9, -1.0), (1e-9, 1.0), (0.0, 1.0), (-0.0, 1.0)):
        before, after = values([[1.0], [tiny]]), values([[1.0], [0.2]])
        q = (0.2 - tiny) * 0.2 / (sign * floor)
        assert importance(before, after, torch.tensor([2]))[0].tolist() == pytest.approx([0.0, abs(q)], rel=1e-6)


def test_the_ratio_of_norms_divides_by_the_floor_where_a_channel_is_zero() -> None:
    before, after = values([[0.0, 0.0], [3.0, 4.0]]), values([[1.0, 0.0], [3.0, 4.0]])
    floor = 1e-3 * math.sqrt(25 / 4)
    assert norm_ratio(before, after, torch.tensor([4]))[0].tolist() == pytest.approx([1 / floor, 0.0])


@given(layer, st.sampled_from(WAYS), st.integers(0, 3), st.integers(0, 3))
@settings(deadline=None)
def test_a_padded_client_scores_as_alone(size: tuple[int, int, int], way: str, more: int, wider: int) -> None:
    """Beside a wider client its values end in zeros, which count neither in a norm nor in the root mean square."""
    channels, entries, seed = size
    before, after = drawn(size)
    wide, wide_after = drawn((channels + more, entries + wider, seed + 1))
    both = [
        torch.cat([big, torch.nn.functional.pad(one, (0, wider, 0, more))])
        for big, one in ((wide, before), (wide_after, after))
    ]
    found = score(way, *both, torch.tensor([wide[0].numel(), before[0].numel()]))
    torch.testing.assert_close(found[:1], score(way, wide, wide_after), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(found[1:, :channels], score(way, before, after), rtol=1e-12, atol=0.0)
    assert not found[1, channels:].any()
