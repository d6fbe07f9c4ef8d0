"""RentTheRunway: the texts that come out of good files, and the sentence that comes out of bad ones."""

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedslice.core.errors import UserError
from fedslice.datasets import renttherunway, text
from layouts import REAL_DATA, one_sentence

REAL = REAL_DATA / "renttherunway"
TEXTS = ("I loved it!!!", "Didn't fit.", "", "Sooo pretty &amp; caf\xe9")


def review(user: str, words: str, rating: str | None = "10", **more: Any) -> dict[str, Any]:
    own = {} if rating is None else {"rating": rating}
    return {"fit": "fit", "user_id": user, "item_id": "7", **own, "review_text": words, **more}


def reviews() -> list[dict[str, Any]]:
    """User 20 has 12 reviews, 3 has 10, 100 has 10 with one not rated, 7 has 9."""
    users = ["20"] * 12 + ["3"] * 10 + ["100"] * 9 + ["7"] * 9
    order = np.random.default_rng(0).permutation(len(users))
    ratings = ("10", "8", "10", "2")
    rated = [review(users[at], TEXTS[at % 4], ratings[at % 3]) for at in order]
    return [*rated[:5], review("100", "no stars", None), *rated[5:]]


def dump(rows: list[Any]) -> bytes:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


def sentence(path: Path) -> str:
    return one_sentence(renttherunway.read, path)


def equal(a: text.Texts, b: text.Texts) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in text.Texts.__dataclass_fields__)


