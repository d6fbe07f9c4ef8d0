"""Options of the command line for the settings of a run, made from :class:`RunSettings`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, get_args, get_type_hints

import typer

from fedslice import index
from fedslice.commands.app import complete_instrument, complete_recipe, given
from fedslice.runs.settings import FIRST, RunSettings, option_of

_COMPLETE: dict[str, Callable[[str], list[tuple[str, str]]]] = {
    "recipe": complete_recipe,
    "measure": complete_instrument,
}


def option(name: str, about: str | None = None, usual: str | bool | None = None) -> Any:
    """Return the type of an option for a setting, as typer takes it.

    Args:
        name: The setting.
        about: Another help text than the setting's own.
        usual: What help shows as its default, other than the setting's own.
    """
    field = RunSettings.model_fields[name]
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    words = about or (field.description or "").format(instruments=", ".join(index.names("instruments")))
    kind = _kind(field.annotation)
    if kind is bool:
        return Annotated[bool, typer.Option(option_of(name), help=words)]
    if name == "set":
        return Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE …", help=words)]
    if kind is list:
        words = f"{words} May be repeated."
    default = field.get_default(call_default_factory=True)
    own = extra.get("usual", default)
    shown = usual if usual is not None else str(own) if own not in (None, []) else False
    return Annotated[
        {int: int, list: list[str]}.get(kind, str) | None,
        typer.Option(
            option_of(name),
            metavar=str(extra.get("metavar", "VALUE")),
            help=words,
            show_default=shown,
            autocompletion=_COMPLETE.get(name),
        ),
    ]


def _kind(annotation: Any) -> type:
    """The type of a setting without its constraints."""
    if annotation is bool or annotation is int:
        return annotation
    found = [_kind(one) for one in get_args(annotation)]
    if getattr(annotation, "__origin__", None) is list:
        return list
    return next((one for one in found if one in (int, list)), str)


def with_settings(*left_out: str, **changed: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every setting of a run.

    The command has a parameter ``said``, which is a dictionary of the settings that were given, without ``set``, and a
    parameter ``set_``, the words of ``--set``.

    Args:
        left_out: Settings that it does not take.
        changed: Types of options by setting, in place of the usual ones.
    """
    names = [*FIRST, *(name for name in RunSettings.model_fields if name not in (*FIRST, "task"))]
    wanted = {name: changed.get(name) or option(name) for name in names if name not in left_out}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters

        @functools.wraps(function)
        def command(**options: Any) -> None:
            said = {name: options.pop(_spelled(name)) for name in wanted if name != "set"}
            said = {name: value for name, value in given(**said).items() if value is not False}
            function(said=said, **options)

        parameters = [_parameter(name, one.default, hints[name]) for name, one in own.items() if name not in _OURS]
        settings = [
            _parameter(_spelled(name), False if get_args(kind)[0] is bool else None, kind)
            for name, kind in wanted.items()
        ]
        first = [one for one in parameters if one.default is inspect.Parameter.empty]
        rest = [one for one in parameters if one.default is not inspect.Parameter.empty]
        every = [*first, *settings, *rest]
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in every}
        return command

    return decorate


_OURS: Collection[str] = ("said", "set_")


def _spelled(name: str) -> str:
    return "set_" if name == "set" else name


def _parameter(name: str, default: Any, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
