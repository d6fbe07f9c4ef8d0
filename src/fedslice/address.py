"""Objects by their address: ``module:name``, or ``file.py:name`` for a file that is on no path."""

from __future__ import annotations

import hashlib
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from fedslice.core.errors import UserError, nearest, shown


def is_address(text: str) -> bool:
    """Return whether a text names an object by its address."""
    return ":" in text


def load(address: str) -> Any:
    """Return the object at an address. A file is run once, however often it is asked for.

    Raises:
        UserError: If there is no such file, module or object, or if it fails to load.
    """
    where, _, name = address.rpartition(":")
    if not where or not name:
        raise UserError(f"{shown(address)} is no address; write module:name or path/to/file.py:name.")
    try:
        module = _file(Path(where)) if where.endswith(".py") else _module(where)
    except UserError:
        raise
    except Exception as error:  # whatever a user's file raises
        raise UserError(f"{where} could not be loaded: {type(error).__name__}: {error}") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = nearest(part, [one for one in vars(found) if not one.startswith("_")])
            hint = f"did you mean {where}:{near}?" if near else "name something that it defines."
            raise UserError(f"{where} has no {shown(part)}; {hint}")
        found = getattr(found, part)
    return found


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:  # as with python -m: what lies here can be imported
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # the module is there, and another that it needs is not
        raise UserError(
            f"there is no module {shown(name)}; install it, go to the folder that holds it, or give a file, as in "
            "my_file.py:name."
        ) from None


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {path}; give the path of a Python file.")
    whole = path.resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(whole) and module.__name__ != "__main__":
            return module
    name = f"{whole.stem}_{hashlib.sha256(str(whole).encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, whole)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
