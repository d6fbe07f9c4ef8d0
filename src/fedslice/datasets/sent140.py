"""Sentiment140 (Go, Bhayani and Huang, 2009), the sentiment task of FedSubAvg (section 5.1).

A line is one tweet in six quoted columns: polarity (0 negative, 4 positive), id, date, query, user, text; the
file has no header and is in latin-1. A client is a user with more than 40 tweets.
"""

import re
from pathlib import Path

import polars as pl

from fedslice.core.errors import UserError
from fedslice.datasets import lines, packed, text

MORE_THAN = 40
"""A user with this many tweets or fewer is left out."""

FILE = "training.1600000.processed.noemoticon.csv"
ARCHIVE = "trainingandtestdata.zip"
MAX_BYTES = 1 << 29
"""Limit of the unpacked file; the official one has 239 million bytes."""

_COLUMNS = ("polarity", "id", "date", "query", "user", "text")
_ROW = f"6 columns separated by commas: {', '.join(_COLUMNS)}"
_WHOLE = "^[0-9]{1,18}$"


def read(path: Path, tokens: int | None = None) -> text.Texts:
    """Read the training tweets from the official zip, the file in it, or a folder with either of them.

    The folder may hold them in a subfolder `sent140`. Texts are cut after `tokens` words.
    """
    place, raw = packed.load(_locate(path), MAX_BYTES, FILE)
    raw = raw.rstrip(b"\r\n")
    tweets = _tweets_fast(raw)
    if tweets is None:  # something is wrong: find the first bad line
        tweets = _tweets_slow(place, raw)
    kept = tweets.filter(pl.len().over("user") > MORE_THAN)
    if kept.is_empty():
        raise UserError(
            f"{place} has no user with more than {MORE_THAN} tweets among {len(tweets):,} tweets, expected the whole "
            "training file; fetch it again."
        )
    return text.collect(kept["user"], kept["polarity"] == "4", kept["text"], tokens)


def _locate(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"{path} does not exist, expected {ARCHIVE} or the folder with {FILE}.")
    if path.is_file():
        return path
    places = [path / inner / name for inner in ("", "sent140") for name in (FILE, ARCHIVE)]
    for place in places:
        if place.is_file():
            return place
    raise UserError(f"{path} holds no {FILE} or {ARCHIVE}; give the folder that does.")


def _tweets_fast(raw: bytes) -> pl.DataFrame | None:
    """Polarity, user and text of every line, or None if any line is not plainly as it should be.

    A reader of CSV forgives stray quotes, so they are counted: two around each field, two for each one inside.
    """
    frame = lines.read_csv(raw.decode("latin-1").encode(), dict.fromkeys(_COLUMNS, pl.String))
    if frame is None:
        return None
    inside = sum(int(column.str.count_matches('"', literal=True).sum()) for column in frame)
    if raw.count(b'"') != 12 * len(frame) + 2 * inside:
        return None
    sound = pl.col("polarity").is_in(["0", "4"]) & pl.col("id").str.contains(_WHOLE) & (pl.col("user") != "")
    return frame.select("polarity", "user", "text") if frame.select(sound.all()).item() else None


def _tweets_slow(place: str, raw: bytes) -> pl.DataFrame:
    """The same as the fast way, line by line, to name the first line that is not as it should be."""
    rows: list[tuple[str, str, str]] = []
    for line, fields in lines.quoted(place, raw.decode("latin-1"), _ROW):
        if len(fields) != len(_COLUMNS):
            shown = ",".join(fields).encode("latin-1")
            raise lines.bad_line(place, line, lines.columns_found([*map(str.encode, fields)], shown), _ROW)
        polarity, number, _, _, user, words = fields
        if polarity not in ("0", "4"):
            found = f"the polarity is {lines.show(polarity.encode('latin-1'))}"
            raise lines.bad_line(place, line, found, "0 or 4 (the training file has no neutral tweets)")
        if re.fullmatch(_WHOLE, number) is None:
            found = f"the id is {lines.show(number.encode('latin-1'))}"
            raise lines.bad_line(place, line, found, "a whole number, 0 or more")
        if not user:
            raise lines.bad_line(place, line, "the user is ''", "a user's name")
        rows.append((polarity, user, words))
    return pl.DataFrame(rows, schema=dict.fromkeys(("polarity", "user", "text"), pl.String), orient="row")
