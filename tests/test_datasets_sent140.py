"""Sentiment140: the texts that come out of good files, and the sentence that comes out of bad ones."""

import csv
import io
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedslice.core.errors import UserError
from fedslice.datasets import sent140, text
from layouts import one_sentence

TEXTS = ("@bob I loooove it", "so sad &amp; tired :(", 'he said "no", then left', "", "caf\xe9 http://t.co/x", "!!!")


def tweet(number: int, user: str, words: str, polarity: int | str = 0) -> str:
    fields = (polarity, 1_467_810_369 + number, "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, words)
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(fields)
    return out.getvalue()


def tweets() -> list[str]:
    """One line per tweet, users mixed: zoe has 50 tweets, ann 41, joe 40 and max 1."""
    users = ["zoe"] * 50 + ["ann"] * 41 + ["joe"] * 40 + ["max"]
    order = np.random.default_rng(0).permutation(len(users))
    return [tweet(i, users[at], TEXTS[at % len(TEXTS)], 4 * (at % 3 == 0)) for i, at in enumerate(order)]


def write(folder: Path, rows: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / sent140.FILE
    file.write_bytes("".join(rows).encode("latin-1"))
    return file


def sentence(path: Path) -> str:
    return one_sentence(sent140.read, path)


def equal(a: text.Texts, b: text.Texts) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in text.Texts.__dataclass_fields__)


def test_texts_are_those_of_a_plain_computation(tmp_path: Path) -> None:
    rows = [next(csv.reader([row])) for row in tweets()]
    kept = [row for row in rows if row[4] in ("zoe", "ann")]
    found = sent140.read(write(tmp_path, tweets()))
    assert found.users == 2
    assert found.user.tolist() == [["ann", "zoe"].index(row[4]) for row in kept]
    assert found.label.tolist() == [int(row[0] == "4") for row in kept]
    said = {
        TEXTS[0]: "<user> i loove it",
        TEXTS[1]: "so sad tired",
        TEXTS[2]: "he said no then left",
        TEXTS[4]: "caf <url>",
    }
    sequences = [found.tokens[a:b] for a, b in zip(found.offsets, found.offsets[1:], strict=False)]
    words = [" ".join(found.words[int(n) - 1] for n in sequence) for sequence in sequences]
    assert words == [said.get(row[5], "") for row in kept]
    assert np.diff(found.offsets).min() == 0


def test_words_are_cut_and_those_of_other_users_have_no_number(tmp_path: Path) -> None:
    rows = [*tweets(), tweet(999, "max", "unheard")]
    whole, cut = sent140.read(write(tmp_path, rows)), sent140.read(tmp_path, tokens=2)
    assert "unheard" not in whole.words
    assert "tired" in whole.words
    assert "tired" not in cut.words
    assert np.array_equal(np.diff(cut.offsets), np.minimum(np.diff(whole.offsets), 2))


def test_every_place_gives_the_same_texts(tmp_path: Path) -> None:
    file = write(tmp_path / "flat", tweets())
    found = sent140.read(file)
    write(tmp_path / "inner" / "sent140", tweets())
    (tmp_path / "zip").mkdir()
    archive = tmp_path / "zip" / sent140.ARCHIVE
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("testdata.manual.2009.06.14.csv", tweet(1, "eve", "neutral", 2))
        out.write(file, file.name)
    other = tmp_path / "other.csv"
    other.write_bytes(file.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    for path in (file.parent, tmp_path / "inner", archive, archive.parent, other):
        assert equal(sent140.read(path), found)


def test_the_way_line_by_line_gives_the_same_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, tweets())
    assert sent140._tweets_fast(file.read_bytes().rstrip(b"\n")) is not None
    fast = sent140.read(file)
    monkeypatch.setattr(sent140, "_tweets_fast", lambda _: None)
    assert equal(sent140.read(file), fast)


def test_a_text_of_several_lines_and_fields_without_quotes_are_read(tmp_path: Path) -> None:
    plain = [row if "," in next(csv.reader([row]))[5] else row.replace('"', "") for row in tweets()]
    assert plain != tweets()
    found = sent140.read(write(tmp_path / "quoted", tweets()))
    assert equal(sent140.read(write(tmp_path / "plain", plain)), found)
    split = [row.replace("so sad", "so\nsad") for row in tweets()]
    assert equal(sent140.read(write(tmp_path / "split", split)), found)


GOOD = '"4","7","date","NO_QUERY","zoe","hello"\n'
ROW = "6 columns separated by commas: polarity, id, date, query, user, text"
POLARITY = "0 or 4 (the training file has no neutral tweets)"
BAD_LINES = {
    "neutral": (GOOD.replace('"4"', '"2"'), "the polarity is '2'", POLARITY),
    "header": ("target,ids,date,flag,user,text\n", "the polarity is 'target'", POLARITY),
    "polarity as a fraction": (GOOD.replace('"4"', '"4.0"'), "the polarity is '4.0'", POLARITY),
    "no polarity": (GOOD.replace('"4"', '""'), "the polarity is ''", POLARITY),
    "id": (GOOD.replace('"7"', '"x7"'), "the id is 'x7'", "a whole number, 0 or more"),
    "id below 0": (GOOD.replace('"7"', '"-7"'), "the id is '-7'", "a whole number, 0 or more"),
    "no user": (GOOD.replace('"zoe"', '""'), "the user is ''", "a user's name"),
    "no text": ('"4","7","date","NO_QUERY","zoe"\n', "5 columns found in '4,7,date,NO_QUERY,zoe'", ROW),
    "more columns": (GOOD.replace("\n", ',"x"\n'), "7 columns found in", ROW),
    "other columns": ("4\t7\tdate\tNO_QUERY\tzoe\thello\n", "1 column found in", ROW),
    "blank line": ("\n", "0 columns found in ''", ROW),
    "quotes inside": (GOOD.replace("hello", 'h"ell"o'), "the quotes are out of order", ROW),
    "quote inside": (GOOD.replace("hello", 'he"llo'), "the quotes are out of order", ROW),
}


@pytest.mark.parametrize("case", BAD_LINES)
@pytest.mark.parametrize("line", [1, 100])
def test_a_bad_line_is_named(tmp_path: Path, case: str, line: int) -> None:
    rows = tweets()
    rows[line - 1], found, expected = BAD_LINES[case]
    file = write(tmp_path, rows)
    told = sentence(tmp_path)
    assert told.startswith(f"{file}, line {line}: {found}")
    assert told.endswith(f", expected {expected}; correct the line or fetch the file again.")


def test_a_quote_that_nobody_closes_is_named_by_the_line_that_opens_it(tmp_path: Path) -> None:
    rows = tweets()
    rows[-1] = GOOD.replace('hello"', "hello")
    file = write(tmp_path, rows)
    assert sentence(tmp_path).startswith(f"{file}, line {len(rows)}: the quotes are out of order")


def test_a_line_after_a_text_of_two_lines_has_its_own_number(tmp_path: Path) -> None:
    rows = tweets()
    rows[0], rows[1] = GOOD.replace("hello", "hel\nlo"), GOOD.replace('"4"', '"2"')
    assert sentence(write(tmp_path, rows)).startswith(f"{tmp_path / sent140.FILE}, line 3: the polarity is '2'")


def test_a_bad_line_in_the_zip_is_named(tmp_path: Path) -> None:
    archive = tmp_path / sent140.ARCHIVE
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr(sent140.FILE, "".join([*tweets()[:5], "nonsense\n"]))
    assert sentence(tmp_path).startswith(f"{archive / sent140.FILE}, line 6: 1 column found in 'nonsense'")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert sentence(tmp_path / "nowhere").startswith(
        f"{tmp_path / 'nowhere'} does not exist, expected {sent140.ARCHIVE}"
    )
    assert sentence(tmp_path) == f"{tmp_path} holds no {sent140.FILE} or {sent140.ARCHIVE}; give the folder that does."
    write(tmp_path, [GOOD] * 40)
    assert "has no user with more than 40 tweets among 40 tweets" in sentence(tmp_path)


def test_no_damage_gives_anything_but_texts_or_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = write(tmp_path, tweets())
    good = file.read_bytes()
    for _ in range(150):
        raw = bytearray(good)
        for at in rng.integers(0, len(raw), rng.integers(1, 4)):
            raw[at] = rng.choice([0, 10, 13, 34, 44, 255])
        file.write_bytes(raw[: len(raw) - int(rng.integers(0, 20))])
        with suppress(UserError):
            sent140.read(file)
