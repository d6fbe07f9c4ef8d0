"""Index of recipes, parts, tasks, instruments and exhibits that can be read without loading torch.

The tables themselves (:data:`fedslice.recipes.RECIPES`, :data:`fedslice.recipe.PARTS`, :data:`fedslice.tasks.TASKS`, …)
hold classes whose modules need torch, which takes two seconds to load. ``fedslice list``, ``--help`` and the shell's
completion show names and defaults only. They read ``index.json``, which is written from the tables by

    python -m fedslice.index

A test compares the file with the tables, so that a change of either shows.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedslice.core.component import Component

Index = dict[str, list[dict[str, Any]]]

_FILE = "index.json"


@cache
def read() -> Index:
    """The index as it is stored."""
    found: Index = json.loads((resources.files("fedslice") / _FILE).read_text(encoding="utf-8"))
    return found


def names(section: str) -> list[str]:
    """The names in one section, for example ``names("tasks")``, in the order of the table."""
    return [row[section.removesuffix("s")] for row in read()[section]]


def text(index: Index) -> str:
    """The index as it is written to its file: one line per entry, so that a diff shows what changed."""
    sections = []
    for name, rows in index.items():
        lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False, allow_nan=False)}" for row in rows)
        sections.append(f"{json.dumps(name)}: [\n{lines}\n]")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def build() -> Index:
    """The index made from the tables."""
    from fedslice.measure.instruments import INSTRUMENTS
    from fedslice.papers.files import load
    from fedslice.papers.files import names as exhibits
    from fedslice.recipe import PARTS
    from fedslice.recipes import ABOUT, RECIPES
    from fedslice.registry import is_own
    from fedslice.tasks import TASKS

    return {
        "recipes": [
            {
                "recipe": name,
                "about": ABOUT[name],
                **{place: part.label for place, part in recipe.parts().items()},
                "set": _from_fedavg(name),
            }
            for name, recipe in RECIPES.items()
        ],
        "parts": [
            part_row(place, label, kind)
            for place, kinds in PARTS.items()
            for label, kind in kinds.items()
            if is_own(kind)
        ],
        "tasks": [
            {
                "task": name,
                "about": entry.about,
                "needs": entry.needs,
                "rounds": entry.rounds,
                "eval_every": entry.eval_every,
                "set": dict(entry.settings),
                "defaults": {key: field.get_default() for key, field in entry.options.model_fields.items()},
            }
            for name, entry in TASKS.items()
        ],
        "instruments": [{"instrument": name} for name in INSTRUMENTS],
        "exhibits": [{"exhibit": name, "title": load(name)[0].title} for name in exhibits()],
    }


def part_row(place: str, label: str, kind: type[Component]) -> dict[str, Any]:
    """The entry of a part, with its default settings by their names inside of it."""
    from fedslice.settings import flat

    told = flat({place: {"name": label, **kind().settings()}}, (place,))
    defaults = {key.removeprefix(f"{place}."): value for key, value in told.items() if key != place}
    return {"place": place, "part": label, "defaults": defaults}


def _from_fedavg(name: str) -> dict[str, Any]:
    """Settings that turn fedavg into the recipe: other parts, and settings that differ from their defaults."""
    from fedslice.recipe import PARTS
    from fedslice.recipes import RECIPES
    from fedslice.settings import flat

    base, wanted = RECIPES["fedavg"], flat(RECIPES[name].settings(), PARTS)
    changes = {place: wanted[place] for place, part in base.parts().items() if wanted[place] != part.label}
    while True:  # inner parts come before their settings, whose defaults are then in place
        reached = flat(base.with_options(changes).settings(), PARTS)
        missed = next((key for key, value in wanted.items() if reached.get(key) != value), None)
        if missed is None:
            break
        changes[missed] = wanted[missed]
    ends = [key.rpartition(".")[2] for key in wanted]
    return {(end if ends.count(end := key.rpartition(".")[2]) == 1 else key): value for key, value in changes.items()}


if __name__ == "__main__":
    Path(__file__).with_name(_FILE).write_text(text(build()), encoding="utf-8")
