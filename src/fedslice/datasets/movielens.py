"""MovieLens-1M and -100K (Harper and Konstan, 2015), the rating task of FedSubAvg (NeurIPS 2022, 5.1).

A client is a user; the features of a rating are the user's gender and age group, the movie, and the crosses
of the two with the movie. So the reader returns exactly these, as indices. Occupations, zip codes, titles and
genres have to be there and are left alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedslice.core.errors import UserError, unknown
from fedslice.datasets import lines, packed

AGES = (1, 18, 25, 35, 45, 50, 56)
"""The lower ends of MovieLens-1M's age groups; the years of MovieLens-100K are put into the same groups."""

MAX_BYTES = 1 << 26
"""Limit of an unpacked file; the largest official one, the ratings of MovieLens-1M, has 25 million bytes."""

_GENDERS = {b"F": 0, b"M": 1}
_HIGHEST = 10**18 - 1


@dataclass(frozen=True, eq=False)
class Ratings:
    """All ratings of one data set in file order, and what is known of every user."""

    user: NDArray[np.int32]
    """Per rating: the user's place in the users file."""
    movie: NDArray[np.int32]
    """Per rating: the movie's place in the catalogue, which also lists movies nobody rated."""
    rating: NDArray[np.int8]
    """Per rating: 1 to 5."""
    timestamp: NDArray[np.int64]
    """Per rating: seconds since 1970."""
    gender: NDArray[np.int8]
    """Per user: 0 for F, 1 for M."""
    age: NDArray[np.int8]
    """Per user: the place of the age group in `AGES`."""
    users: int
    movies: int


@dataclass(frozen=True)
class _Table:
    file: str
    separator: bytes
    columns: int


@dataclass(frozen=True)
class _Layout:
    name: str
    ratings: _Table
    users: _Table
    movies: _Table
    gender_column: int
    age_column: int
    age_codes: range | tuple[int, ...]
    age_expected: str


_LAYOUTS = {
    "1m": _Layout(
        name="ml-1m",
        ratings=_Table("ratings.dat", b"::", 4),
        users=_Table("users.dat", b"::", 5),
        movies=_Table("movies.dat", b"::", 3),
        gender_column=1,
        age_column=2,
        age_codes=AGES,
        age_expected=f"one of the age codes {', '.join(map(str, AGES))}",
    ),
    "100k": _Layout(
        name="ml-100k",
        ratings=_Table("u.data", b"\t", 4),
        users=_Table("u.user", b"|", 5),
        movies=_Table("u.item", b"|", 24),
        gender_column=2,
        age_column=1,
        age_codes=range(1, 121),
        age_expected="an age from 1 to 120 years",
    ),
}


def read(path: Path, variant: str = "1m") -> Ratings:
    """Read `variant` ("1m" or "100k") from its official zip, or a folder with that zip or with its files.

    Inside the zip or folder the files may lie in a subfolder named as the data set (ml-1m, ml-100k).
    """
    if variant not in _LAYOUTS:
        raise unknown("MovieLens variant", variant, _LAYOUTS)
    layout = _LAYOUTS[variant]
    container, prefix = _locate(path, variant)
    users, gender, age = _read_users(_load(container, prefix + layout.users.file), layout)
    movies = _read_movies(_load(container, prefix + layout.movies.file), layout)
    source = _load(container, prefix + layout.ratings.file)
    columns = _ratings_fast(source, layout, users, movies)
    if columns is None:  # something is wrong: find the first bad line
        columns = _ratings_slow(source, layout, users, movies)
    user, movie, rating, timestamp = columns

    idle = np.flatnonzero(np.bincount(user, minlength=len(users)) == 0)
    if len(idle):
        line = int(idle[0]) + 1
        raise lines.bad_line(
            f"{container / prefix / layout.users.file}",
            line,
            f"user {users[idle[0]]} has no rating in {layout.ratings.file}",
            "at least one rating of every user, as a client without samples cannot train",
        )
    return Ratings(
        user=user.astype(np.int32),
        movie=movie.astype(np.int32),
        rating=rating.astype(np.int8),
        timestamp=timestamp.astype(np.int64),
        gender=gender,
        age=age,
        users=len(users),
        movies=len(movies),
    )


# --- where the files are -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    place: str
    raw: bytes


def _locate(path: Path, variant: str) -> tuple[Path, str]:
    """The zip or folder that holds the ratings file, and the subfolder inside it."""
    found = _search(path, _LAYOUTS[variant])
    if found is not None:
        return found
    if not path.exists():
        raise UserError(f"{path} does not exist, expected the official zip of MovieLens or a folder with its files.")
    layout = _LAYOUTS[variant]
    for name, other in _LAYOUTS.items():
        if name != variant and _search(path, other) is not None:
            raise UserError(f"{path} holds {other.name}, expected {layout.name}; ask for variant {name!r}.")
    wanted = f"{layout.ratings.file} or {layout.name}/{layout.ratings.file}"
    if path.is_dir():
        wanted += f" or {layout.name}.zip"
    raise UserError(f"{path} holds no {wanted}; give the official {layout.name}.zip or the folder with its files.")


def _search(path: Path, layout: _Layout) -> tuple[Path, str] | None:
    containers = [path, path / f"{layout.name}.zip"] if path.is_dir() else [path]
    for container in containers:
        for prefix in ("", f"{layout.name}/"):
            if _holds(container, prefix + layout.ratings.file):
                return container, prefix
    return None


def _holds(container: Path, name: str) -> bool:
    if container.is_file():
        with packed.opened(container) as archive:
            return name in archive.namelist()
    return (container / name).is_file()


