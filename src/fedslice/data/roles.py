"""Roles of a table's columns, checked against the columns there are."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedslice.core.errors import UserError, shown, unknown


@dataclass(frozen=True)
class Roles:
    """The roles of a table's columns; see :meth:`fedslice.Federation.from_frame`."""

    client: str
    label: str
    features: Sequence[str] | None = None
    ids: Sequence[str | Sequence[str]] = ()
    dense: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    fill: Mapping[str, Any] = field(default_factory=dict)
    classes: bool | None = None
    time: str | None = None
    test: str | None = None
    min_count: int = 1

    def __post_init__(self) -> None:
        for name in ("features", "ids"):
            if isinstance(given := getattr(self, name), str):
                raise UserError(f"{name} is {given!r}, expected a list of columns; write {name}=[{given!r}].")
        for name in ("dense", "lists", "fill"):
            if not isinstance(given := getattr(self, name), Mapping):
                raise UserError(f"{name} is {shown(given)}, expected a dictionary.")
        for name, members in self.dense.items():
            if isinstance(members, str) or not members:
                raise UserError(f"dense[{name!r}] is {shown(members)}, expected a list of columns.")
        if self.min_count < 1:
            raise UserError(f"min_count is {self.min_count}, expected at least 1.")

    @property
    def own(self) -> dict[str, str]:
        """The columns that are no features, by what they are for."""
        given = {"client": self.client, "label": self.label, "time": self.time, "test": self.test}
        return {role: name for role, name in given.items() if name is not None}

    @property
    def shared(self) -> list[tuple[str, ...]]:
        """The declared ids, those with one vocabulary together; clients are ids where they are a feature."""
        declared = [(one,) if isinstance(one, str) else tuple(one) for one in self.ids]
        if self.client in (self.features or ()) and not any(self.client in group for group in declared):
            declared.append((self.client,))
        return declared

    @property
    def grouped(self) -> list[str]:
        """The columns that go into dense groups."""
        return [name for members in self.dense.values() for name in members]

    def chosen(self, columns: Sequence[str]) -> list[str]:
        """The columns for features, all that are left over unless they are named."""
        own = self.own.values()
        return [name for name in columns if name not in own] if self.features is None else list(self.features)

    def check(self, columns: Sequence[str]) -> None:
        """Refuse names that the table does not have, and columns that are for two things."""
        own = self.own
        if len(set(own.values())) < len(own):
            raise UserError(f"{_listed(own)} are columns {_listed(own.values())}, expected one of its own for each.")
        for role, name in own.items():
            if name not in columns:
                raise unknown(f"column for {role}", str(name), columns)
        declared = [name for group in self.shared for name in group]
        named = {
            "features": [*(self.features or ())],
            "ids": declared,
            "dense": self.grouped,
            "lists": [*self.lists],
            "fill": [*self.fill],
        }
        for role, names in named.items():
            self._check_names(role, names, columns)
        self._check_arguments(columns)

    def _check_names(self, role: str, names: Sequence[str], columns: Sequence[str]) -> None:
        chosen = self.chosen(columns)
        for name in names:
            if name not in columns:
                raise unknown(f"column for {role}", str(name), columns)
            if names.count(name) > 1:
                raise UserError(f"{role} names {name!r} twice; name it once.")
            if role == "fill" or (name == self.client and name in chosen):
                continue
            if purpose := next((purpose for purpose, own in self.own.items() if own == name), None):
                raise UserError(f"{role} names {name!r}, which is the column for {purpose}; leave it out there.")
            if name not in chosen:
                raise UserError(f"{role} names {name!r}, which features does not; name it there, too.")

    def _check_arguments(self, columns: Sequence[str]) -> None:
        """Features are passed to a model by name."""
        alone = [name for name in self.chosen(columns) if name not in self.grouped]
        for name in (*alone, *self.dense):
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
                raise UserError(
                    f"column {name!r} cannot be an argument of a model's forward; rename it, leave it out "
                    "(features=[...]) or group it (dense={...})."
                )
        for name in self.dense:
            if name in alone:
                raise UserError(f"dense makes a feature {name!r}, and there is a column of that name; choose another.")


def _listed(names: Any) -> str:
    return ", ".join(map(str, names))
