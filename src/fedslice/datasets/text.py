"""From texts to word numbers: one tokeniser and one order of words for all language tasks, and GloVe vectors.

The steps are those of the group behind FedSubAvg for Sentiment140: HTML entities, user names and addresses are
resolved, what is not one of the letters a to z separates words (the apostrophe too: "don't" is "don" and "t"),
and letters in a row are at most two ("sooo" is "soo").
"""

import html
import re
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedslice.datasets import lines, packed

USER, URL = "<user>", "<url>"
"""Words that stand for any user name and any address; GloVe's Twitter vectors know them by the same names."""

MAX_GLOVE_BYTES = 1 << 24
"""Limit of a file of vectors, for each dimension; the official Twitter vectors have about 10 million bytes."""

_URL = r"(?:https?://|www\.)\S*"
_USER = r"@[a-z0-9_]+"
_WORD = f"{USER}|{URL}|[a-z]+"
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Texts:
    """Labelled texts of users; the words of text t are `tokens[offsets[t]:offsets[t + 1]]`."""

    user: NDArray[np.int32]
    """Per text: the user's place among all users, by name."""
    label: NDArray[np.int8]
    tokens: NDArray[np.int32]
    """Word numbers from 1, in the order of `words`; 0 is left to padding."""
    offsets: NDArray[np.int64]
    words: pl.Series
    """Every word that occurs, the most frequent first, equally frequent ones in their natural order."""

    @property
    def users(self) -> int:
        """The number of users."""
        return int(self.user.max()) + 1


def tokenise(texts: pl.Series) -> pl.Series:
    """The words of each text, as lists; a text may have none."""
    plain = pl.Series("text", [html.unescape(text) for text in texts], dtype=pl.String)
    marked = plain.str.to_lowercase().str.replace_all(_URL, f" {URL} ").str.replace_all(_USER, f" {USER} ")
    short = reduce(lambda text, a: text.str.replace_all(f"{a}{{3,}}", a + a), ascii_lowercase, marked)
    return short.str.extract_all(_WORD)


def collect(user: pl.Series, label: pl.Series, text: pl.Series, tokens: int | None) -> Texts:
    """Tokenised texts, cut after `tokens` words, whose vocabulary is every word that is left (no frequency cut-off).

    A text without any word stays, as an empty sequence: it counts as a sample of its user.
    """
    words = tokenise(text)
    if tokens is not None:
        words = words.list.head(tokens)
    numbers, vocabulary = number(words.explode().drop_nulls())
    names = user.unique().sort()
    return Texts(
        user=names.search_sorted(user).to_numpy().astype(np.int32),
        label=label.to_numpy().astype(np.int8),
        tokens=numbers,
        offsets=offsets(words.list.len().to_numpy()),
        words=vocabulary,
    )


def number(words: pl.Series) -> tuple[NDArray[np.int32], pl.Series]:
    """Each word's number, and the distinct words in the order of their numbers, which begin at 1."""
    frame = words.rename("word").to_frame()
    counted = frame.group_by("word").len("count").sort(["count", "word"], descending=[True, False])
    ranked = counted.with_row_index("number", offset=1)
    found = frame.join(ranked, on="word", how="left", maintain_order="left")["number"]
    return found.to_numpy().astype(np.int32), ranked["word"]


def offsets(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Start of each sequence, and the end of the last one."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


# --- GloVe -------------------------------------------------------------------------------------------------


def glove(path: Path, words: pl.Series, dim: int) -> tuple[NDArray[np.float32], int]:
    """A row per word number (row 0, padding, and unseen words are zero), and how many of the words were seen.

    Lines are a word and `dim` numbers, separated by single spaces; the file may be gzip, or the official zip.
    """
    place, raw = packed.load(path, dim * MAX_GLOVE_BYTES, f"glove.twitter.27B.{dim}d.txt")
    raw = raw.rstrip(b"\r\n")
    found = _vectors_fast(raw, dim)
    if found is None:  # something is wrong: find the first bad line
        found = _vectors_slow(place, raw, dim)
    names, vectors = found
    asked = words.rename("word").to_frame().with_row_index("number", offset=1)
    lines_of = names.rename("word").to_frame().with_row_index("line").unique("word", keep="first")
    seen = asked.join(lines_of, on="word", how="inner")
    table = np.zeros((len(words) + 1, dim), np.float32)
    table[seen["number"].to_numpy()] = vectors[seen["line"].to_numpy()]
    return table, len(seen)


_Vectors = tuple[pl.Series, NDArray[np.float32]]


def _vectors_fast(raw: bytes, dim: int) -> _Vectors | None:
    """All words and vectors, or None if any line is not as it should be."""
    schema: dict[str, type[pl.DataType]] = {"word": pl.String, **{f"{i}": pl.Float32 for i in range(dim)}}
    frame = lines.read_csv(raw, schema, separator=" ", quote_char=None)
    if frame is None:
        return None
    vectors = frame.drop("word").to_numpy()
    return (frame["word"], vectors) if np.isfinite(vectors).all() else None  # a missing number reads as NaN


def _vectors_slow(place: str, raw: bytes, dim: int) -> _Vectors:
    """The same as the fast way, line by line, to name the first line that is not as it should be."""
    names: list[str] = []
    values: list[float] = []
    for line, text in enumerate(raw.split(b"\n"), start=1):
        word, *numbers = text.rstrip(b"\r").split(b" ")
        if len(numbers) != dim:
            found = f"{len(numbers)} numbers after the word {lines.show(word)}"
            raise lines.bad_line(place, line, found, f"{dim}, separated by single spaces")
        for value in numbers:
            if _NUMBER.fullmatch(value) is None or abs(float(value)) > _LARGEST:
                raise lines.bad_line(place, line, f"{lines.show(value)} is among the numbers", "finite numbers")
            values.append(float(value))
        names.append(word.decode("utf-8", errors="replace"))
    return pl.Series(names, dtype=pl.String), np.array(values, np.float32).reshape(-1, dim)
