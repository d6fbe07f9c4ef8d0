"""AG News (Zhang, Zhao and LeCun, 2015), the text set of FLSS: what four kinds of news are called and tell.

A line is one article in three quoted columns: class 1 to 4 (world, sports, business, science), title, description; the
files train.csv and test.csv have no header. A part of the training texts may lie in train_subset.csv instead, with a
header: label, text (title and description joined), source.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedslice.core.errors import UserError
from fedslice.datasets import lines, packed, text
from fedslice.datasets.images import folder

CLASSES = 4
MAX_BYTES = 1 << 26
"""Limit of an unpacked file; the official training file has 29 million bytes."""

_FOLDERS = ("", "ag_news_csv", "ag_news", "agnews")
_TRAIN, _PART, _TEST = "train.csv", "train_subset.csv", "test.csv"
_HEADER = ["label", "text", "source"]
_ROW = "3 columns separated by commas: class, title, description"


@dataclass(frozen=True, eq=False)
class Articles:
    """Labelled texts as their words."""

    label: NDArray[np.int64]
    words: pl.Series
    """Lists, one for each text."""

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True, eq=False)
class News:
    """The articles to train and to test on; ``whole`` unless the training articles are but a part."""

    train: Articles
    test: Articles
    whole: bool


def read(path: Path) -> News:
    """Read both files, plain or gzip, from a folder that may hold them in a subfolder ag_news_csv or ag_news."""
    place = folder(path, _FOLDERS, [f"{name}{end}" for name in (_TRAIN, _PART) for end in ("", ".gz")], "AG News")
    whole = _find(place, _TRAIN)
    train = whole or _find(place, _PART)
    test = _find(place, _TEST)
    if train is None or test is None:
        raise UserError(f"{place / _TEST} is missing, plain or .gz, expected it beside the training file; fetch it.")
    return News(_articles(train, header=whole is None), _articles(test, header=False), whole is not None)


def tokenise(texts: pl.Series) -> pl.Series:
    """The words of each text, as lists, in small letters: punctuation marks are words, quotes and colons are dropped.

    The rules are those of torchtext's basic English tokeniser, by which PFLlib prepares these texts.
    """
    plain = texts.str.to_lowercase().str.replace_all('"', "", literal=True).str.replace_all(r"<br />|[;:]", " ")
    return plain.str.extract_all(r"[^\s'.,()!?]+|['.,()!?]")


def _find(place: Path, name: str) -> Path | None:
    return next((file for file in (place / name, place / f"{name}.gz") if file.is_file()), None)


def _articles(file: Path, header: bool) -> Articles:
    place, raw = packed.load(file, MAX_BYTES)
    try:
        content = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise lines.bad_line(place, line, f"byte {raw[error.start]:#04x} is no UTF-8", "a text in UTF-8") from error
    label: list[int] = []
    texts: list[str] = []
    for line, fields in lines.quoted(place, content.rstrip("\r\n"), _ROW):
        if header and line == 1 and fields == _HEADER:
            continue
        if len(fields) != 3:
            shown = [field.encode("latin-1", errors="replace") for field in fields]
            raise lines.bad_line(place, line, lines.columns_found(shown, b",".join(shown)), _ROW)
        kind = lines.whole(fields[0].encode(), range(1, CLASSES + 1))
        if kind is None:
            found = f"the class is {lines.show(fields[0].encode('latin-1', errors='replace'))}"
            raise lines.bad_line(place, line, found, f"1 to {CLASSES}")
        label.append(kind - 1)
        texts.append(fields[1] if header else f"{fields[1]} {fields[2]}")
    if not label:
        raise UserError(f"{place} has no articles after its header; fetch it again.")
    return Articles(np.array(label, np.int64), tokenise(pl.Series(texts, dtype=pl.String)))


@dataclass(frozen=True, eq=False)
class Numbered:
    """Texts as row numbers of a table: 0 is left to padding, 1 is any word outside the vocabulary."""

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    rows: int


def number(words: pl.Series, train: NDArray[np.bool_], tokens: int, rows: int) -> Numbered:
    """Texts cut after ``tokens`` words, in a vocabulary of the most frequent words of those to train on."""
    cut = words.list.head(tokens)
    flat = cut.explode().drop_nulls().rename("word")
    _, frequent = text.number(cut.filter(pl.Series(train)).explode().drop_nulls())
    known = frequent.head(rows - 2).rename("word").to_frame().with_row_index("number", offset=2)
    found = flat.to_frame().join(known, on="word", how="left", maintain_order="left")["number"].fill_null(1)
    return Numbered(found.to_numpy().astype(np.int32), text.offsets(cut.list.len().to_numpy()), len(known) + 2)
