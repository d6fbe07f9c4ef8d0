"""A recipe: five interchangeable parts, and the server's optimizer, that together are a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import ValidationError

from fedslice import codecs, combine, local, select, server, slices
from fedslice.errors import UserError, unknown
from fedslice.parts import Part, RoundEnd, World
from fedslice.slice import Values

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


@dataclass(frozen=True)
class Recipe:
    """How a round goes. Parts that cannot go together are refused here, by name.

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
        for part in self.parts().values():
            part.check(self)

    def parts(self) -> dict[str, Part]:
        """Place and part."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts().values())

    @property
    def rows_suffice(self) -> bool:
        """May training be confined to the table rows that the batches name?

        Yes if the rest ends in a known place (local), which need not be encoded to arrive there (codec), and no client
        has values of its own to carry on or to hold back (slices).
        """
        arrives = self.codec.exact if self.local.drifts else self.codec.keeps_zeros
        plain = self.slices.sends_all and not self.slices.remembers
        return self.local.follows_gradient and arrives and plain

    def setup(self, world: World) -> None:
        """Let every part learn the population; who is selected may depend on what the other parts found."""
        for part in (self.slices, self.local, self.codec, self.combine, self.server, self.select):
            part.setup(world)

    def observe(self, end: RoundEnd) -> None:
        """Show every part the finished round."""
        for part in self:
            part.observe(end)

    def state_dict(self) -> Values:
        """The state of all parts."""
        return {
            f"{place}.{key}": value for place, part in self.parts().items() for key, value in part.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        for place, part in self.parts().items():
            own = {k.removeprefix(f"{place}."): v for k, v in state.items() if k.startswith(f"{place}.")}
            part.load_state_dict(own)

    def with_options(self, options: Mapping[str, Any]) -> Recipe:
        """The same recipe with other settings.

        A key is a setting of any part (``lr``), a setting of a named part (``local.lr``), or a place of the recipe,
        whose value names another part (``combine="heat"``).
        """
        parts = self.parts()
        for place in parts.keys() & options.keys():
            kind = PARTS[place].get(str(options[place]))
            if kind is None:
                raise unknown(f"{place} part", str(options[place]), PARTS[place])
            common = {k: v for k, v in parts[place].settings().items() if k in kind.setting_names()}
            parts[place] = build(place, kind, common)
        changes: dict[str, dict[str, Any]] = {}
        for key, value in options.items():
            if key not in parts:
                place, name = self._owner(key, parts)
                changes.setdefault(place, {})[name] = value
        for place, settings in changes.items():
            parts[place] = build(place, type(parts[place]), parts[place].settings() | settings)
        return dataclasses.replace(self, **parts)  # type: ignore[arg-type]

    @staticmethod
    def _owner(key: str, parts: Mapping[str, Part]) -> tuple[str, str]:
        place, _, name = key.rpartition(".")
        owners = [p for p, part in parts.items() if name in part.settings() and place in ("", p)]
        if not owners:
            raise unknown("setting", key, option_names(parts))
        if len(owners) > 1:
            meant = " or ".join(f"{owner}.{name}" for owner in owners)
            raise UserError(f"setting {key!r} is one of several parts; say {meant}.")
        return owners[0], name

    def settings(self) -> dict[str, dict[str, Any]]:
        """Every part's name and hyperparameters."""
        return {place: {"name": part.label, **part.settings()} for place, part in self.parts().items()}


def option_names(parts: Mapping[str, Part]) -> list[str]:
    """The keys that :meth:`Recipe.with_options` takes."""
    return [*parts, *(name for part in parts.values() for name in part.settings())]


def build(place: str, kind: type[Part], settings: Mapping[str, Any]) -> Part:
    """A part with checked settings; a wrong one is told in a sentence."""
    try:
        return kind(**settings)
    except ValidationError as error:
        raise UserError(f"{place}={kind.label}: {first_problem(error)}.") from None


def first_problem(error: ValidationError) -> str:
    """The first complaint of a validation, in words."""
    first = error.errors()[0]
    where = ".".join(str(word) for word in first["loc"] if isinstance(word, str))
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{where}={first['input']!r}: {message}" if where else message
