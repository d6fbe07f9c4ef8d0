"""Short names for things that differ in their settings: nothing is said that all of them share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Settings = dict[str, str]  # dotted path -> value as text


def flatten(content: Mapping[str, Any], prefix: str = "") -> Settings:
    """Nested settings by dotted path. A part's own name stands at its place, as ``--set`` takes it.

    >>> flatten({"local": {"name": "plain", "lr": 0.1, "epochs": None}, "rounds": 5})
    {'local': 'plain', 'local.lr': '0.1', 'local.epochs': 'none', 'rounds': '5'}
    """
    out: Settings = {}
    for key, value in content.items():
        path = prefix.removesuffix(".") if key == "name" and prefix else f"{prefix}{key}"
        if isinstance(value, Mapping):
            out |= flatten(value, f"{path}.")
        else:
            out[path] = text(value)
    return out


def text(value: Any) -> str:
    """One setting as a person writes it."""
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differing(settings: Sequence[Settings]) -> list[str]:
    """The paths whose values are not the same everywhere; a path that one lacks differs, too."""
    paths = dict.fromkeys(path for one in settings for path in one)
    return [path for path in paths if len({one.get(path) for one in settings}) > 1]


def short_keys(paths: Iterable[str]) -> dict[str, str]:
    """The last part of each path, or the whole path where two end alike."""
    ends: dict[str, set[str]] = {}
    for path in paths:
        ends.setdefault(path.rpartition(".")[2], set()).add(path)
    return {path: end if len(same) == 1 else path for end, same in ends.items() for path in same}


def labels(settings: Sequence[Settings]) -> list[str]:
    """For each of several settings, what tells it from the others; all labels are different if all settings are.

    What only some have (a part's own hyperparameters) is named where it differs among those: the part's name says the
    rest. Only if this does not tell all of them apart is everything named that differs.
    """
    paths = differing(settings)
    keys = short_keys(path for one in settings for path in one)
    telling = [path for path in paths if len({one[path] for one in settings if path in one}) > 1]
    named = [", ".join(f"{keys[path]}={one[path]}" for path in telling if path in one) for one in settings]
    if len(set(named)) == len(settings):
        return named
    return [", ".join(f"{keys[path]}={one.get(path, 'unset')}" for path in paths) for one in settings]
