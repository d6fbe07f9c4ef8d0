"""Plain data from pickles, as the official CIFAR files are: an unpickler that knows five names and calls nothing else.

The instructions are looked through before any of them runs (`pickletools.genops` only takes them apart), because some
take memory, or the stack, out of proportion to their size.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from fedslice.core.errors import UserError

MAX_STEPS = 1 << 20
"""Limit of a pickle's instructions, one byte of which can take a hundred; the largest official file has 0.2 million."""
_MAX_TUPLES = 1000  # hashing one inside the other takes a piece of the stack for each
_INSTRUCTIONS = frozenset(
    {"PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"}
    | {"BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINBYTES", "BINBYTES", "BINUNICODE", "SHORT_BINUNICODE"}
    | {"SHORT_BINSTRING", "BINSTRING", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "EMPTY_LIST", "APPEND"}
    | {"APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"}
    | {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
)


def plain(place: str, raw: bytes) -> Any:
    """Return what a pickle holds.

    Args:
        place: Name of the file, for messages.
        raw: The pickle.

    Returns:
        Numbers, None, texts, lists, tuples and dictionaries. In a dictionary at the top, uint8 arrays and texts of
        Python 2 as keys are what they stand for; elsewhere texts of Python 2 are ``bytes``.

    Raises:
        UserError: If it holds anything else.
    """
    try:
        _look_through(raw)
        content = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(
            f"{place} holds something else than numbers, texts, lists, dictionaries and arrays of bytes "
            f"({str(error)[:80]}); fetch the official file."
        ) from None
    if isinstance(content, dict):
        return {_text(key): value.values if isinstance(value, _Array) else value for key, value in content.items()}
    return content


def _look_through(raw: bytes) -> None:
    """Raise ValueError for what no pickle of plain data has."""
    tuples = 0
    for number, (code, argument, _) in enumerate(pickletools.genops(raw)):
        tuples += code.name.startswith("TUPLE")
        if code.name not in _INSTRUCTIONS:
            raise ValueError(f"the instruction {code.name}")
        if number == MAX_STEPS or tuples > _MAX_TUPLES:
            raise ValueError(f"more than {MAX_STEPS:,} instructions, or {_MAX_TUPLES:,} tuples")
        if (
            code.name.endswith("BINPUT") and int(argument or 0) > MAX_STEPS
        ):  # an unpickler takes memory for all places before it
            raise ValueError(f"a reference to number {argument}")


class _Unpickler(pickle.Unpickler):
    """Knows the names by which NumPy saves an array of bytes, and no other."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name."""
        if f"{module} {name}" not in _KNOWN:
            raise ValueError(f"the name {f'{module} {name}'[:60]!r}")
        return _Name(_KNOWN[f"{module} {name}"])


class _Name:
    """Something that a file may name and call, and whose attributes it can not set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("the state of something that is no array")


class _Bytes:
    """The type of unsigned bytes, the only one. Its state says nothing new."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """An array, once its state is known: (version, shape, type, by columns?, bytes)."""

    __slots__ = ("values",)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, raw = state
        if not isinstance(kind, _Bytes) or not isinstance(raw, bytes) or not _fits(shape, len(raw)):
            raise ValueError("an array whose bytes do not fit its shape")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _dtype(code: Any, *_: Any) -> _Bytes:
    if _text(code) != "u1":
        raise ValueError("an array of something else than bytes")
    return _Bytes()


def _encode(text: str, encoding: Any) -> bytes:
    if _text(encoding) != "latin1":
        raise ValueError("a text in another encoding")
    return text.encode("latin-1")


_KNOWN: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": _reconstruct,
    "numpy._core.multiarray _reconstruct": _reconstruct,
    "numpy ndarray": _reconstruct,
    "numpy dtype": _dtype,
    "_codecs encode": _encode,
}


def _text(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _fits(shape: Any, size: int) -> bool:
    if not isinstance(shape, tuple) or not 1 <= len(shape) <= 4:
        return False
    return all(type(one) is int and 1 <= one <= size for one in shape) and math.prod(shape) == size
