"""Curves of a method: its seeds, aligned by round, as a mean and a band, in no more points than an eye can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedslice.report.gather import Group, Method, Row, number
from fedslice.schema import Column

Data = list[float | str | None]
Columns = dict[str, Data]

POINTS = 300  # of a curve: about one for two pixels
_FEWEST = 60
_ALL = 3000  # of a chart with many curves, which would else be slow to draw
_DIGITS = 7


AXES = ("round", "up_bytes", "clock")  # what curves can be drawn over


@dataclass(frozen=True)
class Band:
    """A number over the rounds of a method: mean, smallest and largest over the seeds that have it."""

    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]
    seeds: list[int]


@dataclass(frozen=True)
class Curves:
    """All curves of a task as columns of one table; the names of columns follow the places of axes and metrics."""

    axes: list[Column]
    metrics: list[Column]
    methods: list[str]
    columns: Columns


def curves(group: Group) -> Curves:
    """Return the curves of all evaluated methods. An axis along which no method moves is left out."""
    metrics = group.metrics
    columns: Columns = {}
    limit = min(POINTS, max(_FEWEST, _ALL // max(1, len(group.begun))))
    for method in group.begun:
        for name, column in _thinned(_columns(method, metrics), group, limit).items():
            columns.setdefault(name, []).extend(column)
    axes = [group.column(axis) for axis in AXES if any(value is not None for value in columns.get(axis, []))]
    return Curves(axes, [group.column(name) for name in metrics], [method.name for method in group.begun], columns)


def align(method: Method, name: str) -> tuple[list[int], Band]:
    """The rounds that any seed has, and a column of the log there."""
    found: dict[int, list[float]] = {row["round"]: [] for run in method.begun for row in run.rows}
    for run in method.begun:
        rows: dict[int, Row] = {row["round"]: row for row in run.rows}
        for at, row in rows.items():
            value = number(row, name)
            if value is not None:
                found[at].append(value)
    rounds = sorted(found)
    values = [found[at] for at in rounds]
    means, lows, highs = ([of(v) if v else None for v in values] for of in (fmean, min, max))
    return rounds, Band(means, lows, highs, list(map(len, values)))


def coinciding(found: Curves) -> list[list[str]]:
    """Methods whose curves are the same in every point of every metric, so that one hides the others."""
    points: dict[str, list[tuple[float | str | None, ...]]] = {method: [] for method in found.methods}
    names = ["round", *(f"y{place}" for place in range(len(found.metrics)))]
    for method, *values in zip(found.columns["method"], *(found.columns[name] for name in names), strict=True):
        points[str(method)].append(tuple(values))
    same: dict[tuple[tuple[float | str | None, ...], ...], list[str]] = {}
    for method, curve in points.items():
        same.setdefault(tuple(curve), []).append(method)
    return [methods for methods in same.values() if len(methods) > 1]


def kept(length: int, limit: int, also: Sequence[int] = ()) -> list[int]:
    """About ``limit`` of ``length`` places, evenly, with both ends and those that must not be lost."""
    if length <= limit:
        return list(range(length))
    return sorted({place * (length - 1) // (limit - 1) for place in range(limit)} | set(also))


def best(values: Sequence[float | None], *, lower: bool) -> int | None:
    """Return the best value of a metric, which is its lowest or its highest."""
    there = [place for place, value in enumerate(values) if value is not None]
    sign = 1 if lower else -1
    return min(there, key=lambda place: sign * (values[place] or 0.0), default=None)


def _columns(method: Method, metrics: Sequence[str]) -> Columns:
    rounds, _ = align(method, "round")
    columns: Columns = {"method": [method.name] * len(rounds), "round": list(map(float, rounds))}
    for axis in AXES[1:]:
        mean = align(method, axis)[1].mean
        columns[axis] = [*mean] if any(mean) else [None] * len(rounds)  # who sends nothing has no place there
    for place, metric in enumerate(metrics):
        band = align(method, metric)[1]
        columns |= {f"y{place}": [*band.mean], f"y{place}_seeds": [*map(float, band.seeds)]}
        for side, values in (("low", band.low), ("high", band.high)):
            columns[f"y{place}_{side}"] = [v if n > 1 else None for v, n in zip(values, band.seeds, strict=True)]
    return columns


def _thinned(columns: Columns, group: Group, limit: int) -> Columns:
    peaks = [
        best(_numbers(columns[f"y{place}"]), lower=bool(group.column(metric).lower_is_better))
        for place, metric in enumerate(group.metrics)
    ]
    places = kept(len(columns["round"]), limit, [place for place in peaks if place is not None])
    return {name: [_rounded(column[place]) for place in places] for name, column in columns.items()}


def _numbers(column: Data) -> list[float | None]:
    return [value if isinstance(value, float | int) else None for value in column]


def _rounded(value: float | str | None) -> float | str | None:
    """Seven digits are more than a chart can show, and halve the page."""
    if not isinstance(value, float):
        return value
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
