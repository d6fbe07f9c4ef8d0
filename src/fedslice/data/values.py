"""A column of a table: its type, its missing values, and its values as numbers, ids or lists of these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.core.errors import UserError, shown
from fedslice.data.columns import Array
from fedslice.data.ragged import Ragged, offsets_of
from fedslice.data.samples import Feature
from fedslice.data.split import Ints
from fedslice.data.vocabulary import Vocabulary

_YEAR_FIRST = r"^\d{4}[-/]\d"


class Kind(Enum):
    """The kind of a feature's values."""

    IDS = "ids"
    NUMBERS = "numbers"


class Column:
    """One column, without missing values.

    Args:
        series: The column as it is in the table.
        fill: What stands for missing values, by column.
        separator: What separates the items of a text that holds a list.
        declared: Whether whole numbers are ids.
    """

    def __init__(self, series: pl.Series, fill: Mapping[str, Any], separator: str | None, declared: bool):
        self.name = series.name
        self._whose = f"column {self.name!r}"
        series = _plain(series)
        if separator is not None:
            series = self._split(series, separator)
        if self.name in fill:
            series = self._filled(series, fill[self.name])
        self._check_missing(series)
        if declared:
            series = self._as_ids(series)
        self._series = series
        self._declared = declared

    @property
    def values(self) -> pl.Series:
        """All values; of lists those of all lists, end to end."""
        if not isinstance(self._series.dtype, pl.List | pl.Array):
            return self._series
        return _flat(self._series)

    @property
    def dtype(self) -> pl.DataType:
        """The type of the values, of lists that of their items."""
        return _inner(self._series.dtype)

    @property
    def kind(self) -> Kind:
        """Whether the values are ids or numbers; anything else is refused."""
        dtype, inner = self._series.dtype, self.dtype
        if inner == pl.String or (self._declared and inner == pl.Int64):
            return Kind.IDS
        if self._declared:
            raise UserError(f"{self._whose} holds {dtype} and ids are texts or whole numbers; convert it.")
        if inner.is_numeric() or inner in (pl.Boolean, pl.Null):
            return Kind.NUMBERS
        if inner.is_temporal():
            raise UserError(
                f"{self._whose} holds times ({dtype}), expected numbers or texts; name it by time= if it orders the "
                "samples, make numbers of it (hours, weekdays), or leave it out (features=[...])."
            )
        if isinstance(inner, pl.List | pl.Array):
            raise UserError(f"{self._whose} holds lists of lists ({dtype}), expected lists of texts or of numbers.")
        raise UserError(
            f"{self._whose} holds values of type {dtype}, expected texts, numbers, true and false, or lists of these; "
            "convert it or leave it out (features=[...])."
        )

    def among(self, chosen: NDArray[np.bool_]) -> pl.Series:
        """The values of the chosen rows, each distinct one at least once."""
        part = self._series.filter(pl.Series(chosen))
        flat = _flat(part) if isinstance(part.dtype, pl.List | pl.Array) else part
        return flat.alias("value")

    def feature(self, vocabulary: Vocabulary | None) -> Feature:
        """Numbers [n], ids [n], or sequences of either; [n, width] for lists of one width by their type."""
        kind = self.kind
        flat = self._coded(vocabulary) if kind is Kind.IDS else self._floats(self.values)
        if isinstance(self._series.dtype, pl.Array):
            return flat.view(len(self._series), -1)
        if isinstance(self._series.dtype, pl.List):
            return Ragged(flat, offsets_of(torch.from_numpy(_lengths(self._series))))
        return flat

    def numbers(self, where: str) -> Tensor:
        """Numbers [n], for a group of columns."""
        dtype = self._series.dtype
        if self.kind is not Kind.NUMBERS or isinstance(dtype, pl.List | pl.Array):
            raise UserError(f"{where} has {self._whose} of type {dtype}, expected one number per row.")
        return self._floats(self._series)

    def label(self, classes: bool | None) -> tuple[Tensor, Vocabulary | None]:
        """Labels [n]: float numbers, or int64 classes with their vocabulary."""
        series, dtype = self._series, self._series.dtype
        number = dtype.is_numeric() or dtype == pl.Boolean
        if not number and dtype != pl.String:
            raise UserError(f"label {self.name!r} holds {dtype}, expected one number, text or true or false per row.")
        if classes is None:
            classes = not dtype.is_float()
            if dtype.is_integer() and not _from_zero(series):
                raise UserError(
                    f"label {self.name!r} holds whole numbers from {series.min()!r} to {series.max()!r}; give "
                    "classes=True if they are classes, or classes=False if they are numbers to predict."
                )
        if not classes:
            if not number:
                raise UserError(f"label {self.name!r} holds texts, which are classes; leave classes=False out.")
            return self._floats(series), None
        if dtype.is_float():
            if not (series == series.round()).all() or not series.is_finite().all():
                raise UserError(
                    f"label {self.name!r} holds broken numbers, which are no classes; leave out classes=True."
                )
            series = series.cast(pl.Int64)
        vocabulary = Vocabulary(series, unknown=False)
        return vocabulary.encode(series), vocabulary

    def clients(self) -> tuple[Array, Ints]:
        """The distinct ids in order, and each row's place among them."""
        series = self._series
        if series.dtype != pl.String and not series.dtype.is_integer():
            raise UserError(f"client {self.name!r} holds {series.dtype}, expected texts or whole numbers; convert it.")
        names = series.unique().sort()
        if names.dtype == pl.String and (empty := names.str.strip_chars() == "").any():
            row = series.is_in(names.filter(empty).to_list()).arg_true()[0]
            raise UserError(f"client {self.name!r} is empty in row {row}; give the row a client or leave it out.")
        place = series.replace_strict(names, pl.Series(np.arange(len(names))), return_dtype=pl.Int64)
        return np.asarray(names.to_list()) if names.dtype == pl.String else self._array(names), place.to_numpy()

    def times(self) -> Array:
        """Numbers that ascend with time."""
        series = self._series
        if series.dtype == pl.String:
            series = self._parsed(series)
        if not (series.dtype.is_temporal() or series.dtype.is_numeric()):
            raise UserError(f"time {self.name!r} holds {series.dtype}, expected times or numbers; convert it.")
        return self._array(series.to_physical())

    def booleans(self) -> NDArray[np.bool_]:
        """True and false, also from 1 and 0."""
        series = self._series
        if series.dtype.is_integer() and series.is_between(0, 1).all():
            series = series.cast(pl.Boolean)
        if series.dtype != pl.Boolean:
            raise UserError(f"test {self.name!r} holds {series.dtype}, expected true for the samples to test on, or 1.")
        return series.to_numpy()

    def _array(self, series: pl.Series) -> Array:
        try:
            return series.to_numpy()
        except pl.exceptions.PolarsError:
            raise UserError(f"{self._whose} holds {series.dtype}, which NumPy does not know; convert it.") from None

    def _coded(self, vocabulary: Vocabulary | None) -> Tensor:
        assert vocabulary is not None
        return vocabulary.encode(self.values).to(torch.int32)

    def _floats(self, series: pl.Series) -> Tensor:
        """Numbers in the default precision, which must hold whole ones exactly."""
        dtype = torch.get_default_dtype()
        exact = 2 ** round(1 - math.log2(torch.finfo(dtype).eps))
        if series.dtype.is_integer() and len(series):
            most = max(abs(int(series.min())), abs(int(series.max())))  # type: ignore[arg-type]
            if most > exact:
                raise UserError(
                    f"{self._whose} holds whole numbers up to {most:,}, but {str(dtype)[6:]} is exact up to {exact:,}; "
                    f"name it in ids=[...] if they are ids, else divide it by a unit."
                )
        return torch.from_numpy(series.cast(pl.Float64).to_numpy(writable=True)).to(dtype)

    def _as_ids(self, series: pl.Series) -> pl.Series:
        """Whole numbers of any size as int64; lists that are all empty, whose type is not known, too."""
        inner = _inner(series.dtype)
        if not (inner.is_integer() or inner == pl.Null):
            return series
        try:
            return series.cast(_of(series.dtype, pl.Int64()))
        except pl.exceptions.PolarsError:
            raise UserError(f"{self._whose} holds a whole number beyond 64 bits; convert it to texts.") from None

    def _split(self, series: pl.Series, separator: str) -> pl.Series:
        if not isinstance(separator, str) or not separator:
            raise UserError(f"lists[{self.name!r}] is {shown(separator)}, expected the text between two items, as '|'.")
        if series.dtype == pl.Null or series.dtype.is_integer():  # a CSV file in which no list has two items
            series = series.cast(pl.String)
        if series.dtype != pl.String:
            raise UserError(f"{self._whose} holds {series.dtype}, which lists= cannot split; it splits texts.")
        series = series.fill_null("")
        text = pl.col(self.name)
        items = pl.when(text != "").then(text.str.split(separator)).otherwise(pl.lit([], dtype=pl.List(pl.String)))
        return series.to_frame().select(items.alias(self.name)).to_series()

    def _filled(self, series: pl.Series, value: Any) -> pl.Series:
        dtype = series.dtype
        if dtype == pl.Null:
            return pl.Series(self.name, [value] * len(series))
        if (
            dtype.is_numeric()
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
        ):
            filled = series.cast(pl.Float64) if isinstance(value, float) and dtype.is_integer() else series
            return (filled.fill_nan(value) if filled.dtype.is_float() else filled).fill_null(value)
        fits = {pl.String: str, pl.Boolean: bool, pl.List: list}.get(dtype.base_type())
        if fits is None or not isinstance(value, fits):
            raise UserError(
                f"fill[{self.name!r}] is {shown(value)} and {self._whose} holds {dtype}; give a value of its type."
            )
        return series.to_frame().select(pl.col(self.name).fill_null(pl.lit(value, dtype=dtype))).to_series()

    def _check_missing(self, series: pl.Series) -> None:
        self._refuse_missing(_missing(series), "")
        if isinstance(series.dtype, pl.List | pl.Array) and (holes := _missing(_flat(series))).any():
            owner = np.repeat(np.arange(len(series)), _lengths(series))
            rows = np.zeros(len(series), np.bool_)
            rows[owner[holes.to_numpy()]] = True
            self._refuse_missing(pl.Series(rows), "lists with ")

    def _refuse_missing(self, missing: pl.Series, what: str) -> None:
        if count := int(missing.sum()):
            rows = f"rows, first row {missing.arg_true()[0]}" if count > 1 else f"row, row {missing.arg_true()[0]}"
            raise UserError(
                f"{self._whose} has {what}missing values in {count:,} {rows}; fill them (fill={{{self.name!r}: ...}}) "
                "or leave these rows out."
            )

    def _parsed(self, series: pl.Series) -> pl.Series:
        try:
            found = series.str.to_datetime(strict=False)
        except pl.exceptions.PolarsError:
            found = pl.Series([None] * len(series), dtype=pl.Datetime)
        odd = (found.is_null() | ~series.str.contains(_YEAR_FIRST)).arg_true()
        if len(odd):
            raise UserError(
                f"time {self.name!r} row {odd[0]} is {shown(series[odd[0]])}, expected a time as 2024-01-31 or "
                "2024-01-31 10:00:00, or a number."
            )
        return found


