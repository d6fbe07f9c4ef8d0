"""Curves as text: lines of braille dots, two across and four down in a character, with round numbers at the axes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

# Petroff's ten colours, made to be told apart by colour-blind readers too; on a dark page the darkest are lighter.
LIGHT = ("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd")
DARK = ("#3f90da", "#ffa90e", "#d62a08", "#94a4a2", "#9440cc", "#b27563", "#f07010", "#b9ac70", "#7b7f8c", "#92dadd")

AROUND = 3  # lines of a chart besides its canvas: title, axis, numbers of the axis
_ACROSS, _DOWN = 2, 4  # dots of a character
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # where Unicode puts them, from U+2800 on
_STEPS = (Decimal(1), Decimal(2), Decimal("2.5"), Decimal(5))
_FLAT = 1e-9  # a range this small beside its values is drawn as one value


@dataclass(frozen=True)
class Curve:
    """Points in the order in which a line joins them; where a value is missing the line has a gap."""

    x: Sequence[float]
    y: Sequence[float | None]
    style: str


@dataclass(frozen=True)
class Frame:
    """The range of a canvas: 0 to ``right``, ``low`` to ``high``."""

    right: int
    low: float
    high: float

    @classmethod
    def around(cls, curves: Sequence[Curve], right: int) -> Frame | None:
        """As high and low as the values, so that they use every row; one value alone lies in the middle."""
        values = [value for curve in curves for value in curve.y if value is not None and math.isfinite(value)]
        if not values:
            return None
        low, high = float(min(values)), float(max(values))
        largest = max(abs(low), abs(high))
        if high / 2 - low / 2 <= _FLAT * largest or largest < 1e-300:
            pad = 0.1 * largest if largest >= 1e-300 else 1.0
            low, high = max(low - pad, -sys.float_info.max), min(high + pad, sys.float_info.max)
        return cls(right, low, high)

    def down(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distance from the top, 0 to 1. It is computed in halves, as the whole range may exceed a float."""
        return (self.high / 2 - y / 2) / (self.high / 2 - self.low / 2)


def dots(curve: Curve, frame: Frame, width: int, height: int) -> NDArray[np.bool_]:
    """The dots that a curve lights on a canvas of so many characters; what lies outside the frame lights none."""
    lit = np.zeros((_DOWN * height, _ACROSS * width), dtype=bool)
    x = np.asarray(curve.x, dtype=float) / frame.right
    y = frame.down(np.array([math.nan if value is None else value for value in curve.y], dtype=float))
    inside = (x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)
    column = np.rint(np.where(inside, x, 0) * (lit.shape[1] - 1)).astype(int)
    row = np.rint(np.where(inside, y, 0) * (lit.shape[0] - 1)).astype(int)
    lit[row[inside], column[inside]] = True
    across, down = np.diff(column), np.diff(row)
    steps = np.where(inside[1:] & inside[:-1], np.maximum(abs(across), abs(down)), 0)
    piece = np.repeat(np.arange(len(steps)), steps)  # one entry per dot of a piece between two points
    share = (np.arange(len(piece)) - (np.cumsum(steps) - steps)[piece]) / steps[piece]
    rows = np.rint(row[piece] + share * down[piece]).astype(int)
    lit[rows, np.rint(column[piece] + share * across[piece]).astype(int)] = True
    return lit


def ticks(low: float, high: float) -> list[Decimal]:
    """Three to five round numbers from low to high.

    Steps of 1, 2, 2.5 and 5 suffice: where one gives six numbers or more, every second of them is three or more, and
    going from 2 to 2.5 leaves four. Decimal, so that a bound which is itself round is not lost to rounding.

    >>> [str(tick) for tick in ticks(0.483, 0.744)]
    ['0.50', '0.55', '0.60', '0.65', '0.70']
    """
    least, most = Decimal(repr(low)), Decimal(repr(high))
    power = (most - least).adjusted() - 1
    while True:
        for digits in _STEPS:
            step = digits.scaleb(power)
            first, last = math.ceil(least / step), math.floor(most / step)
            if last - first < 5:
                return [number * step for number in range(first, last + 1)]
        power += 1


def plain(number: Decimal) -> str:
    """A round number with the digits of its step, unless these are many.

    >>> plain(Decimal("0.50")), plain(Decimal("2E+3")), plain(Decimal("0.000002")), plain(Decimal("5E+7"))
    ('0.50', '2,000', '2e-06', '5e+07')
    """
    exponent = number.as_tuple().exponent
    many = isinstance(exponent, int) and exponent < -5
    return f"{float(number):g}" if many or abs(number) >= 10**6 else f"{number:,f}"


def chart(
    curves: Sequence[Curve],
    frame: Frame,
    title: str,
    width: int,
    height: int,
    label: Callable[[Decimal], str] = plain,
) -> Text:
    """A title, the curves with both axes, and their numbers; where curves cross, the later one lends its colour."""
    rows = height - AROUND
    marks: dict[int, str] = {}
    for tick in ticks(frame.low, frame.high):
        marks.setdefault(int(np.rint(frame.down(np.array(float(tick))) * (_DOWN * rows - 1))) // _DOWN, label(tick))
    margin = max(map(len, marks.values()))
    columns = width - margin - 2
    axis, numbers = _below(frame.right, columns)
    out = [Text(title, style="bold")]
    for row, cells in enumerate(_cells(curves, frame, columns, rows)):
        out.append(Text(f"{marks.get(row, ''):>{margin}} {'┤' if row in marks else '│'}", style="dim") + cells)
    out.append(Text(f"{'':{margin}} └{axis}", style="dim"))
    out.append(Text(f"{'':{margin}}  {numbers}", style="dim"))
    return Text("\n", no_wrap=True, overflow="crop").join(out)


def _cells(curves: Sequence[Curve], frame: Frame, width: int, height: int) -> list[Text]:
    """The canvas, line by line."""
    codes, owner = np.zeros((height, width), dtype=int), np.full((height, width), -1)
    for number, curve in enumerate(curves):
        parts = dots(curve, frame, width, height).reshape(height, _DOWN, width, _ACROSS)
        code = np.einsum("hdwa,da->hw", parts, _BITS)
        codes |= code
        owner[code > 0] = number
    lines = []
    for row in range(height):
        line = Text()
        for code, number in zip(codes[row].tolist(), owner[row].tolist(), strict=True):
            line.append(chr(0x2800 + code) if code else " ", curves[number].style if code else None)
        lines.append(line)
    return lines


def _below(right: int, columns: int) -> tuple[str, str]:
    """The axis from 0 to ``right`` with its marks, and the numbers below it; both ends first, others if they fit."""
    axis, numbers = ["─"] * columns, [" "] * columns
    for tick in [0, right, *(int(tick) for tick in ticks(0.0, right) if tick == tick.to_integral_value())]:
        text = f"{tick:,}"
        column = round(tick / right * (columns - 1))
        begin = max(0, min(column - len(text) // 2, columns - len(text)))
        if set(numbers[max(0, begin - 2) : begin + len(text) + 2]) == {" "}:
            numbers[begin : begin + len(text)] = text
            axis[column] = "┬"
    return "".join(axis), "".join(numbers)