def test_texts_are_those_of_a_plain_computation(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(dump(reviews()))
    found = renttherunway.read(file)
    kept = [row for row in reviews() if row["user_id"] in ("20", "3")]
    texts = found.texts
    assert found.unrated == 1
    assert texts.user.tolist() == [["20", "3"].index(row["user_id"]) for row in kept]
    assert texts.label.tolist() == [int(row["rating"] == "10") for row in kept]
    said = dict(zip(TEXTS, ("i loved it", "didn t fit", "", "soo pretty caf"), strict=True))
    sequences = [texts.tokens[a:b] for a, b in zip(texts.offsets, texts.offsets[1:], strict=False)]
    words = [" ".join(texts.words[int(n) - 1] for n in sequence) for sequence in sequences]
    assert words == [said[row["review_text"]] for row in kept]


def test_the_least_number_of_reviews_counts_rated_ones(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(dump(reviews()))
    assert [renttherunway.read(file, at_least).texts.users for at_least in (1, 9, 10, 11, 12)] == [4, 4, 2, 1, 1]
    with pytest.raises(UserError, match="has no user with 13 rated reviews or more among 40 reviews"):
        renttherunway.read(file, 13)


def test_the_cut(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(dump(reviews()))
    whole, cut = renttherunway.read(file).texts, renttherunway.read(file, tokens=2).texts
    assert np.array_equal(np.diff(cut.offsets), np.minimum(np.diff(whole.offsets), 2))
    assert "fit" not in cut.words


def test_every_place_gives_the_same_texts(tmp_path: Path) -> None:
    raw = dump(reviews())
    for name in ("plain/any.json", "packed/" + renttherunway.FILE, "deep/renttherunway/part.json.gz", "dos/a.json"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        content = raw.replace(b"\n", b"\r\n").removesuffix(b"\r\n") if "dos" in name else raw
        file.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    found = renttherunway.read(tmp_path / "plain").texts
    for path in (tmp_path / "packed", tmp_path / "deep", tmp_path / "dos", tmp_path / "packed" / renttherunway.FILE):
        assert equal(renttherunway.read(path).texts, found)


def test_empty_fields_may_be_missing_or_null_or_empty(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    rows = [review("1", "", "10") for _ in range(10)]
    del rows[0]["review_text"]
    rows[1]["review_text"] = None
    rows += [review("1", "x", ""), review("1", "x", None), {**review("1", "x"), "rating": None}]
    file.write_bytes(dump(rows))
    found = renttherunway.read(file)
    assert found.unrated == 3
    assert len(found.texts.label) == 10
    assert len(found.texts.words) == len(found.texts.tokens) == 0


ROW = "one JSON object per line"
RATING = "a whole number from 1 to 10"
BAD_LINES: dict[str, tuple[Any, str, str]] = {
    "cut": ('{"user_id": "1", "rat', 'no JSON but \'{"user_id": "1", "rat\'', ROW),
    "blank line": ("", "no JSON but ''", ROW),
    "csv": ("1,10,nice", "no JSON but '1,10,nice'", ROW),
    "deep": ("[" * 100_000, f"no JSON but '{'[' * 40}'...", ROW),
    "array": ([1, 2], "JSON but no object: '[1, 2]'", ROW),
    "no user": ({"rating": "10", "review_text": "x"}, "the user_id is missing", "a user's id"),
    "empty user": (review("", "x"), "the user_id is missing", "a user's id"),
    "user": ({**review("1", "x"), "user_id": 1}, "the user_id is '1'", "a text in quotes"),
    "rating as a number": ({**review("1", "x"), "rating": 10}, "the rating is '10'", "a text in quotes"),
    "rating beyond": (review("1", "x", "11"), "the rating is '11'", RATING),
    "rating of 0": (review("1", "x", "0"), "the rating is '0'", RATING),
    "rating as a fraction": (review("1", "x", "9.5"), "the rating is '9.5'", RATING),
    "nan rating": (review("1", "x", "nan"), "the rating is 'nan'", RATING),
    "rating in words": (review("1", "x", "十"), "the rating is '?'", RATING),
    "text": ({**review("1", "x"), "review_text": ["x"]}, "the review_text is \"['x']\"", "a text in quotes"),
    "half a character": (review("1", "\ud83d"), "the review_text has half a character in it", "a text in Unicode"),
}


@pytest.mark.parametrize("case", BAD_LINES)
@pytest.mark.parametrize("line", [1, 30])
def test_a_bad_line_is_named(tmp_path: Path, case: str, line: int) -> None:
    rows: list[Any] = reviews()
    rows[line - 1], found, expected = BAD_LINES[case]
    file = tmp_path / renttherunway.FILE
    file.write_bytes(gzip.compress(dump(rows)))
    told = sentence(tmp_path)
    assert told == f"{file}, line {line}: {found}, expected {expected}; correct the line or fetch the file again."


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(dump(reviews()[:2]) + b'{"user_id": "\xff"}\n')
    assert sentence(tmp_path).startswith(f'{file}, line 3: no JSON but \'{{"user_id": "\xff"}}\', expected ')


def test_what_is_missing_or_there_twice_is_named(tmp_path: Path) -> None:
    assert sentence(tmp_path / "nowhere").startswith(f"{tmp_path / 'nowhere'} does not exist, expected renttherunway_")
    assert sentence(tmp_path).startswith(f"{tmp_path} holds no .json.gz or .json file such as renttherunway_")
    for name in ("b.json", "a.json.gz"):
        (tmp_path / name).write_bytes(b"{}")
    assert sentence(tmp_path) == f"{tmp_path} holds a.json.gz and b.json, expected one file; name the file."


def test_no_damage_gives_anything_but_texts_or_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = tmp_path / "some.json"
    good = dump(reviews())
    for _ in range(150):
        raw = bytearray(good)
        for at in rng.integers(0, len(raw), rng.integers(1, 4)):
            raw[at] = rng.integers(0, 256)
        file.write_bytes(raw)
        with suppress(UserError):
            renttherunway.read(file, at_least=1)


@pytest.mark.skipif(not REAL.is_dir(), reason="renttherunway is not there (FEDSLICE_DATA)")
def test_the_real_reviews() -> None:
    found = renttherunway.read(REAL_DATA)
    texts = found.texts
    assert (found.unrated, len(texts.label), texts.users) == (1, 24_492, 1_395)
    assert texts.label.sum() == 15_593
    assert texts.words[:4].to_list() == ["the", "i", "a", "it"]
    assert len(texts.words) == 11_963
    owner = np.repeat(texts.user, np.diff(texts.offsets)).astype(np.int64)
    assert len(np.unique(owner[texts.tokens == 1])) == 1_394
