"""RentTheRunway's reviews (Misra, Wan and McAuley, 2018): real people's texts with a rating.

A line is one review, a JSON object with (among others) `user_id`, `rating` from 1 to 10 and `review_text`. A
client is a user; a review is positive if its rating is 10, which is the most frequent one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fedslice.core.errors import UserError
from fedslice.datasets import lines, packed, text

FILE = "renttherunway_final_data.json.gz"
MAX_BYTES = 1 << 28
"""Limit of the unpacked file; the official one has about 120 million bytes."""

_SUFFIXES = (".json.gz", ".json")
_ROW = "one JSON object per line"


@dataclass(frozen=True, eq=False)
class Reviews:
    """The texts, and how many reviews had no rating and were left out."""

    texts: text.Texts
    unrated: int


def read(path: Path, at_least: int = 10, tokens: int | None = None) -> Reviews:
    """Read the reviews of users with at least so many rated ones, from a file or the folder with one such file.

    The folder holds a `.json.gz` or `.json`, itself or in a subfolder `renttherunway`. Texts are cut after
    `tokens` words.
    """
    place, raw = packed.load(_locate(path), MAX_BYTES)
    rows: list[tuple[str, bool, str]] = []
    unrated = 0
    for line, content in enumerate(raw.rstrip(b"\r\n").split(b"\n"), start=1):
        row = _review(place, line, content)
        if row is None:
            unrated += 1
        else:
            rows.append(row)
    schema: dict[str, type[pl.DataType]] = {"user": pl.String, "positive": pl.Boolean, "text": pl.String}
    reviews = pl.DataFrame(rows, schema=schema, orient="row")
    kept = reviews.filter(pl.len().over("user") >= at_least)
    if kept.is_empty():
        raise UserError(
            f"{place} has no user with {at_least} rated reviews or more among {len(reviews):,} reviews, expected the "
            "whole data set; fetch it again or ask for fewer (at_least)."
        )
    return Reviews(text.collect(kept["user"], kept["positive"], kept["text"], tokens), unrated)


def _locate(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"{path} does not exist, expected {FILE} or the folder with it.")
    if path.is_file():
        return path
    for folder in (path, path / "renttherunway"):
        files = sorted(file for file in folder.glob("*.json*") if file.name.endswith(_SUFFIXES) and file.is_file())
        if len(files) > 1:
            raise UserError(f"{folder} holds {files[0].name} and {files[1].name}, expected one file; name the file.")
        if files:
            return files[0]
    raise UserError(f"{path} holds no .json.gz or .json file such as {FILE}; give the folder that does.")


def _review(place: str, line: int, content: bytes) -> tuple[str, bool, str] | None:
    """User, whether positive, and text; None if there is no rating."""
    try:
        review = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise lines.bad_line(place, line, f"no JSON but {lines.show(content)}", _ROW) from error
    if not isinstance(review, dict):
        raise lines.bad_line(place, line, f"JSON but no object: {lines.show(content)}", _ROW)
    user = _text(place, line, review, "user_id")
    if not user:
        raise lines.bad_line(place, line, "the user_id is missing", "a user's id")
    rating = _text(place, line, review, "rating")
    if not rating:
        return None
    value = lines.whole(rating.encode(), range(1, 11))
    if value is None:
        raise lines.bad_line(place, line, f"the rating is {_show(rating)}", "a whole number from 1 to 10")
    return user, value == 10, _text(place, line, review, "review_text")


def _text(place: str, line: int, review: Mapping[str, Any], key: str) -> str:
    """A field's text; empty fields are missing from the file, or null."""
    value = review.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise lines.bad_line(place, line, f"the {key} is {_show(repr(value))}", "a text in quotes")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        found = f"the {key} has half a character in it"
        raise lines.bad_line(place, line, found, "a text in Unicode") from error
    return value


def _show(value: str) -> str:
    return lines.show(value.encode("latin-1", errors="replace"))
