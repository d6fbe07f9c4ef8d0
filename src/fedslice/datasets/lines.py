"""Shared by the readers of text files: whole numbers, columns, and the message about a bad line."""

import csv
import io
import re
from collections.abc import Container, Iterator
from typing import Any

import polars as pl

from fedslice.core.errors import UserError

_ARCHIVES = (b"\x1f\x8b", b"x\x01", b"x^", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")  # gzip, four levels of zlib, zstd
_WHOLE = re.compile(rb" *[+-]?[0-9]{1,18}")


def whole(text: bytes, allowed: Container[int]) -> int | None:
    """The whole number that `text` is, if it is one and allowed."""
    if _WHOLE.fullmatch(text) is None:
        return None
    value = int(text)
    return value if value in allowed else None


def read_csv(raw: bytes, schema: dict[str, Any], **options: Any) -> pl.DataFrame | None:
    """The lines of a CSV without a header as a table, or None if polars cannot read them.

    What begins like an archive is not given to polars, which would unpack it by itself and to any size.
    """
    if raw.startswith(_ARCHIVES):
        return None
    try:
        return pl.read_csv(raw, has_header=False, schema=schema, **options)
    except pl.exceptions.PolarsError:
        return None


def table(raw: bytes, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame | None:
    """Lines of columns separated by tabs, or None if any of them is not as it should be."""
    frame = read_csv(raw, schema, separator="\t", quote_char=None)
    return None if frame is None or not len(frame) or any(column.null_count() for column in frame) else frame


def quoted(place: str, text: str, expected: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV with quotes, each with the number of its first line."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = rows.line_num + 1
        try:
            fields = next(rows, None)
        except csv.Error as error:
            raise bad_line(place, line, f"the quotes are out of order ({error})", expected) from error
        if fields is None:
            return
        yield line, fields


def columns_found(fields: list[bytes], line: bytes) -> str:
    """Return a phrase on the number of columns of a bad line."""
    return f"{len(fields)} column{'s' * (len(fields) != 1)} found in {show(line)}"


def bad_line(place: str, line: int, found: str, expected: str) -> UserError:
    """The sentence about a line of a file."""
    return UserError(f"{place}, line {line}: {found}, expected {expected}; correct the line or fetch the file again.")


def show(text: bytes) -> str:
    """A text from a file, quoted and not too long."""
    return repr(text[:40].decode("latin-1")) + ("..." if len(text) > 40 else "")
