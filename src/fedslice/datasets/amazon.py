"""Amazon Electronics for click prediction, as prepared by FedSubAvg's authors (NeurIPS 2022, 5.1).

A line is one rating of one user, in four columns separated by tabs: click (1 if the rating was 5), user, item
and history, which is the items that the user had clicked before, joined by commas. Id 0 is padding: a history
of `0` alone is an empty one, and here it stays the sequence [0] as in the authors' code, where a sample
without a history attends to the padding item.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedslice.core.errors import UserError
from fedslice.datasets import lines, packed

USERS = 1870
"""Rows of the user table, with row 0 for padding; ten of the users have rows in the test part only."""
ITEMS = 33136
"""Rows of the item table, with row 0 for padding."""

MAX_BYTES = 1 << 26
"""Limit of an unpacked file; the authors' training part has 12 million bytes."""

_SUFFIXES = (".tsv.gz", ".tsv", "")
_FOLDERS = ("", "amazon_electronics_fedsubavg", "central_data")
_USER_FOLDERS = ("", "users", "user_data/users")
_USER_FILE = re.compile(r"user_([0-9]+)")
_ROW = "4 columns separated by tabs: click, user, item, history"


@dataclass(frozen=True, eq=False)
class History:
    """All histories, one after the other: that of row r is `values[offsets[r]:offsets[r + 1]]`."""

    values: NDArray[np.int32]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples in file order, which is a user's order in time."""

    label: NDArray[np.int8]
    """1 for a click."""
    user: NDArray[np.int32]
    item: NDArray[np.int32]
    history: History

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True, eq=False)
class Clicks:
    """The training part, and the test part where it is at hand."""

    train: Rows
    test: Rows | None


def read(path: Path) -> Clicks:
    """Read the data set from a folder or a file.

    The folder holds `amazon_train.tsv.gz` (or `.tsv`, or no suffix), itself or in one of the subfolders
    `amazon_electronics_fedsubavg` and `central_data`, or it holds the authors' files `users/user_*`, one per
    user; a file is the training part itself. The test part, `amazon_test`, is looked for in the same way.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist, expected the folder with amazon_train.tsv.gz.")
    train = [path] if path.is_file() else _part(path, "amazon_train") or _per_user(path)
    if not train:
        raise UserError(
            f"{path} holds no amazon_train.tsv.gz, amazon_train.tsv, amazon_train, users/user_* or "
            "user_data/users/user_*; give the folder that does."
        )
    root = path.parent if path.is_file() else path
    while root.name in ("users", "user_data"):
        root = root.parent
    test = _part(root, "amazon_test")
    return Clicks(train=_read_rows(train), test=_read_rows(test) if test else None)


def _part(folder: Path, stem: str) -> list[Path]:
    """The one file of a part, in the first place that has it."""
    places = (folder / inner / f"{stem}{suffix}" for inner in _FOLDERS for suffix in _SUFFIXES)
    return [place for place in places if place.is_file()][:1]


def _per_user(folder: Path) -> list[Path]:
    """The authors' files, one per user, by user id."""
    for inner in _USER_FOLDERS:
        files = {
            int(match[1]): file
            for file in (folder / inner).glob("user_*")
            if (match := _USER_FILE.fullmatch(file.name))
        }
        if files:
            return [files[user] for user in sorted(files)]
    return []


def _read_rows(files: Sequence[Path]) -> Rows:
    texts = [packed.load(file, MAX_BYTES)[1].rstrip(b"\r\n") for file in files]
    rows = _rows_fast(b"\n".join(texts))
    if rows is None:  # something is wrong: find the first bad line
        rows = _rows_slow(zip(files, texts, strict=True))
    return rows


def _rows_fast(raw: bytes) -> Rows | None:
    """All rows, or None if any line is not as it should be."""
    numbers = dict.fromkeys(("label", "user", "item"), pl.Int64)
    frame = lines.table(raw, {**numbers, "history": pl.String})
    if frame is None:
        return None
    lists = frame["history"].str.split(",")
    try:
        history = lists.explode().cast(pl.Int64).to_numpy()
    except pl.exceptions.PolarsError:
        return None
    label, user, item = (frame[name].to_numpy() for name in numbers)
    for values, low, high in ((label, 0, 2), (user, 1, USERS), (item, 1, ITEMS), (history, 0, ITEMS)):
        if values.min() < low or values.max() >= high:
            return None
    return _pack(label, user, item, history, lists.list.len().to_numpy())


def _rows_slow(sources: Iterable[tuple[Path, bytes]]) -> Rows:
    """The same as the fast way, line by line, to name the first line that is not as it should be."""
    columns: tuple[list[int], list[int], list[int]] = ([], [], [])
    history: list[int] = []
    lengths: list[int] = []
    expected = (
        ("click", range(2), "0 or 1"),
        ("user id", range(1, USERS), f"a whole number from 1 to {USERS - 1}"),
        ("item id", range(1, ITEMS), f"a whole number from 1 to {ITEMS - 1}"),
    )
    items = f"whole numbers from 0 to {ITEMS - 1} joined by commas (0 for an empty history)"
    for file, number, fields in _lines(sources):
        place = f"{file}", number
        for column, text, (name, allowed, wanted) in zip(columns, fields[:3], expected, strict=True):
            column.append(_whole(place, f"the {name}", text, allowed, wanted))
        clicked = fields[3].split(b",")
        history.extend(_whole(place, "an item of the history", text, range(ITEMS), items) for text in clicked)
        lengths.append(len(clicked))
    label, user, item = (np.array(column, np.int64) for column in columns)
    return _pack(label, user, item, np.array(history, np.int64), np.array(lengths, np.int64))


def _pack(
    label: NDArray[np.int64],
    user: NDArray[np.int64],
    item: NDArray[np.int64],
    history: NDArray[np.int64],
    lengths: NDArray[np.integer],
) -> Rows:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Rows(
        label=label.astype(np.int8),
        user=user.astype(np.int32),
        item=item.astype(np.int32),
        history=History(history.astype(np.int32), offsets),
    )


def _lines(sources: Iterable[tuple[Path, bytes]]) -> Iterator[tuple[Path, int, list[bytes]]]:
    """Every line's file, number and fields."""
    for file, raw in sources:
        for number, line in enumerate(raw.split(b"\n"), start=1):
            fields = line.rstrip(b"\r").split(b"\t")
            if len(fields) != 4:
                raise lines.bad_line(f"{file}", number, lines.columns_found(fields, line), _ROW)
            yield file, number, fields


def _whole(place: tuple[str, int], name: str, text: bytes, allowed: range, expected: str) -> int:
    value = lines.whole(text, allowed)
    if value is None:
        raise lines.bad_line(*place, f"{name} is {lines.show(text)}", expected)
    return value
