"""The exhibits as they are written down: a folder for each paper, with one file per exhibit and ``setups.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedslice.core.errors import UserError, unknown
from fedslice.papers.exhibits import Exhibit, Setup
from fedslice.settings import first_problem

Model = TypeVar("Model", bound=BaseModel)
_SETUPS = "setups"
_FORMER = {"S0": "fedsubavg", "S1": "fedsubavg-draft", "S2": "fdrl", "S3": "feddd", "S4": "flss"}


def names() -> list[str]:
    """Return the names of all exhibits, such as ``fedsubavg/table2``."""
    found = (name for name in _files() if not name.endswith(f"/{_SETUPS}"))
    return sorted(found, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def present(name: str) -> str:
    """Return the present name of an exhibit, whose paper may be called by its former number: ``S0/table2``."""
    paper, slash, rest = name.partition("/")
    return f"{_FORMER.get(paper, paper)}{slash}{rest}"


def load(name: str) -> tuple[Exhibit, dict[str, Setup]]:
    """Return an exhibit with the setups that its rows name."""
    name = present(name)
    if name not in names():
        raise unknown("exhibit", name, names())
    content = _read(name)
    like = content.pop("like", None)
    if like is not None:  # a figure of a table's runs
        content = _read(like) | content
    common = {key: content.pop(key) for key in ("cells", "claims", "targets", "whole") if key in content}
    content["row"] = [common | line for line in content["row"]]  # what a row does not say, it has from the exhibit
    exhibit = _checked(Exhibit, content, name)
    return exhibit, setups(setup for line in exhibit.row for setup in line.setups)


def setups(wanted: Iterable[str]) -> dict[str, Setup]:
    """Setups by name, each once."""
    written = {key: setup for file in _files() if file.endswith(f"/{_SETUPS}") for key, setup in _read(file).items()}
    return {setup: _checked(Setup, _whole(setup, written), setup) for setup in dict.fromkeys(wanted)}


def _whole(name: str, written: Mapping[str, Any]) -> dict[str, Any]:
    """A setup with what it takes over from the one it is like."""
    if name not in written:
        raise unknown("setup", name, written)
    own = {key: value for key, value in written[name].items() if key != "like"}
    return _over(_whole(written[name]["like"], written), own) if "like" in written[name] else own


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _over(base[key], own[key])
        for key in base.keys() & own.keys()
        if isinstance(base[key], dict) and isinstance(own[key], dict)
    }
    return {**base, **own, **both}


def _checked(kind: type[Model], content: Mapping[str, Any], where: str) -> Model:
    try:
        return kind(**content)
    except ValidationError as error:
        raise UserError(f"{where}: {first_problem(error)}.") from None


def _files() -> list[str]:
    folders = [folder for folder in _folder().iterdir() if folder.is_dir()]
    found = (f"{folder.name}/{file.name}" for folder in folders for file in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def _folder() -> Traversable:
    return resources.files("fedslice.papers")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(_folder().joinpath(f"{name}.toml").read_text(encoding="utf-8"))
