"""What readers of text files share: whole numbers, columns, and the sentence about a bad line."""

import csv
import io
import re
from collections.abc import Container, Iterator

import polars as pl

from fedslice.errors import UserError

MAX_BYTES = 2 * 1024**3
"""No file of these data sets comes near this size: a larger one is a mistake or made to fill the memory."""

_WHOLE = re.compile(rb" *[+-]?[0-9]{1,18}")


def whole(text: bytes, allowed: Container[int]) -> int | None:
    """The whole number that `text` is, if it is one and allowed."""
    if _WHOLE.fullmatch(text) is None:
        return None
    value = int(text)
    return value if value in allowed else None


def table(raw: bytes, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame | None:
    """Lines of columns separated by tabs, or None if any of them is not as it should be."""
    try:
        frame = pl.read_csv(raw, separator="\t", has_header=False, quote_char=None, schema=schema)
    except pl.exceptions.PolarsError:
        return None
    return None if not len(frame) or any(column.null_count() for column in frame) else frame


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
    """How many columns a line has, when it should have others."""
    return f"{len(fields)} column{'s' * (len(fields) != 1)} found in {show(line)}"


def bad_line(place: str, line: int, found: str, expected: str) -> UserError:
    """The sentence about a line of a file."""
    return UserError(f"{place}, line {line}: {found}, expected {expected}; correct the line or fetch the file again.")


def show(text: bytes) -> str:
    """A text from a file, quoted and not too long."""
    return repr(text[:40].decode("latin-1")) + ("..." if len(text) > 40 else "")
