"""Settings as their classes' docstrings explain them, the only place where meanings and units are written."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

_NAME = re.compile(r"(\w+)(?: \(([^)]*)\))?: (.*)")


class Argument(NamedTuple):
    """One entry of the section ``Args`` of a docstring, as in ``deadline (seconds): Length of a round.``

    Args:
        about: The text, in one line.
        unit: What stands in parentheses, or nothing.
    """

    about: str
    unit: str | None


def arguments(kind: type) -> dict[str, Argument]:
    """Return what the docstrings of a class and its bases say of each argument."""
    out: dict[str, Argument] = {}
    for each in reversed(kind.__mro__):
        out |= parse(vars(each).get("__doc__") or "")
    return out


def parse(text: str) -> dict[str, Argument]:
    """Return the entries of the section ``Args`` of a docstring."""
    lines = inspect.cleandoc(text).splitlines()
    if "Args:" not in lines:
        return {}
    entries: list[str] = []
    for line in lines[lines.index("Args:") + 1 :]:
        if line and not line.startswith(" "):
            break
        if line.startswith("    ") and not line.startswith("     "):
            entries.append(line.strip())
        elif line.strip() and entries:
            entries[-1] += f" {line.strip()}"
    found = (match for entry in entries if (match := _NAME.fullmatch(entry)))
    return {name: Argument(about.replace("``", ""), unit) for name, unit, about in (match.groups() for match in found)}


def summary(kind: type) -> str:
    """Return the first line of a class's docstring, or of that of its nearest base that has one."""
    text = next((doc for each in kind.__mro__ if (doc := vars(each).get("__doc__"))), "")
    return inspect.cleandoc(text).partition("\n\n")[0].replace("\n", " ").replace("``", "")
