"""Plain data from a pickle, without unpickling it.

A pickle is a program for a stack machine, and two of its instructions call whatever the file names. Here the program
is read (`pickletools.genops` only takes it apart) and run on a machine that knows how to put numbers, texts, lists and
dictionaries together and calls nothing: the names by which NumPy saves an array of bytes are recognised as words, and
the array is made from its bytes after its size was checked. Every other name or instruction is refused.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.core.errors import UserError

MAX_STEPS = 1 << 20
"""Limit of a pickle's instructions, one byte of which can take a hundred; the largest official file has 0.2 million."""


def plain(place: str, raw: bytes) -> Any:
    """What the pickle holds: numbers, None, texts, lists, tuples, dictionaries by `str` and uint8 arrays in them.

    Texts of Python 2 arrive as `bytes`.
    """
    try:
        return _Machine().run(raw)
    except _RefusedError as refused:
        found = f"{refused}, expected only numbers, texts, lists, dictionaries and arrays of bytes"
    except ValueError as error:  # from genops: cut short, or no pickle at all
        found = f"something that is no pickle ({str(error)[:80]}), expected the whole file"
    raise UserError(f"{place} holds {found}; fetch the official file.") from None


class _RefusedError(Exception):
    """What the machine does not do."""


@dataclass(frozen=True)
class _Name:
    """A name that occurs in the file; nothing is ever looked up by it."""

    text: str


@dataclass
class _Array:
    """An array between its announcement and its values."""

    values: NDArray[np.uint8] | None = None


class _Dtype:
    """The type of unsigned bytes, the only one."""


_MARK = object()
_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_NAMES = (*_RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode")
_NOTHING = ("PROTO", "FRAME")
_VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINBYTES", "BINBYTES", "BINUNICODE", "SHORT_BINUNICODE")
_PYTHON_2_TEXTS = ("SHORT_BINSTRING", "BINSTRING")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS, _GETS = ("BINPUT", "LONG_BINPUT"), ("BINGET", "LONG_BINGET")


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, raw: bytes) -> Any:
        for number, (code, argument, _) in enumerate(pickletools.genops(raw)):
            if code.name == "STOP":
                break
            if number == MAX_STEPS:
                raise _RefusedError(f"more than {MAX_STEPS:,} instructions")
            self._step(code.name, argument)
        return self._pop()

    def _step(self, code: str, argument: Any) -> None:  # noqa: PLR0912 (one branch for each kind of instruction)
        if code in _NOTHING:
            return
        if code in _VALUES:
            self.stack.append(argument)
        elif code in _PYTHON_2_TEXTS:
            self.stack.append(argument.encode("latin-1"))
        elif code in _CONSTANTS:
            self.stack.append(_CONSTANTS[code])
        elif code in _TUPLES:
            self.stack.append(tuple(reversed([self._pop() for _ in range(_TUPLES[code])])))
        elif code == "MARK":
            self.stack.append(_MARK)
        elif code == "TUPLE":
            self.stack.append(tuple(self._marked()))
        elif code == "EMPTY_LIST":
            self.stack.append([])
        elif code == "EMPTY_DICT":
            self.stack.append({})
        elif code in ("APPEND", "APPENDS"):
            more = self._marked() if code == "APPENDS" else [self._pop()]
            self._top(list).extend(more)
        elif code in ("SETITEM", "SETITEMS"):
            self._set(self._marked() if code == "SETITEMS" else [self._pop(), self._pop()][::-1])
        elif code in _PUTS or code == "MEMOIZE":
            self.memo[len(self.memo) if code == "MEMOIZE" else argument] = self._top(object)
        elif code in _GETS:
            if argument not in self.memo:
                raise _RefusedError(f"a reference to number {argument}, which it does not have")
            self.stack.append(self.memo[argument])
        elif code == "GLOBAL":
            self._name(argument)
        elif code == "STACK_GLOBAL":
            name, module = self._pop(), self._pop()
            self._name(f"{module} {name}" if isinstance(module, str) and isinstance(name, str) else "of no text")
        elif code == "REDUCE":
            arguments, name = self._pop(), self._pop()
            self.stack.append(_made(name, arguments))
        elif code == "BUILD":
            state = self._pop()
            _fill(self._top(object), state)
        else:
            raise _RefusedError(f"the instruction {code}")

    def _pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise _RefusedError("an instruction without its operands")
        return self.stack.pop()

    def _top(self, kind: type) -> Any:
        if not self.stack or self.stack[-1] is _MARK or not isinstance(self.stack[-1], kind):
            raise _RefusedError(f"an instruction without its {kind.__name__}")
        return self.stack[-1]

    def _marked(self) -> list[Any]:
        """What was put on the stack since the last mark."""
        items: list[Any] = []
        while self.stack and self.stack[-1] is not _MARK:
            items.append(self.stack.pop())
        if not self.stack:
            raise _RefusedError("an instruction without its mark")
        self.stack.pop()
        return items[::-1]

    def _set(self, items: list[Any]) -> None:
        target = self._top(dict)
        if len(items) % 2:
            raise _RefusedError("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise _RefusedError(f"a key of type {type(key).__name__}")
            target[_text(key)] = value.values if isinstance(value, _Array) else value

    def _name(self, text: str) -> None:
        if text not in _NAMES:
            raise _RefusedError(f"the name {text[:80]!r}")
        self.stack.append(_Name(text))


def _text(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _made(name: Any, arguments: Any) -> Any:
    """What stands for a call: an empty array, the type of bytes, or a text as the bytes it spells."""
    called = name.text if isinstance(name, _Name) else ""
    if not isinstance(arguments, tuple) or len(arguments) not in (2, 3):
        raise _RefusedError(f"a call of {called or 'something without a name'} that saves no array")
    first = arguments[0]
    if called in _RECONSTRUCT and first == _Name("numpy ndarray"):
        return _Array()
    if called == "numpy dtype" and _text(first) == "u1":
        return _Dtype()
    if called == "_codecs encode" and isinstance(first, str) and _text(arguments[1]) == "latin1":
        return first.encode("latin-1")
    raise _RefusedError(f"a call of {called or 'something without a name'} that saves no array of bytes")


def _fill(target: Any, state: Any) -> None:
    """The state of a type says nothing new; that of an array is (version, shape, type, by columns?, bytes)."""
    if isinstance(target, _Dtype):
        return
    if not isinstance(target, _Array) or not isinstance(state, tuple) or len(state) != 5:
        raise _RefusedError("the state of something that is no array")
    _, shape, kind, by_columns, raw = state
    if not isinstance(kind, _Dtype) or not isinstance(raw, bytes) or not _fits(shape, len(raw)):
        raise _RefusedError("an array whose bytes do not fit its shape")
    target.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _fits(shape: Any, size: int) -> bool:
    if not isinstance(shape, tuple) or not 1 <= len(shape) <= 4:
        return False
    return all(type(one) is int and 1 <= one <= size for one in shape) and math.prod(shape) == size
