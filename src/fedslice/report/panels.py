"""Panels of the runs to show: equal ones once, those of different methods beside each other; and their data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Literal

from fedslice.panel import LARGEST, Cell, Panel
from fedslice.report.curves import Columns
from fedslice.report.gather import Group, Method
from fedslice.report.naming import text


@dataclass(frozen=True)
class Shown:
    """A panel, and whose it is if it is not everybody's."""

    panel: Panel
    label: str


def panels(group: Group) -> list[list[Shown]]:
    """Panels that belong side by side, by title; of a method, the lowest seed's."""
    kinds: dict[tuple[str, int], dict[str, tuple[Panel, list[str]]]] = {}
    for method in group.methods:
        for key, panel in _own(method).items():
            same = kinds.setdefault(key, {}).setdefault(panel.model_dump_json(), (panel, []))
            same[1].append(_label(method, key, panel))
    return [[_shown(panel, whose, group) for panel, whose in kind.values()] for kind in kinds.values()]


def numeric(panel: Panel, axis: Literal["x", "y"]) -> bool:
    """Is this an axis of numbers, or of words?"""
    name = panel.x if axis == "x" else panel.y
    return not any(isinstance(row[name], str) for row in panel.rows)


def logarithmic(panel: Panel, axis: Literal["x", "y"]) -> bool:
    """Is this an axis of powers of ten?"""
    return axis in panel.log and numeric(panel, axis)


def floor(panel: Panel) -> float:
    """The base of the bars of a logarithmic axis: below the smallest of them, so that it is visible."""
    return min((float(y) for y in columns(panel)["y"] if y is not None), default=1.0) / 2


def columns(panel: Panel) -> Columns:
    """The drawn columns by position, as a column may have any name, without rows that have no position."""
    rows = [row for row in panel.rows if all(_drawable(panel, axis, row) for axis in ("x", "y"))]
    out: Columns = {"x": [row[panel.x] for row in rows], "y": [row[panel.y] for row in rows]}
    if panel.color:
        out["color"] = [text(row[panel.color]) for row in rows]
    if panel.mark == "bar" and numeric(panel, "x") and numeric(panel, "y"):
        out |= _edges([float(x or 0) for x in out["x"]], logarithmic(panel, "x"))
    return out


def omitted(panel: Panel) -> int:
    """The number of points that cannot be shown, most of them on a logarithmic axis; a bar of height zero is none."""
    if panel.mark == "bar" and panel.log == ["y"]:
        return 0
    full = sum(row[panel.x] is not None and row[panel.y] is not None for row in panel.rows)
    return full - len(columns(panel)["x"])


def _drawable(panel: Panel, axis: Literal["x", "y"], row: dict[str, Cell]) -> bool:
    cell = row[panel.x if axis == "x" else panel.y]
    if cell is None or isinstance(cell, str):
        return cell is not None
    return abs(cell) <= LARGEST and (cell >= 1 / LARGEST or not logarithmic(panel, axis))


def _edges(middles: list[float], powers: bool) -> Columns:
    """Bars as wide as the smallest distance between two of them, and none so wide that a number cannot say it."""
    ordered = sorted(set(middles))
    if powers:
        half = exp(min((log(b) - log(a) for a, b in pairwise(ordered)), default=log(2)) / 2)
        return {
            "x_low": [max(x / half, 1 / LARGEST) for x in middles],
            "x_high": [min(x * half, LARGEST) for x in middles],
        }
    width = min((b / 2 - a / 2 for a, b in pairwise(ordered)), default=0.5)
    return {"x_low": [x - width for x in middles], "x_high": [x + width for x in middles]}


def _shown(panel: Panel, whose: list[str], group: Group) -> Shown:
    return Shown(panel, "" if whose == [method.name for method in group.methods] else "; ".join(whose))


def _label(method: Method, key: tuple[str, int], panel: Panel) -> str:
    others = [_numbered(run.panels).get(key, panel) for run in method.runs]
    seed = next(run.seed for run in method.runs if key in _numbered(run.panels))
    return method.name if all(other == panel for other in others) else f"{method.name}, seed {seed}"


def _own(method: Method) -> dict[tuple[str, int], Panel]:
    out: dict[tuple[str, int], Panel] = {}
    for run in method.runs:
        for key, panel in _numbered(run.panels).items():
            out.setdefault(key, panel)
    return out


def _numbered(found: list[Panel]) -> dict[tuple[str, int], Panel]:
    """By title, and by place among those of one title."""
    out: dict[tuple[str, int], Panel] = {}
    for panel in found:
        out[panel.title, sum(title == panel.title for title, _ in out)] = panel
    return out
