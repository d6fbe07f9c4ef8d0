"""The matrix of combinations: of every two parts of a recipe, whether they go together, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from typing import Any, NamedTuple

from fedslice.core import capabilities
from fedslice.core.errors import UserError
from fedslice.core.part import Part
from fedslice.recipe import PARTS, Recipe, default


class Pair(NamedTuple):
    """Two parts of different places, by name, with their default settings.

    Args:
        places: Their places.
        parts: Their names.
        problem: Why they are refused; ``None`` if they go together.
    """

    places: tuple[str, str]
    parts: tuple[str, str]
    problem: str | None

    @property
    def chosen(self) -> dict[str, str]:
        """The parts by place, as :meth:`Recipe.with_options` takes them."""
        return dict(zip(self.places, self.parts, strict=True))


class Clash(NamedTuple):
    """Parts that do not go together, for one reason: each of ``parts`` with none of ``refused``.

    Args:
        place: A place.
        parts: The names of parts in it.
        other: Another place.
        refused: The names of parts in that.
        reason: The sentence, with "…" where it names one of several parts.
    """

    place: str
    parts: tuple[str, ...]
    other: str
    refused: tuple[str, ...]
    reason: str


class _Reason(NamedTuple):
    """Why a part refuses another: in general, and with the other's name."""

    place: str
    other: str
    general: str
    told: str


def pairs() -> list[Pair]:
    """Return all pairs, each with the first reason why no recipe has both parts."""
    out = []
    for places in combinations(PARTS, 2):
        for one, other in product(*(PARTS[place] for place in places)):
            told = (reason.told for reason in _reasons(places, (one, other)))
            out.append(Pair(places, (one, other), next(told, None)))
    return out


def clashes() -> list[Clash]:
    """Return what does not go together: one entry for each reason, with all parts that have it in common."""
    found: dict[tuple[str, str, str, str], dict[str, str]] = {}  # by the part that refuses, and why
    for pair in pairs():
        for reason in _reasons(pair.places, pair.parts):
            key = (reason.place, pair.chosen[reason.place], reason.other, reason.general)
            found.setdefault(key, {})[pair.chosen[reason.other]] = reason.told
    out: dict[tuple[str, str, tuple[str, ...], str], dict[str, str]] = {}  # by whom it refuses, and why
    for (place, part, other, general), refused in found.items():
        why = next(iter(refused.values())) if len(refused) == 1 else general
        out.setdefault((place, other, tuple(refused), why.replace(f"{place}={part}", f"{place}=…")), {})[part] = why
    return [
        Clash(place, tuple(same), other, refused, next(iter(same.values())) if len(same) == 1 else reason)
        for (place, other, refused, reason), same in out.items()
    ]


def _reasons(places: tuple[str, str], labels: tuple[str, str]) -> Iterator[_Reason]:
    """Yield why no recipe has both parts: what one refuses, or a third place of which they need different parts."""
    chosen = dict(zip(places, labels, strict=True))
    alone = True
    for place, rule in capabilities.broken(_parts(places, labels)):
        alone = False
        yield _Reason(place, rule.place, rule.told({}), rule.told(chosen))
    for third in PARTS if alone else ():
        fit = {place: _fitting(place, label, third) for place, label in chosen.items() if place != third}
        if len(fit) == len(chosen) and not set.intersection(*map(set, fit.values())):
            place, other = sorted(fit, key=lambda one: len(fit[one]))
            only = f"{place}={chosen[place]} goes with {third}={', '.join(fit[place])} alone, and {other}="
            yield _Reason(place, other, f"{only}… does not.", f"{only}{chosen[other]} does not.")


@cache
def _fitting(place: str, label: str, other: str) -> tuple[str, ...]:
    """Return the parts of another place that go with a part."""
    return tuple(one for one in PARTS[other] if not any(capabilities.broken(_parts((place, other), (label, one)))))


def completed(pair: Pair) -> Recipe:
    """Return a recipe with both parts: the plain parts elsewhere, or one other part that they need.

    Raises:
        UserError: If no recipe has both.
    """
    parts: dict[str, Any] = _parts(pair.places, pair.parts)
    try:
        return Recipe(**parts)
    except UserError as error:
        for place, label in ((place, label) for place, kinds in PARTS.items() for label in kinds):
            if place not in parts:
                try:
                    return Recipe(**(parts | {place: _default(place, label)}))
                except UserError:
                    continue
        raise error from None


def _parts(places: tuple[str, ...], labels: tuple[str, ...]) -> dict[str, Part]:
    return {place: _default(place, label) for place, label in zip(places, labels, strict=True)}


@cache
def _default(place: str, label: str) -> Part:
    return default(place, label)
