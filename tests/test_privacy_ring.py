"""Laws of rings and of rounding into them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedslice.core.errors import Refused, UserError
from fedslice.privacy.quantize import Quantizer
from fedslice.privacy.ring import Ring


@given(st.integers(1, 64), st.integers(0, 200), st.integers(0, 2**32))
@settings(deadline=None)
def test_elements_survive_packing_in_exactly_their_bits(bits: int, count: int, seed: int) -> None:
    ring = Ring(bits)
    values = ring.reduce(np.random.default_rng(seed).integers(0, 2**63, count, np.uint64).astype(ring.dtype))
    data = ring.pack(values)
    assert len(data) == ring.size(count) == -(-count * bits // 8)
    back = ring.unpack(data, count)
    assert back.dtype == ring.dtype
    np.testing.assert_array_equal(back, values)
    whole = sum(int(value) << (bits * place) for place, value in enumerate(values))
    assert int.from_bytes(data, "little") == whole  # one long number, the first element lowest


def test_bytes_that_packing_cannot_make_are_refused() -> None:
    ring = Ring(5)
    data = ring.pack(np.array([1, 2, 31], np.uint8))
    with pytest.raises(Refused, match="has 1 bytes for 3 numbers of 5 bits, expected 2"):
        ring.unpack(data[:1], 3)
    with pytest.raises(Refused, match="not filled up with zeros"):
        ring.unpack(bytes([data[0], data[1] | 128]), 3)


@given(st.integers(1, 64), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_sums_that_wrap_around_in_the_type_are_sums_in_the_ring(bits: int, values: list[int]) -> None:
    ring = Ring(bits)
    elements = [ring.reduce(np.array([value], np.uint64)) for value in values]
    total = np.add.reduce(elements, dtype=ring.dtype)
    assert int(ring.reduce(total)[0]) == sum(values) % 2**bits
    signed = int(ring.signed(ring.reduce(np.array([values[0]], np.uint64)))[0])
    assert (signed - values[0]) % 2**bits == 0
    assert -(2 ** (bits - 1)) <= signed < 2 ** (bits - 1)


@pytest.mark.parametrize("bits", [0, 65, -1])
def test_rings_that_no_type_holds_are_refused(bits: int) -> None:
    with pytest.raises(UserError, match=f"a ring of {bits} bits"):
        Ring(bits)


# --- rounding -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(2, 32), st.booleans())
def test_the_largest_sum_of_a_cohort_fits_and_the_ring_is_the_smallest(size: int, bits: int, low: bool) -> None:
    quantizer = Quantizer(0.5, size, bits, 7.0)
    values = np.full(3, -9.0 if low else 9.0)
    one, clipped = quantizer.quantize(values, 100.0, (1, 2, 3, 4))
    assert clipped == 3
    total = quantizer.ring.reduce((one.astype(np.uint64) * np.uint64(size)).astype(np.uint64))
    np.testing.assert_allclose(quantizer.value(total), np.sign(values) * size * 0.5 * 7.0, rtol=1e-12)
    assert size * quantizer.levels >= 2 ** (quantizer.ring.bits - 2)  # a bit less would wrap around


@pytest.mark.parametrize("weight", [1.0, 2.5, 4.0])
def test_rounding_is_unbiased_inside_its_range_and_its_variance_is_bounded(weight: float) -> None:
    quantizer = Quantizer(1.0, 1, 4, most_weight=4.0)
    values = np.linspace(-1, 1, 41)
    draws = 10_000
    many = np.stack(
        [quantizer.value(quantizer.quantize(values, weight, (5, round, 0, 0))[0]) for round in range(draws)]
    )
    fraction = values * weight / quantizer.step % 1
    variance = fraction * (1 - fraction) * quantizer.step**2
    off = np.abs(many.mean(0) - weight * values)
    assert (off <= 5 * np.sqrt(variance / draws) + 1e-9).all()
    np.testing.assert_allclose(many.var(0), variance, atol=5 * quantizer.variance / np.sqrt(draws) + 1e-12)
    assert variance.max() <= quantizer.variance


def test_a_weighted_sum_comes_back_within_a_step_per_client() -> None:
    draw = np.random.default_rng(1)
    weights, values = draw.integers(1, 50, 30), draw.uniform(-0.1, 0.1, (30, 1000))
    quantizer = Quantizer(0.1, 30, 16, most_weight=50)
    total = quantizer.ring.zeros(1000)
    for client, (weight, own) in enumerate(zip(weights, values, strict=True)):
        elements, clipped = quantizer.quantize(own, weight, (0, 7, client, 0))
        assert clipped == 0
        total += elements
    wanted = weights @ values
    back = quantizer.value(quantizer.ring.reduce(total))
    assert np.abs(back - wanted).max() < 30 * quantizer.step
    assert (back - wanted).std() < 1.1 * np.sqrt(30 * quantizer.variance)


def test_draws_depend_on_the_key_and_the_place_and_on_nothing_else() -> None:
    quantizer = Quantizer(1.0, 3, 3)
    values = np.full(40_000, 0.1)
    whole, _ = quantizer.quantize(values, 1.0, (1, 2, 3, 4))
    places = np.array([39_999, 5, 20_000])
    np.testing.assert_array_equal(quantizer.quantize(values[places], 1.0, (1, 2, 3, 4), places)[0], whole[places])
    for key in ((2, 2, 3, 4), (1, 3, 3, 4), (1, 2, 4, 4), (1, 2, 3, 5)):
        assert (quantizer.quantize(values, 1.0, key)[0] != whole).mean() > 0.3


def test_zeros_stay_and_clipped_values_are_counted() -> None:
    elements, clipped = Quantizer(0.5, 2, 8).quantize(np.array([0.0, -0.0, 0.5, 0.51, -7.0]), 1.0, (0, 0, 0, 0))
    assert elements[:2].tolist() == [0, 0]
    assert clipped == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_without_a_size_cannot_be_rounded(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Quantizer(1.0, 2).quantize(np.array([bad]), 1.0, (0, 0, 0, 0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": 0.0}, "clip = 0.0 is no magnitude"),
        ({"clip": 1.0, "bits": 1}, "bits = 1 for a value"),
        ({"clip": 1.0, "most_weight": float("nan")}, "most_weight = nan"),
    ],
)
def test_impossible_settings_of_rounding_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Quantizer(**{"size": 3, **settings})  # type: ignore[arg-type]
