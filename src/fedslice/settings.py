"""Settings: whose they are, how their values are read, and what is told of a wrong one.

A setting belongs to the task or to a part of the recipe. It is given as ``NAME`` if only one of them has it, and as
``OWNER.NAME`` in any case; owners are ``task``, the places of a recipe (``select``, ``slices``, …), and parts inside of
others by the setting that holds them (``codec.inner``).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from fedslice.core.errors import UserError, nearest, shown, unknown

TASK = "task"  # the owner of a setting that is no place of a recipe


def owners(key: str, names: Mapping[str, Collection[str]]) -> list[str]:
    """The owners of a setting, given as ``NAME`` or ``OWNER.NAME``, among the setting names by owner.

    ``local.lr`` is ``local.optimizer.lr`` too, if ``local`` has no ``lr`` of its own.
    """
    owner, dot, name = key.rpartition(".")
    having = [one for one, own in names.items() if name in own]
    if not dot or owner in having:
        return [owner] if dot else having
    return [one for one in having if one.startswith(f"{owner}.")]


def assigned(
    options: Mapping[str, Any], names: Mapping[str, Collection[str]], whose: str = ""
) -> dict[str, dict[str, Any]]:
    """Settings by owner. Every key must have one owner, and no setting may be given by two keys.

    Args:
        options: Values by ``NAME`` or ``OWNER.NAME``.
        names: The setting names of every owner.
        whose: Words for an error: what has several settings of a name.
    """
    out: dict[str, dict[str, Any]] = {owner: {} for owner in names}
    spelled: dict[tuple[str, str], str] = {}
    for key, value in options.items():
        name, found = key.rpartition(".")[2], owners(key, names)
        if not found:
            raise no_setting(key, names)
        if len(found) > 1:
            full = [f"{owner}.{name}" for owner in found]
            raise UserError(
                f"Setting {key!r} is ambiguous{whose}: {'both ' * (len(full) == 2)}{', '.join(full[:-1])} and "
                f"{full[-1]} exist. Use the full name.",
                {name},
            )
        first = spelled.setdefault((found[0], name), key)
        if first != key:
            raise UserError(
                f"Setting {found[0]}.{name} is given twice, as {first!r} and as {key!r}. Give it once.", {name}
            )
        out[found[0]][name] = value
    return out


def flat(settings: Mapping[str, Any], owners: Collection[str]) -> dict[str, Any]:
    """Settings by dotted names, out of tables as TOML and a run's configuration have them.

    In the table of a part ``name`` stands for the part itself: ``codec = {name = "sign", error_feedback = false}`` is
    ``codec = "sign"`` and ``codec.error_feedback = false``.

    Args:
        settings: Values by name, or tables of them.
        owners: The names whose tables are read so.
    """
    out: dict[str, Any] = {}
    for key, value in settings.items():
        nested = isinstance(value, Mapping) and value and key.partition(".")[0] in owners
        for name, one in _lines(key, value) if nested else [(key, value)]:
            if name in out:
                raise UserError(f"Setting {name} is given twice. Give it once.")
            out[name] = one
    return out


def _lines(key: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _lines(f"{key}.{name}", value)
        else:
            yield (key if name == "name" else f"{key}.{name}"), value


def is_setting(key: str, names: Mapping[str, Collection[str]]) -> bool:
    """Whether a key is the place of a part, or a setting that some owner has."""
    return (key in names and key != TASK) or bool(owners(key, names))


def no_setting(key: str, names: Mapping[str, Collection[str]]) -> UserError:
    """Return an error for a setting that nobody has, or not the owner that it names."""
    owner, dot, name = key.rpartition(".")
    if not dot:
        places = names.keys() - {TASK}
        return unknown("setting", key, {*places, *(one for own in names.values() for one in own)}, {name})
    inside = [one for place, own in names.items() if f"{place}.".startswith(f"{owner}.") for one in own]
    if owner not in names:
        hint = f"settings belong to {', '.join(place for place in names if '.' not in place)}."
    elif near := nearest(name, inside):
        hint = f"did you mean '{owner}.{near}'?"
    else:
        hint = f"{owner} has {', '.join(dict.fromkeys(inside)) or 'no settings'}."
    return UserError(f"unknown setting {shown(key)}; {hint}", {name})


def pairs(words: Iterable[str], option: str = "") -> dict[str, Any]:
    """Settings from ``key=value`` words, which an option (``--set``) may have brought."""
    out: dict[str, Any] = {}
    before = f"{option} " if option else ""
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not key:
            raise UserError(f"{before}{shown(word)} is not key=value; write for example {before}lr=0.1.")
        value = read(text)
        if key in out:
            both = f"as {shown(out[key])} and as {shown(value)}"
            raise UserError(f"Setting {shown(key)} is given twice, {both}. Give it once.", {key.rpartition(".")[2]})
        out[key] = value
    return out


def read(text: str) -> Any:
    """The value of a word: as TOML reads it (numbers, true, false, …), ``none``, or the text itself."""
    if text.lower() == "none":
        return None
    try:
        content = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or a number or a nest that is too long for Python
        return text
    return content["value"] if len(content) == 1 else text


def written(value: Any) -> str:
    """The inverse of :func:`read`."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and read(value) != value:
        literal = f"'{value}'"  # text that would be read as something else
        return literal if read(literal) == value else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)


def concerned(error: ValidationError, settings: Collection[str]) -> Collection[str]:
    """The settings that the first complaint is about: one by its name, or how several go together."""
    where = error.errors()[0]["loc"]
    return [str(where[0])] if where else settings


def first_problem(error: ValidationError) -> str:
    """The first complaint of a validation, in words."""
    first = error.errors()[0]
    where = ".".join(str(word) for word in first["loc"] if isinstance(word, str))
    message = first["msg"].removeprefix("Value error, ").rstrip(".?")
    message = message[:1].lower() + message[1:]
    if first["type"] == "float_type" and type(first["input"]) is int:
        message = "input should be a smaller number"  # it has no float
    return f"{where}={shown(first['input'])}: {message}" if where else message
