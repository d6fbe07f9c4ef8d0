"""Names of runs that are shown together, and the order of their methods."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedslice.recipes import RECIPES

Rank = tuple[int, str, list[tuple[float, str]]]


def rank(recipe: str, settings: Mapping[str, Any]) -> Rank:
    """Return a key that sorts methods: recipes as their table lists them, then others by name, then by settings.

    Whoever shows a set of methods sorts them by it and gives out colours in that order, so that a method has one colour
    on a page, in figures and on a terminal.
    """
    known = list(RECIPES)
    return known.index(recipe) if recipe in RECIPES else len(known), recipe, _natural(json.dumps(settings))


def _natural(words: str) -> list[tuple[float, str]]:
    """A key by which cohort=5 comes before cohort=30."""
    parts = re.findall(r"(\d+(?:\.\d+)?(?:e-?\d+)?)|(\D+)", words)
    return [(float(digits), "") if digits else (-1.0, letters) for digits, letters in parts]


def short_names(paths: Sequence[Path]) -> list[str]:
    """The ends of the paths, all of them as long as it takes to tell every two apart.

    >>> short_names([Path("/runs/a/fedavg"), Path("/runs/b/fedavg")])
    ['a/fedavg', 'b/fedavg']
    """
    parts = [path.resolve().parts[1:] for path in paths]
    length = 1
    while length < max(map(len, parts), default=0) and len({part[-length:] for part in parts}) < len(set(parts)):
        length += 1
    return ["/".join(part[-length:]) for part in parts]
