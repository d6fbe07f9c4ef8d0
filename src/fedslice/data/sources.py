"""Tables of samples from wherever they are: data frames, Hugging Face datasets, files, folders of files.

Everything becomes a polars frame. pandas is recognised by its frames and never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedslice.core.errors import UserError, shown

_READERS = (".csv", ".parquet")
_GZIP = b"\x1f\x8b"
_EXPECTED = (
    "a polars or pandas DataFrame, a Hugging Face Dataset, a CSV or Parquet file, or a folder with one such file for "
    "each client"
)


def read(source: Any, client: str) -> pl.DataFrame:
    """Return the table; a folder's files, one for each client, get a column ``client`` with their names."""
    if isinstance(source, str | Path):
        path = Path(source)
        return _folder(path, client) if path.is_dir() else _file(path)
    if isinstance(source, pl.DataFrame):
        return source
    if isinstance(source, pl.LazyFrame):
        return source.collect()
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(source, pandas.DataFrame):
        return _from_pandas(source)
    if isinstance(source, Mapping):
        names = ", ".join(map(repr, source)) or "none"
        raise UserError(f"from_frame was given several tables or columns ({names:.80}), expected {_EXPECTED}.")
    return _from_dataset(source)


def _from_dataset(source: Any) -> pl.DataFrame:
    """Hugging Face's Dataset says itself what it is in polars; PyArrow's tables go through the Arrow interface."""
    if callable(getattr(source, "to_polars", None)):
        frame = source.to_polars()
    elif hasattr(source, "__arrow_c_stream__"):
        frame = pl.DataFrame(source)
    elif callable(getattr(source, "to_pandas", None)):
        return _from_pandas(source.to_pandas())
    else:
        raise UserError(f"from_frame was given {type(source).__name__}, expected {_EXPECTED}.")
    if not isinstance(frame, pl.DataFrame):
        raise UserError(f"{type(source).__name__}.to_polars gave {type(frame).__name__}, expected a polars DataFrame.")
    return frame


def _from_pandas(frame: Any) -> pl.DataFrame:
    """Column by column and without PyArrow, which :func:`polars.from_pandas` needs for texts."""
    names = list(frame.columns)
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"a column is called {shown(name)}, expected a text; rename it with frame.columns = [...].")
        if names.count(name) > 1:
            raise UserError(f"two columns are called {name!r}; give each a name of its own.")
    return pl.DataFrame([_pandas_column(name, frame[name]) for name in names])


def _pandas_column(name: str, column: Any) -> pl.Series:
    values = column.to_numpy()
    if values.dtype.kind in "mM" and values.dtype != f"{values.dtype.kind}8[ns]":  # polars has no whole seconds
        values = values.astype(f"{values.dtype.kind}8[us]")
    if values.dtype.kind in "biufmM":
        return pl.Series(name, values.astype(np.float32) if values.dtype == np.float16 else values)
    missing = column.isna().to_numpy().tolist()
    items = [value.tolist() if isinstance(value, np.ndarray) else value for value in values.tolist()]
    return _strict(name, [None if gone else value for value, gone in zip(items, missing, strict=True)])


def _strict(name: str, values: list[Any]) -> pl.Series:
    """A column of one type, in lists too; whole and other numbers together are numbers."""
    kinds = {type(one) for one in values if one is not None}
    inner = {type(one) for row in values for one in row or () if one is not None} if kinds == {list} else set()
    if kinds | inner == {int, float}:
        return pl.Series(name, values, dtype=pl.Float64, strict=False)
    if len(inner) < 2 or inner == {int, float}:
        try:
            return pl.Series(name, values, dtype=pl.List(pl.Float64) if inner == {int, float} else None)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
            pass
    found = " and ".join(sorted(kind.__name__ for kind in inner or kinds))
    raise UserError(
        f"column {name!r} holds values of type {found}, expected one type that polars knows; convert them, for example "
        f"with frame[{name!r}].astype(str)."
    )


def _file(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise UserError(f"{path} is not a file or folder; give {_EXPECTED}.")
    if path.suffix.lower() not in _READERS:
        raise UserError(
            f"{path} ends in {path.suffix!r}, expected .csv or .parquet; read it yourself and give a frame."
        )
    with _opened(path) as file:
        if path.suffix.lower() == ".csv" and file.read(2) == _GZIP:
            raise UserError(f"{path} is compressed, expected plain CSV; unpack it, or give a data frame.")
    return _parsed(path)


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None


def _parsed(path: Path, types: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """One file; the types of a CSV file's columns are found from all of its lines unless they are given."""
    try:
        if path.suffix.lower() == ".parquet":
            return pl.read_parquet(path)
        if types is not None:
            return pl.read_csv(path, schema_overrides=types)
        return pl.read_csv(path, infer_schema_length=None, try_parse_dates=True)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = " ".join(str(error).split("\n")[0].split())
        raise UserError(f"{path} cannot be read as {path.suffix[1:].lower()}: {reason:.200}.") from None


def _folder(folder: Path, client: str) -> pl.DataFrame:
    files = sorted(
        file for file in folder.iterdir() if file.suffix.lower() in _READERS and not file.name.startswith(".")
    )
    if not files:
        raise UserError(f"folder {folder} has no .csv or .parquet file; give one for each client, named after it.")
    for one, other in pairwise(files):
        if one.stem == other.stem:
            raise UserError(f"{one} and {other.name} are named after one client; keep one of them.")
    tables = [_file(file) for file in files]
    for file, table in zip(files, tables, strict=True):
        if client in table.columns:
            raise UserError(
                f"{file} has a column {client!r}, expected none, as a file's name is its client; give "
                "polars.read_parquet('FOLDER/*.parquet') or read_csv where files are parts of one table."
            )
        if set(table.columns) != set(tables[0].columns):
            odd = sorted(set(table.columns) ^ set(tables[0].columns))[0]
            raise UserError(f"{file} and {files[0].name} differ in column {odd!r}; give all files the same columns.")
    return _stacked(files, tables, client)


def _stacked(files: list[Path], tables: list[pl.DataFrame], client: str) -> pl.DataFrame:
    """Tables one below the other, under the types that hold for all of them."""
    names = tables[0].columns
    types = {name: _common([table[name] for table in tables]) for name in names}
    parts = []
    for file, table in zip(files, tables, strict=True):
        if file.suffix.lower() == ".csv" and any(table[n].dtype != types[n] and types[n] == pl.String for n in names):
            texts = {n: pl.String for n in names if types[n] == pl.String}
            table = table.with_columns(_parsed(file, texts).select(list(texts)))  # noqa: PLW2901 ("01" was read as 1)
        try:
            kept = [pl.col(name).cast(types[name]) for name in names]
            parts.append(table.select(pl.lit(file.stem, pl.String).alias(client), *kept))
        except pl.exceptions.PolarsError:
            odd = next(n for n in names if table[n].dtype != types[n])
            raise UserError(
                f"{file} has {table[odd].dtype} in column {odd!r}, expected {types[odd]} as in other files; give all "
                "files the same types."
            ) from None
    return pl.concat(parts)


def _common(columns: list[pl.Series]) -> pl.DataType:
    """The type of a column in all files: a file in which all of its values are missing says nothing of it."""
    kinds = {column.dtype for column in columns if column.null_count() < len(column)}
    if not kinds:
        return columns[0].dtype
    if len(kinds) == 1:
        return kinds.pop()
    if all(kind.is_numeric() for kind in kinds):
        return pl.Int64() if all(kind.is_integer() for kind in kinds) else pl.Float64()
    return pl.String()