def _plain(series: pl.Series) -> pl.Series:
    """Categories as texts and decimals as numbers, in lists too."""
    inner = _inner(series.dtype)
    if inner in (pl.Categorical, pl.Enum):
        return series.cast(_of(series.dtype, pl.String()))
    if inner == pl.Decimal:
        return series.cast(_of(series.dtype, pl.Float64()))
    return series


def _inner(dtype: pl.DataType) -> pl.DataType:
    """The type of a list's items, or of other values."""
    return cast(pl.DataType, dtype.inner) if isinstance(dtype, pl.List | pl.Array) else dtype


def _of(dtype: pl.DataType, inner: pl.DataType) -> pl.DataType:
    """The type with other items."""
    if isinstance(dtype, pl.Array):
        return pl.Array(inner, dtype.size)
    return pl.List(inner) if isinstance(dtype, pl.List) else inner


def _flat(series: pl.Series) -> pl.Series:
    """The items of all lists, end to end."""
    if isinstance(series.dtype, pl.Array):
        return series.explode()
    return series.filter(series.list.len() > 0).explode()


def _lengths(series: pl.Series) -> Ints:
    """Items in each list."""
    if isinstance(series.dtype, pl.Array):
        return np.full(len(series), series.dtype.size)
    return series.list.len().cast(pl.Int64).to_numpy(writable=True)


def _missing(series: pl.Series) -> pl.Series:
    return series.is_null() | series.is_nan() if series.dtype.is_float() else series.is_null()


def _from_zero(series: pl.Series) -> bool:
    """Whether whole numbers are 0, 1, … without a gap, as classes are numbered."""
    return series.min() == 0 and series.max() == series.n_unique() - 1
