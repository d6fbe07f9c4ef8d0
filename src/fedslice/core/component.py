"""Settings that can be chosen by name: a class with annotated attributes, made a frozen dataclass and checked.

Parts of a recipe are such components, and so are the parts inside of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, dataclass_transform

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.errors import PydanticUserError

from fedslice.core.errors import UserError, shown

# Settings are checked where they are given: a wrong value never reaches a round. Strict: true is not 1.0.
CHECKED = ConfigDict(extra="forbid", arbitrary_types_allowed=True, strict=True, validate_default=True)
RESERVED = ("name", "place", "label")  # words that describe a component, and so name no setting


@dataclass_transform(frozen_default=True)
class Component:
    """A frozen set of checked settings.

    A subclass writes its settings as annotated attributes with defaults. They become the arguments of its constructor,
    in strict types: ``share: float = 0.1`` refuses ``"0.1"``. Pydantic's constraints may stand in ``Annotated``.
    Attributes without an annotation, or annotated as ``ClassVar``, are no settings.

    Raises:
        UserError: When the class is made, if an annotation or a default cannot be a setting.
    """

    joined: ClassVar[bool] = False  # whether several names, joined by "+", may be chosen
    place: ClassVar[str]  # what it can be chosen for: a place of a recipe
    label: ClassVar[str]  # its name in tables, experiment files and on the command line

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            raise UserError(
                f"{described(cls)} defines __init__, which is made of its settings; annotate them with their defaults, "
                "and compute what follows from them in a property."
            )
        for name in inspect.get_annotations(cls):
            if name in RESERVED and name not in vars(cls):
                raise UserError(f"{described(cls)}: a setting cannot be called {name!r}; give it another name.")
        try:
            dataclass(cls, frozen=True, repr=False, config=CHECKED)
        except (TypeError, ValueError, NameError, PydanticUserError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise UserError(
                f"{described(cls)}: {reason}; a setting is an annotated number, word, flag, tuple or part with a "
                "default, as in share: float = 0.1."
            ) from None
        for name in ("__setattr__", "__delattr__"):  # those of this class refuse every name
            delattr(cls, name)
        if "__repr__" not in vars(cls):
            cls.__repr__ = Component.__repr__  # type: ignore[method-assign] # so that no decorator brings another

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"{type(self).__name__} is frozen; cannot assign to {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"{type(self).__name__} is frozen; cannot delete {name!r}")

    def __repr__(self) -> str:
        return built(type(self).__name__, self.values(), defaults(type(self)))

    def values(self) -> dict[str, Any]:
        """Return the settings as the constructor takes them."""
        return {name: getattr(self, name) for name in self.setting_names()}

    def settings(self) -> dict[str, Any]:
        """Return the settings as a document: a component in them is its name with its own settings."""
        return {name: _document(value) for name, value in self.values().items()}

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the settings."""
        return [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return a copy with other settings, which are checked again."""
        return type(self)(**self.arguments(settings))

    def inside(self) -> dict[str, Component]:
        """Return the components among the settings, by the setting."""
        return {name: value for name, value in self.values().items() if isinstance(value, Component)}

    def arguments(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the constructor takes for a copy with other settings, or other components inside of it."""
        return {**self.values(), **settings}

    def chosen(self, kinds: Sequence[type[Component]]) -> Component | None:  # noqa: ARG002
        """Return what takes this component's place when these classes are named.

        By default ``None``: the one class that is named, with the settings that both have in common.
        """
        return None

    def adopted(self, given: Component) -> Component:
        """Return what takes this component's place when another of its place is given: by default that one."""
        return given

    def tree(self, name: str) -> Iterator[tuple[str, Component]]:
        """Yield this component and all inside of it, with their full names: ``codec``, ``codec.inner``, …"""
        yield name, self
        for setting, component in self.inside().items():
            yield from component.tree(f"{name}.{setting}")

    def check_settings(self) -> None:
        """Refuse values that cannot be written into a file and read again, or compared.

        Raises:
            UserError: With the name of the setting.
        """
        for name, value in self.values().items():
            if isinstance(value, Component):
                value.check_settings()
            elif not _plain(value):
                raise UserError(
                    f"{described(type(self))}: setting {name!r} is {shown(value)}, expected a number, a word, true, "
                    "false, none, a tuple of these, or a part: settings are compared and kept in files.",
                    {name},
                )


def built(name: str, values: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Return the call that makes an object, with the arguments that are not as usual."""
    said = (f"{key}={value!r}" for key, value in values.items() if key not in usual or differs(value, usual[key]))
    return f"{name}({', '.join(said)})"


def differs(value: Any, other: Any) -> bool:
    """Return whether two values of a setting differ; ``True`` and ``1`` do."""
    return type(value) is not type(other) or bool(value != other)


def defaults(kind: type[Component]) -> dict[str, Any]:
    """Return the default of every setting that has one."""
    out = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.default is not dataclasses.MISSING:
            out[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            out[field.name] = field.default_factory()
    try:  # as they are kept: a whole number is kept as a float where a float is asked for
        return kind(**out).values() if len(out) == len(kind.setting_names()) else out
    except ValidationError:
        return out


def described(kind: type) -> str:
    """Return words for a class: its name, with the file and line where it is defined if they can be told."""
    try:
        file, (_, line) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return f"{kind.__name__} ({kind.__module__})"
    return f"{kind.__name__} ({file}, line {line})"


def missing(kind: type[Component]) -> list[str]:
    """Return the methods that a class has to define and does not."""
    return [name for name in dir(kind) if getattr(getattr(kind, name, None), "__isabstractmethod__", False)]


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str | Component)


def _document(value: Any) -> Any:
    if isinstance(value, Component):
        return {"name": value.label, **value.settings()}
    return [_document(one) for one in value] if isinstance(value, tuple) else value
