"""A recipe explained: every setting with its full name, value, default, unit, meaning and the value of the paper."""

from __future__ import annotations

from typing import Any

from fedslice import registry
from fedslice.core.component import Component, defaults
from fedslice.core.docs import arguments, summary
from fedslice.recipe import Recipe
from fedslice.recipes import ABOUT, PAPER
from fedslice.settings import flat

Document = dict[str, Any]


def explain(recipe: Recipe, name: str | None = None) -> Document:
    """Return the settings of a recipe, part by part.

    Args:
        recipe: The recipe.
        name: Its name in the table, if it began as one of them: the paper's values are those of that method.
    """
    source, paper = PAPER.get(name or "", ("", {}))
    values = flat(recipe.settings(), registry.PLACES)
    rows = []
    for place, part in recipe.parts().items():
        for owner, component in part.tree(place):
            kind = type(component)
            known, usual = arguments(kind), defaults(kind)
            for setting in component.setting_names():
                full = f"{owner}.{setting}"
                default = usual.get(setting)
                if isinstance(default, Component):
                    default = default.label
                about = known.get(setting)
                rows.append(
                    {
                        "setting": full,
                        "value": values[full],
                        "default": list(default) if isinstance(default, tuple) else default,
                        "unit": about and about.unit,
                        "about": about and about.about,
                        "paper": paper.get(full),
                    }
                )
    parts = [
        {
            "place": owner,
            "part": component.label,
            "about": summary(type(component)),
            "from": registry.origin(type(component)),
        }
        for place, part in recipe.parts().items()
        for owner, component in part.tree(place)
    ]
    return {
        "recipe": name,
        "about": ABOUT.get(name or ""),
        "python": repr(recipe),
        "paper": source or None,
        "parts": parts,
        "settings": rows,
    }