def _load(container: Path, name: str) -> _Source:
    """One file's bytes, from a folder or straight from the zip."""
    place = f"{container / name}"
    if not _holds(container, name):
        raise UserError(f"{place} is missing, expected it beside the other files of the data set; fetch it again.")
    if container.is_dir():
        return _Source(place, packed.file(container / name, MAX_BYTES))
    with packed.opened(container) as archive:
        return _Source(place, packed.member(archive, name, MAX_BYTES))


# --- what is in them ---------------------------------------------------------------------------------------


def _lines(source: _Source, table: _Table) -> Iterator[tuple[int, list[bytes]]]:
    """Every line's number and fields."""
    separator = lines.show(table.separator)
    if not source.raw.strip():
        raise UserError(
            f"{source.place} is empty, expected lines of {table.columns} columns separated by {separator}; "
            "fetch the file again."
        )
    for number, line in enumerate(source.raw.rstrip(b"\r\n").split(b"\n"), start=1):
        fields = line.rstrip(b"\r").split(table.separator)
        if len(fields) != table.columns:
            raise lines.bad_line(
                source.place,
                number,
                lines.columns_found(fields, line),
                f"{table.columns} separated by {separator}",
            )
        yield number, fields


def _add_id(source: _Source, number: int, text: bytes, kind: str, seen: dict[int, int]) -> None:
    value = lines.whole(text, range(_HIGHEST))
    if value is None:
        raise lines.bad_line(source.place, number, f"the {kind} id is {lines.show(text)}", "a whole number, 0 or more")
    if value in seen:
        raise lines.bad_line(
            source.place,
            number,
            f"{kind} {value} is there already in line {seen[value]}",
            "every id once",
        )
    seen[value] = number


def _read_users(source: _Source, layout: _Layout) -> tuple[NDArray[np.int64], NDArray[np.int8], NDArray[np.int8]]:
    ids: dict[int, int] = {}
    genders: list[int] = []
    ages: list[int] = []
    for number, fields in _lines(source, layout.users):
        _add_id(source, number, fields[0], "user", ids)
        gender = _GENDERS.get(fields[layout.gender_column])
        if gender is None:
            raise lines.bad_line(
                source.place, number, f"the gender is {lines.show(fields[layout.gender_column])}", "'F' or 'M'"
            )
        age = lines.whole(fields[layout.age_column], layout.age_codes)
        if age is None:
            raise lines.bad_line(
                source.place, number, f"the age is {lines.show(fields[layout.age_column])}", layout.age_expected
            )
        genders.append(gender)
        ages.append(age)
    groups = np.searchsorted(AGES, ages, side="right") - 1
    return np.array(list(ids), np.int64), np.array(genders, np.int8), groups.astype(np.int8)


def _read_movies(source: _Source, layout: _Layout) -> NDArray[np.int64]:
    ids: dict[int, int] = {}
    for number, fields in _lines(source, layout.movies):
        _add_id(source, number, fields[0], "movie", ids)
    return np.array(list(ids), np.int64)


_Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _ratings_fast(
    source: _Source, layout: _Layout, users: NDArray[np.int64], movies: NDArray[np.int64]
) -> _Columns | None:
    """User, movie, rating and time of every line, or None if any line is not as it should be."""
    raw = source.raw.rstrip(b"\r\n")
    if layout.ratings.separator != b"\t":
        if b"\t" in raw:
            return None
        raw = raw.replace(layout.ratings.separator, b"\t")
    frame = lines.table(raw, dict.fromkeys(("user", "movie", "rating", "timestamp"), pl.Int64))
    if frame is None:
        return None
    user, movie, rating, timestamp = (column.to_numpy() for column in frame)
    user, movie = _places(users, user), _places(movies, movie)
    if min(user.min(), movie.min(), timestamp.min()) < 0 or rating.min() < 1 or rating.max() > 5:
        return None
    return user, movie, rating, timestamp


def _places(ids: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of each value in `ids`, or -1."""
    order = np.argsort(ids)
    at = np.searchsorted(ids[order], values).clip(max=len(ids) - 1)
    place = order[at]
    return np.where(ids[place] == values, place, -1)


def _ratings_slow(source: _Source, layout: _Layout, users: NDArray[np.int64], movies: NDArray[np.int64]) -> _Columns:
    """The same as the fast way, line by line, to name the first line that is not as it should be."""
    stars = cache(lambda text: lines.whole(text, range(1, 6)))
    checks: tuple[tuple[str, Callable[[bytes], int | None], str], ...] = (
        ("user id", _place_of(users), f"a user listed in {layout.users.file}"),
        ("movie id", _place_of(movies), f"a movie listed in {layout.movies.file}"),
        ("rating", stars, "a whole number from 1 to 5"),
        ("timestamp", lambda text: lines.whole(text, range(_HIGHEST)), "a whole number of seconds, 0 or more"),
    )
    values: list[int] = []
    for number, fields in _lines(source, layout.ratings):
        for (name, parse, expected), text in zip(checks, fields, strict=True):
            value = parse(text)
            if value is None:
                raise lines.bad_line(source.place, number, f"the {name} is {lines.show(text)}", expected)
            values.append(value)
    user, movie, rating, timestamp = np.array(values, np.int64).reshape(-1, 4).T
    return user, movie, rating, timestamp


def _place_of(ids: NDArray[np.int64]) -> Callable[[bytes], int | None]:
    """A parser from an id's text to its place in `ids`, or None."""
    places = {value: place for place, value in enumerate(ids.tolist())}

    @cache
    def parse(text: bytes) -> int | None:
        value = lines.whole(text, range(_HIGHEST))
        return None if value is None else places.get(value)

    return parse
