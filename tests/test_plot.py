import math
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedslice.plot import AROUND, Curve, Frame, chart, dots, plain, ticks

VALUES = st.floats(-1e300, 1e300)
SIZES = st.integers(1, 12)


def framed(*curves: Curve, right: int) -> Frame:
    frame = Frame.around(curves, right)
    assert frame is not None
    return frame


def test_a_straight_line_lights_the_dots_of_a_straight_line() -> None:
    rising = Curve([0, 7], [0.0, 1.0], "")
    frame = framed(rising, right=7)
    assert np.array_equal(dots(rising, frame, 4, 2), np.eye(8, dtype=bool)[::-1])  # 4 by 2 characters: 8 by 8 dots
    falling = Curve([0, 3, 7], [1.0, 4 / 7, 0.0], "")
    assert np.array_equal(dots(falling, frame, 4, 2), np.eye(8, dtype=bool))
    level = Curve([0, 7], [1.0, 1.0], "")
    assert np.argwhere(dots(level, frame, 4, 2)).tolist() == [[0, column] for column in range(8)]


def test_a_steep_line_has_no_holes() -> None:
    lit = dots(Curve([0, 1], [0.0, 1.0], ""), Frame(1, 0.0, 1.0), 1, 5)
    assert lit.sum(axis=1).tolist() == [1] * 20
    assert lit[:9, 1].all()
    assert lit[11:, 0].all()


def test_a_missing_value_is_a_gap_and_a_lone_value_a_dot() -> None:
    curve = Curve([0, 1, 2, 3, 4, 5, 6, 7], [0.0, 0.0, None, 1.0, math.nan, 0.0, 0.0, 0.0], "")
    lit = dots(curve, framed(curve, right=7), 4, 1)
    assert np.argwhere(lit).tolist() == [[0, 3], [3, 0], [3, 1], [3, 5], [3, 6], [3, 7]]


def test_points_outside_the_frame_light_nothing() -> None:
    lit = dots(Curve([-1, 0, 8, 4, 4], [0.5, 0.5, 0.5, 1.5, -0.1], ""), Frame(7, 0.0, 1.0), 4, 1)
    assert np.argwhere(lit).tolist() == [[2, 0]]


@given(st.lists(st.one_of(st.none(), VALUES), min_size=1, max_size=20), SIZES, SIZES)
def test_dots_stay_inside_and_extremes_touch_the_first_and_last_row(
    values: list[float | None], width: int, height: int
) -> None:
    curve = Curve(range(len(values)), values, "")
    frame = Frame.around([curve], max(1, len(values) - 1))
    known = [value for value in values if value is not None]
    if frame is None:
        assert not known
        return
    lit = dots(curve, frame, width, height)
    assert lit.shape == (4 * height, 2 * width)
    column = [round(k / frame.right * (2 * width - 1)) for k in range(len(values))]
    if (frame.low, frame.high) == (min(known), max(known)):
        assert lit[0, column[values.index(max(known))]]
        assert lit[-1, column[values.index(min(known))]]
    else:  # one value, or as good as one
        assert max(known) - min(known) <= 2e-9 * max(map(abs, known)) + 1e-300
        assert frame.low < min(known) <= max(known) < frame.high
        assert set(np.argwhere(lit)[:, 0]) <= {2 * height - 1, 2 * height}


@given(VALUES, VALUES)
def test_an_axis_has_three_to_five_round_numbers(one: float, other: float) -> None:
    frame = framed(Curve([0, 1], [one, other], ""), right=1)
    found = ticks(frame.low, frame.high)
    assert 3 <= len(found) <= 5
    assert Decimal(repr(frame.low)) <= found[0]
    assert found[-1] <= Decimal(repr(frame.high))
    step = found[1] - found[0]
    assert {after - before for before, after in pairwise(found)} == {step}
    assert all(tick % step == 0 for tick in found)
    assert step.normalize().as_tuple().digits in {(1,), (2,), (2, 5), (5,)}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.2, 0.6, ["0.2", "0.3", "0.4", "0.5", "0.6"]),
        (0.0, 1.0, ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        (-3.0, 4_100.0, ["0", "1,000", "2,000", "3,000", "4,000"]),
        (1e-9, 3e-9, ["1e-09", "1.5e-09", "2e-09", "2.5e-09", "3e-09"]),
    ],
)
def test_numbers_at_an_axis_read_well(low: float, high: float, expected: list[str]) -> None:
    assert [plain(tick) for tick in ticks(low, high)] == expected


def test_a_chart_has_its_size_its_axes_and_its_colours() -> None:
    curves = [Curve([0, 300], [0.0, 1.0], "cyan"), Curve([0, 300], [1.0, 0.0], "magenta")]
    text = chart(curves, framed(*curves, right=300), "auc by round", 30, 5 + AROUND)
    lines = text.plain.split("\n")
    assert lines[0] == "auc by round"
    assert {len(line) for line in lines[1:]} == {30}
    assert [line[:6] for line in lines[1:6]] == ["1.00 ┤", "0.75 ┤", "0.50 ┤", "0.25 ┤", "0.00 ┤"]
    assert lines[6] == "     └┬" + "─" * 7 + "┬" + "─" * 6 + "┬" + "─" * 7 + "┬"
    assert lines[7].split() == ["0", "100", "200", "300"]
    assert lines[1][6] == "⠉"  # the upper two dots, where a line begins to fall by 19 dots in 47
    assert lines[5][6] == "⣀"  # the lower two, where one begins to rise
    colours = {span.style for span in text.spans}
    assert {"cyan", "magenta"} <= colours


@given(st.integers(1, 10**6), st.integers(30, 100))
def test_the_axis_below_begins_with_0_and_ends_with_the_rounds(right: int, width: int) -> None:
    curve = Curve([0], [1.0], "")
    lines = chart([curve], framed(curve, right=right), "", width, 1 + AROUND).plain.split("\n")
    numbers = [int(word.replace(",", "")) for word in lines[-1].split()]
    assert numbers[0] == 0
    assert numbers[-1] == right
    assert numbers == sorted(set(numbers))
    assert lines[-1].endswith(f"{right:,}")
    assert lines[-2].count("┬") == len(numbers)
