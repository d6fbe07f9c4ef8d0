"""Small generated files in the official layouts of the data sets, and where the real ones may lie."""

import gzip
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedslice.core.errors import UserError

REAL_DATA = Path(os.environ.get("FEDSLICE_DATA") or Path(__file__).parents[2] / "shared" / "data")
AGES = (1, 18, 25, 35, 45, 50, 56)


def write_movielens(
    folder: Path,
    users: int = 20,
    movies: int = 30,
    ratings: int = 400,
    seed: int = 0,
    zipped: bool = False,
    variant: str = "1m",
) -> Path:
    """Write MovieLens files and return what to read: the folder, or the zip in it with its inner folder.

    Every user has at least one rating, no user rates a movie twice, some movies are better than others, movie
    ids have gaps and one title is not ASCII.
    """
    rng = np.random.default_rng(seed)
    assert users <= ratings <= users * movies
    movie_ids = np.cumsum(rng.integers(1, 3, movies))
    quality = rng.normal(3.5, 1.0, movies)
    genders = np.where(rng.permutation(users) % 3 == 0, "F", "M")
    pairs = np.zeros((users, movies), bool)
    pairs[np.arange(users), rng.integers(0, movies, users)] = True
    free = np.flatnonzero(~pairs)
    pairs.flat[rng.choice(free, ratings - users, replace=False)] = True
    user, movie = np.nonzero(pairs)
    score = np.clip(np.rint(quality[movie] + rng.normal(0, 0.7, ratings)), 1, 5).astype(int)
    time = rng.integers(956_703_932, 1_046_454_590, ratings)
    years = rng.integers(7, 74, users)
    codes = rng.choice(AGES, users)
    rated = list(zip(user + 1, movie_ids[movie], score, time, strict=True))
    if variant == "1m":
        name, ext = "ml-1m", "::"
        tables = {
            "users.dat": [(i + 1, genders[i], codes[i], i % 21, f"{10000 + i}") for i in range(users)],
            "movies.dat": [(m, f"Amélie {m} (2001)", "Comedy|Romance") for m in movie_ids],
            "ratings.dat": rated,
        }
    else:
        name, ext = "ml-100k", "|"
        genres = (0,) * 18 + (1,)
        tables = {
            "u.user": [(i + 1, years[i], genders[i], "writer", f"{10000 + i}") for i in range(users)],
            "u.item": [(m, f"Amélie {m} (2001)", "01-Jan-2001", "", "http://x", *genres) for m in movie_ids],
            "u.data": [rated[i] for i in rng.permutation(ratings)],
        }
    texts = {
        file: "".join(("\t" if file == "u.data" else ext).join(map(str, row)) + "\n" for row in rows)
        for file, rows in tables.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    if zipped:
        archive_path = folder / f"{name}.zip"
        with zipfile.ZipFile(archive_path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file, text in texts.items():
                archive.writestr(f"{name}/{file}", text.encode("latin-1"))
        return archive_path
    for file, text in texts.items():
        (folder / file).write_bytes(text.encode("latin-1"))
    return folder


def write_amazon(
    folder: Path,
    users: int = 12,
    items: int = 40,
    rows_per_user: int = 30,
    seed: int = 0,
    test_rows: int = 0,
) -> Path:
    """Write `amazon_train.tsv.gz`, and `amazon_test.tsv.gz` if every user is to have `test_rows` later rows.

    The users click more or less readily and the items are more or less liked; a history is the items clicked
    before, and `0` if there are none.
    """
    rng = np.random.default_rng(seed)
    eagerness = rng.normal(0, 1, users + 1)
    appeal = rng.normal(0, 1, items + 1)
    train: list[str] = []
    test: list[str] = []
    for user in range(1, users + 1):
        clicked: list[int] = []
        for step in range(rows_per_user + test_rows):
            item = int(rng.integers(1, items + 1))
            click = int(eagerness[user] + appeal[item] + rng.logistic() > 0)
            history = ",".join(map(str, clicked)) or "0"
            part = train if step < rows_per_user else test
            part.append(f"{click}\t{user}\t{item}\t{history}\n")
            if click:
                clicked.append(item)
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("amazon_train", train), ("amazon_test", test)):
        if lines:
            packed = gzip.compress("".join(lines).encode(), mtime=0)
            (folder / f"{name}.tsv.gz").write_bytes(packed)
    return folder


def one_sentence(read: Callable[..., Any], *arguments: Any, ends: tuple[str, ...] = (".",)) -> str:
    """What the user is told when a reader refuses, which has to be one sentence."""
    with pytest.raises(UserError) as caught:
        read(*arguments)
    told = str(caught.value)
    assert "\n" not in told
    assert told.endswith(ends)
    assert ". " not in told
    return told
