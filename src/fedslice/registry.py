"""The registry of parts by place and name: those that fedslice brings, and those of users.

A part of one's own enters it by ``@fedslice.register`` over its class, by an entry point of the group
``fedslice.parts`` in the package that has it, or by its address where a name is expected
(``--set codec=my_file.py:Half``). Entry points are loaded when a name is asked for that nobody has, and for listing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from fedslice.address import is_address, load
from fedslice.core.component import Component, defaults, described, missing
from fedslice.core.errors import UserError, shown, unknown
from fedslice.settings import concerned, first_problem, read

GROUP = "fedslice.parts"  # of entry points: name = "package.module:Class"
PLACES = ("select", "slices", "local", "codec", "combine", "server")  # of a recipe
_PACKAGES = ("select", "slices", "local", "codecs", "combine", "server")  # each has a tuple PARTS
_OWN = "fedslice"

Kind = TypeVar("Kind", bound=type[Component])
_kinds: dict[str, dict[str, type[Component]]] = {place: {} for place in PLACES}
_origins: dict[type[Component], str] = {}
_loaded: dict[str, str] = {}  # entry points that have been tried, each with what went wrong


def register(kind: Kind) -> Kind:
    """Make a part known by its ``label``: in recipes, in experiment files and on the command line.

    Where it stands in a recipe follows from its base class. A class that is defined again, as in a cell of a notebook,
    takes the place of the one before.

    Example:
        >>> @fedslice.register
        ... class Half(fedslice.Codec):
        ...     label = "half"

    Raises:
        UserError: If the class is no part, lacks a method that its base asks for, or has the name of another part.
    """
    _builtin()  # what fedslice brings comes first: a clash is the newcomer's
    add(kind, _home(kind))
    return kind


def add(kind: Any, origin: str) -> None:
    """Check a class and enter it."""
    place, label = _checked(kind)
    known = _kinds.setdefault(place, {})
    other = known.get(label)
    if other is not None and not _again(kind, other):
        raise UserError(
            f"{place}={label} is the name of two parts: {_origins[other]} and {origin}; give one of them another label."
        )
    known[label] = kind
    _origins[kind] = origin


def kinds(place: str) -> Mapping[str, type[Component]]:
    """Return the known parts of a place by name, in a view that later ones join; those of fedslice come first."""
    _builtin()
    return MappingProxyType(_kinds.setdefault(place, {}))


def find(place: str, name: str, *, what: str | None = None) -> type[Component]:
    """Return the part of this name, or at this address.

    Args:
        place: The place of a recipe.
        name: A label, ``module:Class`` or ``file.py:Class``.
        what: What an error calls it, instead of the place.

    Raises:
        UserError: If there is none.
    """
    if is_address(name):
        return _at(place, name)
    if name not in kinds(place):
        failed = load_entry_points()
        if name in failed:
            raise UserError(f"{what or place}={name}: {failed[name]}")
    if name not in kinds(place):
        raise unknown(f"{what or place} part", name, kinds(place))
    return kinds(place)[name]


def origin(kind: type[Component]) -> str:
    """Return where a part comes from: ``fedslice``, or the address of its class."""
    _builtin()
    return _origins.get(kind, _home(kind))


def is_own(kind: type[Component]) -> bool:
    """Return whether fedslice brings this part."""
    return origin(kind) == _OWN


def has_entry_points() -> bool:
    """Return whether some installed package brings parts, without loading it."""
    return bool(entry_points(group=GROUP))


def outside() -> list[type[Component]]:
    """Return the parts that are not of fedslice, with those of entry points that can be loaded."""
    load_entry_points()
    return [kind for place in PLACES for kind in kinds(place).values() if not is_own(kind)]


def load_entry_points() -> dict[str, str]:
    """Load the parts of installed packages, and return what went wrong by the name of the entry point."""
    _builtin()
    for entry in entry_points(group=GROUP):
        if entry.name not in _loaded:
            _loaded[entry.name] = _enter(entry)
    return {name: problem for name, problem in _loaded.items() if problem}


def build(owner: str, kind: type[Component], settings: Mapping[str, Any]) -> Component:
    """Return a part with these settings, or raise a sentence about a wrong one.

    Args:
        owner: Its full name in a recipe, as ``codec`` or ``codec.inner``.
        kind: Its class.
        settings: Values by name; lists become tuples.
    """
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    try:
        return kind(**given)
    except ValidationError as error:
        raise UserError(f"{owner}={kind.label}: {first_problem(error)}.", concerned(error, settings)) from None


@cache
def _builtin() -> None:
    """Enter what fedslice brings, once."""
    for package in _PACKAGES:
        for kind in import_module(f"fedslice.{package}").PARTS:
            add(kind, _OWN)


def _at(place: str, address: str) -> type[Component]:
    _builtin()
    kind = load(address)
    if not (inspect.isclass(kind) and issubclass(kind, Component)):
        raise UserError(f"{place}={address} is {shown(kind)}, expected a class of a part.")
    if kind not in _origins or kind not in kinds(kind.place).values():
        add(kind, address)
    if not is_own(kind):
        _origins[kind] = address
    if kind.place != place:
        raise UserError(f"{place}={address} is a part for {kind.place}; write {kind.place}={address}.")
    return kind


def _enter(entry: EntryPoint) -> str:
    """Load an entry point and return what went wrong, or nothing."""
    package = "a package" if entry.dist is None else entry.dist.name
    try:
        kind = entry.load()
        if _origins.get(kind) is None:
            add(kind, f"{package} ({entry.value})")
        if kind.label != entry.name:
            return f"entry point {entry.name!r} of {package} has the label {kind.label!r}; give both one name."
    except UserError as error:
        return str(error)
    except Exception as error:  # whatever it raises: other parts must stay usable
        return f"entry point {entry.value} of {package} could not be loaded: {type(error).__name__}: {error}"
    return ""


def _checked(kind: Any) -> tuple[str, str]:
    """The place and the label of a class that can be a part."""
    if not (inspect.isclass(kind) and issubclass(kind, Component)):
        raise UserError(f"register: {shown(kind)} is no class of a part; derive it from Codec, Combine, … of fedslice.")
    place, label = getattr(kind, "place", None), getattr(kind, "label", None)
    if place is None:
        raise UserError(f"{described(kind)} has no place in a recipe; derive it from Codec, Combine, … of fedslice.")
    if not isinstance(label, str) or not label or set(label) & set(" :=.,") or read(label) != label:
        raise UserError(f"{described(kind)}: label is {shown(label)}, expected a name such as label = 'half'.")
    if lacking := missing(kind):
        raise UserError(
            f"{place}={label}: {described(kind)} does not define {', '.join(lacking)}, which every {place} part needs."
        )
    without = [name for name in kind.setting_names() if name not in defaults(kind)]
    if without:
        raise UserError(f"{place}={label}: {described(kind)}: setting {without[0]!r} has no default; give it one.")
    try:
        kind().check_settings()
        hash(kind())
    except (ValidationError, TypeError) as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(f"{place}={label}: {described(kind)}: with its defaults: {reason}.") from None
    return place, label


def _home(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '?')}:{getattr(kind, '__qualname__', '?')}"


def _again(kind: type[Component], other: type[Component]) -> bool:
    """Whether two classes are one that was defined twice."""
    files = [getattr(sys.modules.get(one.__module__), "__file__", one.__module__) for one in (kind, other)]
    return kind is other or (kind.__qualname__ == other.__qualname__ and files[0] == files[1])
