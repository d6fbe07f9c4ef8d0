"""Knowledge of the server under each choice of privacy, in plain words, with the bytes that a choice costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from fedslice.core.errors import UserError
from fedslice.recipe import Recipe
from fedslice.training.experiment import Experiment
from fedslice.training.reveal import FIRST, HEADERS, ONCE, Revealed, reveal

# The choices, as settings that change a recipe; those that a recipe does not have are left out.
CHOICES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "heat from bits that may be lies": {"combine": "heat", "heat_source": "randomized-response"},
    "heat as a secure sum": {"combine": "heat", "heat_source": "secure-sum"},
    "updates as secure sums": {"codec": "secagg"},
    "whole models, heat and updates as secure sums": {
        "slices": "whole",
        "combine": "heat",
        "heat_source": "secure-sum",
        "codec": "secagg",
    },
}
_DOWN = ("welcome", "secure sum", "download")


class Choice(NamedTuple):
    """One choice of privacy.

    Args:
        name: Its name.
        settings: The settings that make it.
        learns: What the server learns of one client, sentence by sentence.
        up: Median bytes that a client sends, by message and time.
        down: Median bytes that it is sent.
    """

    name: str
    settings: dict[str, Any]
    learns: list[str]
    up: dict[str, int]
    down: dict[str, int]

    def document(self) -> dict[str, Any]:
        """The same for a program."""
        return self._asdict()


def learned(recipe: Recipe, begin: Callable[[Recipe], Experiment]) -> list[Choice]:
    """Return what the server learns with a recipe, and with each change of it that the recipe can take.

    Args:
        recipe: The recipe.
        begin: Return a run of a recipe before its first round.

    Sentences and bytes follow from the messages that a few clients and the server really make, as with
    :func:`~fedslice.training.reveal.reveal`.
    """
    out = []
    for name, settings in CHOICES.items():
        try:
            rows = reveal(begin(recipe.with_options(settings)))
        except UserError:
            if not settings:
                raise
            continue
        ways = [[row for row in rows if (row.message in _DOWN) is down] for down in (False, True)]
        out.append(Choice(name, settings, list(_sentences(rows)), *map(_bytes, ways)))
    return out


def _bytes(rows: Iterable[Revealed]) -> dict[str, int]:
    """Bytes of messages by name and time, without what only some rounds have."""
    out: dict[str, int] = {}
    for row in rows:
        if row.bytes is not None and row.when != HEADERS:
            key = f"{row.message}, {row.when}"
            out[key] = out.get(key, 0) + round(row.bytes.median)
    return out


def _sentences(rows: list[Revealed]) -> Iterable[str]:
    """Yield what the fields of messages tell."""
    told = [row for row in rows if row.message not in (*_DOWN, "header") and not row.field.startswith("sum/")]
    if not told:
        yield "Nothing: nothing travels."
        return
    once, rounds = ([row for row in told if (row.when == ONCE) is early] for early in (True, False))
    for row in once:
        if "modulo" in row.encoding:
            yield f"Of {row.field.partition('/')[2]}, how many clients (or how much weight) have each row; not which."
        else:
            yield f"Once: {row.about}."
    rounds = [row for row in rounds if row.when != FIRST]
    if not any(row.message == "request" for row in rounds):
        yield "In a round: not which rows it has, as it asks for the whole model."
    for row in rounds:
        if row.message == "request":
            yield f"In a round: {row.about}."
        elif "modulo" in row.encoding:
            about = row.about.removesuffix(", under masks")
            yield f"In a round: {about}, summed over the cohort, and of no client alone."
        else:
            yield f"In a round: {row.about}, of this client alone."
    yield "In each round it is asked: that it takes part, and when it answers."
