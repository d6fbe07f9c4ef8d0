"""Numbers for the distinct values of a column, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import polars as pl
import torch
from torch import Tensor

from fedslice.core.errors import UserError, shown

UNKNOWN = 0  # also what fills a sequence up inside a batch, see fedslice.data.ragged.PAD

_KINDS: Mapping[type, Any] = {str: pl.String, int: pl.Int64, bool: pl.Boolean}
_WORDS: Mapping[Any, str] = {pl.String: "texts", pl.Int64: "whole numbers", pl.Boolean: "true or false"}


class Vocabulary:
    """The distinct values of a column in ascending order, each with its place as its number.

    With ``unknown`` the numbers begin at 1, and 0 stands for every value that is not in the vocabulary. It is also
    what fills a sequence up inside a batch. Without, the numbers begin at 0 and another value is an error; labels are
    numbered so.

    Args:
        values: Texts, whole numbers, or booleans; repeated ones count once.
        unknown: Whether 0 is kept for other values.

    Example:
        >>> colours = Vocabulary(["red", "blue", "red"])
        >>> colours.size, colours.encode(["blue", "red", "green"]).tolist(), colours.decode([1, 0])
        (3, [1, 2, 0], ['blue', None])
    """

    def __init__(self, values: Iterable[Any] = (), *, unknown: bool = True):
        self._values = _series(values).drop_nulls().unique().sort()
        self.unknown = unknown

    @property
    def size(self) -> int:
        """Numbers in use, the one for unknown values included: the rows of an embedding table, or the classes."""
        return len(self._values) + self.unknown

    @property
    def values(self) -> list[Any]:
        """The values in order, without the unknown one."""
        return self._values.to_list()

    def encode(self, values: Iterable[Any]) -> Tensor:
        """Return the number of each value, int64 [n]."""
        given = _series(values)
        if not len(self._values) or not len(given):
            given = given.cast(self._values.dtype, strict=False)
        if given.dtype != self._values.dtype:
            raise UserError(
                f"a vocabulary of {_WORDS[self._values.dtype]} was given {_WORDS[given.dtype]} to encode, "
                f"for example {shown(given.drop_nulls().first())}; convert them."
            )
        first = int(self.unknown)
        numbers = pl.Series(range(first, first + len(self._values)), dtype=pl.Int64)
        found = given.replace_strict(self._values, numbers, default=None, return_dtype=pl.Int64)
        if not self.unknown and found.null_count():
            row = int(found.is_null().arg_true()[0])
            raise UserError(
                f"{shown(given[row])} is not among the {self.size} values of the vocabulary, which has no number for "
                "unknown ones; correct the value."
            )
        return torch.from_numpy(found.fill_null(UNKNOWN).to_numpy(writable=True))

    def decode(self, numbers: Tensor | Iterable[int]) -> list[Any]:
        """Return the value of each number; ``None`` for the unknown one."""
        given = torch.as_tensor(numbers if isinstance(numbers, Tensor) else list(numbers)).cpu().flatten()
        if given.numel() and (given.is_floating_point() or int(given.min()) < 0 or int(given.max()) >= self.size):
            raise UserError(
                f"a vocabulary was given numbers from {given.min().item()} to {given.max().item()} to decode, "
                f"expected whole ones from 0 to {self.size - 1}."
            )
        values = [None, *self.values] if self.unknown else self.values
        return [values[number] for number in given.tolist()]

    def to_json(self) -> str:
        """Return the vocabulary as JSON: ``{"unknown": true, "values": [...]}``."""
        return json.dumps({"unknown": self.unknown, "values": self.values}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        """Return the vocabulary that :meth:`to_json` wrote."""
        try:
            return cls._from_data(json.loads(text))
        except (ValueError, RecursionError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"a vocabulary is not JSON ({error}); give what to_json returned.") from None

    @classmethod
    def _from_data(cls, found: Any) -> Vocabulary:
        if not isinstance(found, dict) or found.keys() != {"unknown", "values"}:
            raise UserError(f"a vocabulary has {shown(found)}, expected an object with unknown and values.")
        values, unknown = found["values"], found["unknown"]
        kinds = {type(one) for one in values} if isinstance(values, list) else {None}
        if not isinstance(unknown, bool) or len(kinds) > 1 or not kinds <= _KINDS.keys():
            raise UserError("a vocabulary's values are no list of texts or of whole numbers; give what to_json wrote.")
        one = cls(values, unknown=unknown)
        if not all(before < after for before, after in pairwise(values)):
            raise UserError("a vocabulary's values are not in ascending order, so their numbers cannot be told.")
        return one

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return (self.unknown, self._values.dtype) == (other.unknown, other._values.dtype) and self._values.equals(
            other._values
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Vocabulary({self.size} numbers, {shown(self._values.head(4).to_list())})"


def dumps(vocabularies: Mapping[str, Vocabulary]) -> str:
    """Return the vocabularies of several columns as one JSON object."""
    return json.dumps({name: json.loads(one.to_json()) for name, one in vocabularies.items()}, ensure_ascii=False)


def loads(text: str) -> dict[str, Vocabulary]:
    """Return the vocabularies that :func:`dumps` wrote, by column."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"vocabularies are not JSON ({error}); give what dumps returned.") from None
    if not isinstance(found, dict):
        raise UserError(f"vocabularies are {shown(found)}, expected an object with one entry for each column.")
    return {name: Vocabulary._from_data(one) for name, one in found.items()}


def _series(values: Iterable[Any]) -> pl.Series:
    """Values of one of the three kinds."""
    if isinstance(values, pl.Series):
        series = values
    else:
        given = values.tolist() if hasattr(values, "tolist") else list(values)
        kinds = {type(one) for one in given if one is not None}
        if len(kinds) > 1:
            names = " and ".join(sorted(kind.__name__ for kind in kinds))
            raise UserError(f"a vocabulary's values are of type {names}, expected one type; convert them.")
        kind = next(iter(kinds), str)
        if kind not in _KINDS:
            raise UserError(f"a vocabulary's values are of type {kind.__name__}, expected texts or whole numbers.")
        try:
            series = pl.Series(given, dtype=_KINDS[kind])
        except (ValueError, OverflowError, TypeError, pl.exceptions.PolarsError):
            raise UserError("a vocabulary has a number beyond 64 bits or a text that is not Unicode.") from None
    if series.dtype.is_integer():
        try:
            return series.cast(pl.Int64)
        except pl.exceptions.PolarsError:
            raise UserError("a vocabulary has a number beyond 64 bits; give it as a text.") from None
    if series.dtype not in _WORDS:
        raise UserError(f"a vocabulary's values are of type {series.dtype}, expected texts or whole numbers.")
    return series
