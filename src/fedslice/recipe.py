"""A recipe: six interchangeable parts that together are a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from pydantic import ValidationError

from fedslice import codecs, combine, local, registry, select, server, slices
from fedslice.core import capabilities
from fedslice.core.component import Component, built, described, missing
from fedslice.core.errors import UserError, shown
from fedslice.core.part import Part
from fedslice.registry import build
from fedslice.settings import assigned, first_problem, flat, owners

# What can stand in each place of a recipe, by name.
PARTS = {place: cast("Mapping[str, type[Part]]", registry.kinds(place)) for place in registry.PLACES}
_BASES: dict[str, type[Part]] = {
    "select": select.Select,
    "slices": slices.Slices,
    "local": local.Local,
    "codec": codecs.Codec,
    "combine": combine.Combine,
    "server": server.ServerOptimizer,
}


@dataclass(frozen=True, repr=False)
class Recipe:
    """Six parts, which say how a round goes. Parts that cannot go together are refused here, by name.

    >>> Recipe(slices=slices.FeatureRows(), combine=combine.HeatCorrected()).with_options({"lr": 0.2})
    Recipe(slices=FeatureRows(), local=Local(optimizer=SGD(lr=0.2)), combine=HeatCorrected())
    """

    select: select.Select = field(default_factory=select.Uniform)
    slices: slices.Slices = field(default_factory=slices.Whole)
    local: local.Local = field(default_factory=local.Local)
    codec: codecs.Codec = field(default_factory=codecs.Dense)
    combine: combine.Combine = field(default_factory=combine.Mean)
    server: server.ServerOptimizer = field(default_factory=server.ServerSGD)

    def __post_init__(self) -> None:
        for place, part in self.parts().items():
            if not isinstance(part, _BASES[place]):
                kinds = PARTS[place]
                kind = kinds[part] if isinstance(part, str) and part in kinds else next(iter(kinds.values()))
                raise UserError(
                    f"Recipe: {place}={shown(part)} is not a part, expected a {_BASES[place].__name__}; write for "
                    f"example {place}={kind.__name__}() from {kind.__module__.rpartition('.')[0]}."
                )
            for owner, component in part.tree(place):
                _check(owner, component)
        capabilities.check(self.parts())

    def __repr__(self) -> str:
        usual = {one.name: one.default_factory() for one in dataclasses.fields(self) if callable(one.default_factory)}
        return built("Recipe", self.parts(), usual)

    def has(self, place: str, capability: str) -> bool:
        """Return whether the part in this place has a capability; see :mod:`fedslice.core.capabilities`."""
        return capability in self._parts[place].provides

    def parts(self) -> dict[str, Part]:
        """Return the parts by place."""
        return dict(self._parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts.values())

    @cached_property
    def _parts(self) -> dict[str, Part]:
        return {place: getattr(self, place) for place in PARTS}

    def with_options(self, options: Mapping[str, Any]) -> Recipe:
        """Return the same recipe with other settings.

        A key is a setting that one part alone has (``lr``), a setting by its full name (``local.lr``,
        ``codec.inner.share``), or what holds a part: a place of the recipe or a setting such as ``codec.inner``. Its
        value is then another part (``combine=HeatCorrected()``) or its name (``combine="heat"``). A part that is named
        takes over the settings that it has in common with the one before.
        """
        parts, rest = self.replaced(options)
        return self.rebuilt(parts, assigned(rest, setting_names(parts)))

    def replaced(self, options: Mapping[str, Any]) -> tuple[dict[str, Part], dict[str, Any]]:
        """Return the parts after the replacements among the options, inner ones too, and the options that are none."""
        parts, rest = self.parts(), flat(options, PARTS)
        for place in PARTS:
            if place in rest:
                parts[place] = cast("Part", _replacement(place, rest.pop(place), parts[place]))
        done: dict[str, str] = {}  # inner parts by full name, with the key that replaced them
        while found := next(((key, full) for key in rest if (full := _inner(key, parts)) is not None), None):
            key, full = found
            if full in done:
                raise UserError(f"Setting {full} is given twice, as {done[full]!r} and as {key!r}. Give it once.")
            done[full] = key
            owner, _, name = full.rpartition(".")
            before = _components(parts)[full]
            parts = _put(parts, owner, {name: _replacement(full, rest.pop(key), before)})
        return parts, rest

    def rebuilt(self, parts: Mapping[str, Part], settings: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """Return the recipe of these parts, with other settings by owner."""
        changed = dict(parts)
        for owner, own in settings.items():
            if own:
                changed = _put(changed, owner, own)
        return dataclasses.replace(self, **changed)  # type: ignore[arg-type]

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return every part's name and settings; a part inside of another is a table like it."""
        return {place: {"name": part.label, **part.settings()} for place, part in self.parts().items()}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Recipe:
        """Return the recipe of what :meth:`settings` said, as a run keeps it in its configuration.

        Raises:
            UserError: If it names a part that nobody has registered, or a setting that a part does not have.
        """
        return cls().with_options({place: settings[place] for place in PARTS if place in settings})


def setting_names(parts: Mapping[str, Part]) -> dict[str, list[str]]:
    """Return the names of every part's settings, by owner; a part inside of another is an owner like it."""
    return {owner: component.setting_names() for owner, component in _components(parts).items()}


def default(place: str, label: str) -> Part:
    """Return a part by its name, with its default settings."""
    return Recipe().replaced({place: label})[0][place]


def _components(parts: Mapping[str, Part]) -> dict[str, Component]:
    return {owner: component for place, part in parts.items() for owner, component in part.tree(place)}


def _inner(key: str, parts: Mapping[str, Part]) -> str | None:
    """The full name of the inner part that an option's key stands for, if it stands for one."""
    components = _components(parts)
    found = [f"{owner}.{key.rpartition('.')[2]}" for owner in owners(key, setting_names(parts))]
    return found[0] if len(found) == 1 and found[0] in components else None


def _put(parts: Mapping[str, Part], owner: str, settings: Mapping[str, Any]) -> dict[str, Part]:
    """The parts with other settings of one of them, or of a part inside of one."""
    component = _components(parts)[owner]
    new = build(owner, type(component), component.arguments(settings))
    outer, _, name = owner.rpartition(".")
    return _put(parts, outer, {name: new}) if outer else {**parts, owner: cast("Part", new)}


def _replacement(owner: str, given: Any, before: Component) -> Component:
    """The part that takes the place of another: itself, or by its name."""
    place = before.place
    try:
        if isinstance(given, Component) and given.place == place:
            return before.adopted(given)
        if not isinstance(given, str):
            known = ", ".join(registry.kinds(place))
            raise UserError(f"{owner}={shown(given)}: expected a part or a name, one of: {known}.")
        names = given.split("+") if before.joined else [given]
        found = [registry.find(place, name, what=owner) for name in names]
        if (chosen := before.chosen(found)) is not None:
            return chosen
    except ValidationError as error:
        raise UserError(f"{owner}={getattr(given, 'label', given)}: {first_problem(error)}.") from None
    (kind,) = found
    common = {name: value for name, value in before.values().items() if name in kind.setting_names()}
    return build(owner, kind, common)


def _check(owner: str, component: Component) -> None:
    """Refuse a part of a user's that lacks what every part of its place has."""
    kind = type(component)
    if not isinstance(getattr(kind, "label", None), str):
        name = kind.__name__.lower()
        raise UserError(f"{owner}: {described(kind)} has no name; give it one, such as label = {name!r}.")
    if lacking := missing(kind):
        raise UserError(f"{owner}={kind.label}: {described(kind)} does not define {', '.join(lacking)}.")
    component.check_settings()
