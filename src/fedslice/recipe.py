"""A recipe: six interchangeable parts that together are a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from fedslice import codecs, combine, local, select, server, slices
from fedslice.core import capabilities
from fedslice.core.errors import UserError, shown, unknown
from fedslice.core.part import Part
from fedslice.settings import assigned, concerned, first_problem

_KINDS: dict[str, tuple[type[Part], ...]] = {
    "select": (select.Uniform, select.Everyone, select.FedCS, select.Oort, select.Pooled),
    "slices": (slices.Whole, slices.FeatureRows, slices.ChannelDropout, slices.Width, slices.Shared),
    "local": (
        local.SGD,
        local.Prox,
        local.Scaffold,
        local.Moon,
        local.FedDyn,
        local.FedDC,
        local.FedGen,
        local.FedNTD,
        local.Projected,
        local.FDRL,
        local.FedRep,
        local.FedBABU,
        local.Ditto,
        local.APFL,
    ),
    "codec": (
        codecs.Dense,
        codecs.Sign,
        codecs.TopK,
        codecs.STC,
        codecs.Quantize,
        codecs.FetchSGD,
        codecs.LBGM,
        codecs.StreamingSubspace,
    ),
    "combine": (combine.Mean, combine.HeatCorrected, combine.Coverage),
    "server": (
        server.ServerSGD,
        server.Momentum,
        server.Adagrad,
        server.Adam,
        server.Yogi,
        server.ScaffoldApprox,
        server.Drift,
    ),
}
# What can stand in each place of a recipe, by name.
PARTS = {place: {kind.label: kind for kind in kinds} for place, kinds in _KINDS.items()}
_BASES: dict[str, type[Part]] = {
    "select": select.Select,
    "slices": slices.Slices,
    "local": local.SGD,
    "codec": codecs.Codec,
    "combine": combine.Combine,
    "server": server.Server,
}


@dataclass(frozen=True)
class Recipe:
    """Six parts, which say how a round goes. Parts that cannot go together are refused here, by name.

    >>> Recipe(slices=slices.FeatureRows(), combine=combine.HeatCorrected()).with_options({"lr": 0.2}).local.lr
    0.2
    """

    select: select.Select = field(default_factory=select.Uniform)
    slices: slices.Slices = field(default_factory=slices.Whole)
    local: local.SGD = field(default_factory=local.SGD)
    codec: codecs.Codec = field(default_factory=codecs.Dense)
    combine: combine.Combine = field(default_factory=combine.Mean)
    server: server.Server = field(default_factory=server.ServerSGD)

    def __post_init__(self) -> None:
        for place, part in self.parts().items():
            if not isinstance(part, _BASES[place]):
                kinds = PARTS[place]
                kind = kinds[part] if isinstance(part, str) and part in kinds else next(iter(kinds.values()))
                raise UserError(
                    f"Recipe: {place}={shown(part)} is not a part, expected a {_BASES[place].__name__}; write for "
                    f"example {place}={kind.__name__}() from {kind.__module__.rpartition('.')[0]}."
                )
        capabilities.check(self.parts())

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

        A key is a setting of one part (``lr``), a setting of a named part (``local.lr``), or a place of the recipe,
        whose value is another part (``combine=HeatCorrected()``) or its name (``combine="heat"``). A part that is
        named takes over the settings that it has in common with the one before.
        """
        parts, rest = self.replaced(options)
        return self.rebuilt(parts, assigned(rest, setting_names(parts)))

    def replaced(self, options: Mapping[str, Any]) -> tuple[dict[str, Part], dict[str, Any]]:
        """Return the parts after the replacements among the options, and the options that are none."""
        parts = self.parts()
        for place, part in self.parts().items():
            if place in options:
                parts[place] = _replacement(place, options[place], part)
        return parts, {key: value for key, value in options.items() if key not in parts}

    def rebuilt(self, parts: Mapping[str, Part], settings: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """Return the recipe of these parts, with other settings by place."""
        changed = {
            place: build(place, type(parts[place]), parts[place].settings() | dict(own))
            for place, own in settings.items()
            if own
        }
        return dataclasses.replace(self, **{**parts, **changed})  # type: ignore[arg-type]

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return every part's name and hyperparameters."""
        return {place: {"name": part.label, **part.settings()} for place, part in self.parts().items()}


def setting_names(parts: Mapping[str, Part]) -> dict[str, list[str]]:
    """Return the names of every part's settings, by place."""
    return {place: part.setting_names() for place, part in parts.items()}


def _replacement(place: str, given: Any, before: Part) -> Part:
    """The part that takes the place of another: itself, or by its name."""
    if isinstance(given, _BASES[place]):
        return given
    if not isinstance(given, str):
        raise UserError(f"{place}={shown(given)}: expected a part or a name, one of: {', '.join(PARTS[place])}.")
    if given not in PARTS[place]:
        raise unknown(f"{place} part", given, PARTS[place])
    kind = PARTS[place][given]
    common = {name: value for name, value in before.settings().items() if name in kind.setting_names()}
    return build(place, kind, common)


def build(place: str, kind: type[Part], settings: Mapping[str, Any]) -> Part:
    """Return a part with these settings, or raise a sentence about a wrong one."""
    try:
        return kind(**settings)
    except ValidationError as error:
        raise UserError(f"{place}={kind.label}: {first_problem(error)}.", concerned(error, settings)) from None
