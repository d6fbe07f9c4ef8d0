"""Objects of a user's own code by their address: ``MODULE:NAME``, importable from here, or ``FILE.py:NAME``.

Importing a module runs it. So addresses are read from what a user types and never from a run directory.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fedslice.core.errors import UserError, nearest, shown


def is_address(name: object) -> bool:
    """Return whether this is the address of an object.

    >>> is_address("my_shop:task"), is_address("tasks/shop.py:make"), is_address("movielens")
    (True, True, False)
    """
    return isinstance(name, str) and ":" in name


def load(address: str) -> Any:
    """Return the object at an address."""
    place, _, name = address.rpartition(":")
    if not place or not name:
        raise UserError(f"{shown(address)} is no address; write MODULE:NAME or path/to/file.py:NAME.")
    found: Any = _file(place) if place.endswith(".py") else _module(place)
    for word in name.split("."):
        if not hasattr(found, word):
            near = nearest(word, [one for one in dir(found) if not one.startswith("_")])
            hint = f"did you mean {place}:{near}?" if near else "define it there, or correct the name."
            raise UserError(f"{place} has no {word!r}; {hint}")
        found = getattr(found, word)
    return found


def make(address: str, kind: type | tuple[type, ...]) -> Any:
    """Return the object of a kind at an address: itself, or what a function without arguments makes."""
    found = load(address)
    if isinstance(found, kind):
        return found
    wanted = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
    if isinstance(found, type) or not callable(found):
        what = "a module" if isinstance(found, ModuleType) else shown(found)
        raise UserError(f"{address} is {what}, expected a {wanted} or a function that returns one.")
    made = _made(address, found)
    if not isinstance(made, kind):
        raise UserError(f"{address}() returned {shown(made)}, expected a {wanted}.")
    return made


def _made(address: str, function: Any) -> Any:
    import torch

    return _called(address, function, torch.get_default_dtype())


@lru_cache(maxsize=8)
def _called(address: str, function: Any, precision: Any) -> Any:  # noqa: ARG001
    """Return the result of a function, called once: the runs of a comparison share a task."""
    try:
        return function()
    except UserError as error:
        raise UserError(f"{address}(): {error}") from error
    except Exception as error:
        raise _broken(f"{address}()", error) from error


def _module(name: str) -> ModuleType:
    _importable(Path.cwd())
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(
                f"there is no module {error.name!r} in the working directory {Path.cwd()} or among the installed "
                "packages; start fedslice in the folder that holds it, or write path/to/file.py:NAME."
            ) from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _importable(folder: Path) -> None:
    """Let modules of a folder be imported, after all that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _file(name: str) -> ModuleType:
    """A file as a module, which is run once. It can import what lies beside it."""
    path = Path(name)
    if not path.is_file():
        raise UserError(f"there is no file {name}; write path/to/file.py:NAME.")
    whole = path.resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(whole) and module.__name__ != "__main__":
            return module
    own = f"{whole.stem}_{hashlib.sha256(str(whole).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(own, whole)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} cannot be imported; give a file of Python.")
    module = importlib.util.module_from_spec(spec)
    _importable(whole.parent)
    sys.modules[own] = module  # before it runs: dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[own]
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        raise _broken(name, error) from error
    return module


def _broken(what: str, error: Exception) -> UserError:
    """A sentence about code of the user's that raised: what, and on which line."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    where = f"{own[-1].filename}, line {own[-1].lineno}" if own else ""
    if line is not None:
        where = f"{error.filename}, line {line}"  # type: ignore[attr-defined]
    first = next(iter(str(error).splitlines()), "")
    return UserError(f"{what} raised {type(error).__name__} ({first!r:.120}){f' at {where}' if where else ''}.")
