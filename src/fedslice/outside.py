"""Objects of a user's own code, by name: ``MODULE:NAME``, importable from the working directory, or ``FILE.py:NAME``.

Importing a module runs it. So names are read from what a user types and never from a run directory.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fedslice.core.errors import UserError, nearest, shown


def is_reference(name: object) -> bool:
    """Whether this names an object of the user's code.

    >>> is_reference("my_shop:task"), is_reference("tasks/shop.py:make"), is_reference("movielens")
    (True, True, False)
    """
    return isinstance(name, str) and ":" in name


def load(reference: str) -> Any:
    """Return the object that a reference names."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise UserError(f"{shown(reference)} is no reference; write MODULE:NAME or path/to/file.py:NAME.")
    found: Any = _file(place) if place.endswith(".py") else _module(place)
    for word in name.split("."):
        if not hasattr(found, word):
            near = nearest(word, [one for one in dir(found) if not one.startswith("_")])
            hint = f"did you mean {place}:{near}?" if near else "define it there, or correct the name."
            raise UserError(f"{reference}: {place} has no {word!r}; {hint}")
        found = getattr(found, word)
    return found


def make(reference: str, kind: type | tuple[type, ...]) -> Any:
    """Return the object of a kind that a reference names: itself, or what a function without arguments makes."""
    found = load(reference)
    if isinstance(found, kind):
        return found
    wanted = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
    if isinstance(found, type) or not callable(found):
        raise UserError(f"{reference} is {shown(found)}, expected a {wanted} or a function that returns one.")
    made = _made(reference, found)
    if not isinstance(made, kind):
        raise UserError(f"{reference}() returned {shown(made)}, expected a {wanted}.")
    return made


def _made(reference: str, function: Any) -> Any:
    import torch

    return _called(reference, function, torch.get_default_dtype())


@lru_cache(maxsize=8)
def _called(reference: str, function: Any, precision: Any) -> Any:  # noqa: ARG001
    """What a function makes, once: the runs of a comparison share a task."""
    try:
        return function()
    except UserError as error:
        raise UserError(f"{reference}(): {error}") from error
    except Exception as error:
        raise _broken(f"{reference}()", error) from error


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
    path = Path(name)
    if not path.is_file():
        raise UserError(f"{name}: there is no such file; write path/to/file.py:NAME.")
    return _loaded(path.resolve(), path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _loaded(path: Path, changed: int) -> ModuleType:  # noqa: ARG001
    """A file as a module, once as long as it does not change. It can import what lies beside it."""
    name = f"_fedslice_{path.stem}_{abs(hash(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} cannot be imported; give a file of Python.")
    module = importlib.util.module_from_spec(spec)
    _importable(path.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise _broken(str(path), error) from error
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
