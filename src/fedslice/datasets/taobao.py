"""Taobao's public log of user behaviour: what 988 thousand users did in nine days, 100 million lines.

A line is one act of one user, in five columns separated by commas: user, item, category, behaviour (pv, buy, cart or
fav) and the second it happened; there is no header. It stands in for the log of FedSubAvg, section 5.1, which is not
public. This one has no impressions, so what is predicted is whether a user who meets an item does more than look at it:
buy, cart and fav are the positive samples and pv the negative ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedslice.core.errors import UserError
from fedslice.datasets import lines

FILE = "UserBehavior.csv"
FEWEST = 32
"""Samples that a user must have to take part, as in FedSubAvg's public code for Alibaba's data."""

_BEHAVIOURS = ("pv", "buy", "cart", "fav")
_SCHEMA: dict[str, Any] = {
    "user": pl.Int32,
    "item": pl.Int32,
    "category": pl.Int32,
    "behaviour": pl.Enum(_BEHAVIOURS),
    "time": pl.Int32,
}
_ROW = "5 columns separated by commas: user, item, category, behaviour, time"
_BLOCK_BYTES = 1 << 26
_MOST = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Clicks:
    """Samples by user and, within a user, in the order of time; ids are dense from 1, and 0 is left for padding."""

    user: NDArray[np.int32]
    item: NDArray[np.int32]
    category: NDArray[np.int32]
    label: NDArray[np.bool_]
    """True for a click."""

    def __len__(self) -> int:
        return len(self.label)


def read(path: Path, users: int | None = None) -> Clicks:
    """Read the log, a folder that holds it or the file itself, for users with at least ``FEWEST`` lines.

    ``users`` keeps the first so many of them by id. The file is read twice, a block of lines at a time, first to see
    who stays; so the memory it takes follows the lines that are kept.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist, expected the public {FILE} or the folder with it.")
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path} holds no {FILE}; give the folder in which its archive was unpacked.")
    seen = pl.concat([block["user"].value_counts() for block in _blocks(file)]).group_by("user").sum()
    kept = seen.filter(pl.col("count") >= FEWEST)["user"].sort()[:users]
    if not len(kept):
        raise UserError(f"{file} has no user with {FEWEST} lines, expected many; fetch the whole file.")
    frame = pl.concat([block.filter(pl.col("user").is_in(kept.implode())) for block in _blocks(file)])
    frame = frame.sort("user", "time", maintain_order=True)
    return Clicks(
        user=_dense(frame["user"]),
        item=_dense(frame["item"]),
        category=_dense(frame["category"]),
        label=(frame["behaviour"] != "pv").to_numpy(),
    )


def _dense(ids: pl.Series) -> NDArray[np.int32]:
    """Ids from 1, in the order of the ids there are."""
    return ids.rank("dense").cast(pl.Int32).to_numpy()


def _blocks(file: Path) -> Iterator[pl.DataFrame]:
    """The file's lines as tables, a bounded number of bytes at a time."""
    done, rest = 0, b""
    try:
        with file.open("rb") as stream:
            while raw := stream.read(_BLOCK_BYTES):
                whole, end, rest = (rest + raw).rpartition(b"\n")
                if not end and len(rest) > _BLOCK_BYTES:
                    raise _first_bad(file, done, rest)
                if end:
                    yield (block := _block(file, done, whole))
                    done += len(block)
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}); check its permissions.") from error
    if rest:
        yield (block := _block(file, done, rest))
        done += len(block)
    if not done:
        raise UserError(f"{file} is empty, expected lines of {_ROW}; fetch the file again.")


def _block(file: Path, done: int, raw: bytes) -> pl.DataFrame:
    """The lines of one block, the first of which is line ``done + 1`` of the file; or the first bad one by name."""
    frame = lines.read_csv(raw, _SCHEMA, quote_char=None)
    if frame is None:
        raise _first_bad(file, done, raw)
    numbers = frame.select("user", "item", "category", "time")
    complete = len(frame) == raw.count(b"\n") + 1 and not any(column.null_count() for column in frame)
    if not complete or min(column.min() for column in numbers) < 0:  # type: ignore[type-var, operator]
        raise _first_bad(file, done, raw)
    return frame


def _first_bad(file: Path, done: int, raw: bytes) -> UserError:
    """The sentence about the first line of a block that is not as it should be."""
    number = f"a whole number from 0 to {_MOST}"
    for line, text in enumerate(raw.split(b"\n"), start=done + 1):
        fields = text.rstrip(b"\r").split(b",")
        if len(fields) != len(_SCHEMA):
            return lines.bad_line(f"{file}", line, lines.columns_found(fields, text), _ROW)
        for (name, kind), field in zip(_SCHEMA.items(), fields, strict=True):
            if kind is not pl.Int32:
                fine, expected = field.decode("latin-1") in _BEHAVIOURS, "pv, buy, cart or fav"
            else:
                fine, expected = lines.whole(field, range(_MOST + 1)) is not None, number
            if not fine:
                return lines.bad_line(f"{file}", line, f"the {name} is {lines.show(field)}", expected)
    return UserError(f"{file}, lines {done + 1} to {line}: not a table of {_ROW}; fetch the file again.")
