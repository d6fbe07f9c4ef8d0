"""Amazon Electronics: the arrays that come out of good files, and the sentence that comes out of bad ones."""

import gzip
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedslice.core.errors import UserError
from fedslice.datasets import amazon
from layouts import REAL_DATA, one_sentence, write_amazon

REAL = REAL_DATA / "amazon_electronics_fedsubavg"


def sentence(path: Path) -> str:
    return one_sentence(amazon.read, path)


def unpack(folder: Path) -> list[bytes]:
    return gzip.decompress((folder / "amazon_train.tsv.gz").read_bytes()).splitlines(keepends=True)


def equal(a: amazon.Rows, b: amazon.Rows) -> bool:
    pairs = [(getattr(a, name), getattr(b, name)) for name in ("label", "user", "item")]
    pairs += [(a.history.values, b.history.values), (a.history.offsets, b.history.offsets)]
    return all(np.array_equal(one, other) for one, other in pairs)


def split_by_user(folder: Path, lines: list[bytes]) -> None:
    folder.mkdir(parents=True)
    for line in lines:
        user = line.decode().split("\t")[1]
        with (folder / f"user_{user}").open("ab") as file:
            file.write(line)


def test_arrays_follow_the_file(tmp_path: Path) -> None:
    file = tmp_path / "amazon_train.tsv"
    file.write_text("1\t5\t33135\t0\n0\t5\t7\t33135\n1\t1869\t2\t4,4,9\n")
    found = amazon.read(tmp_path).train
    assert len(found) == 3
    assert found.label.tolist() == [1, 0, 1]
    assert found.user.tolist() == [5, 5, 1869]
    assert found.item.tolist() == [33135, 7, 2]
    assert found.history.values.tolist() == [0, 33135, 4, 4, 9]
    assert found.history.offsets.tolist() == [0, 1, 2, 5]
    arrays = (found.label, found.user, found.item, found.history.values, found.history.offsets)
    assert [array.dtype.name for array in arrays] == ["int8", "int32", "int32", "int32", "int64"]
    assert equal(amazon.read(file).train, found)


def test_every_layout_gives_the_same_arrays(tmp_path: Path) -> None:
    folder = write_amazon(tmp_path / "packed")
    found = amazon.read(folder)
    assert len(found.train) == 12 * 30
    assert found.test is None
    lines = unpack(folder)
    write_amazon(tmp_path / "deep" / "amazon_electronics_fedsubavg")
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "amazon_train.tsv").write_bytes(b"".join(lines))
    (tmp_path / "central" / "central_data").mkdir(parents=True)
    (tmp_path / "central" / "central_data" / "amazon_train").write_bytes(b"".join(lines))
    split_by_user(tmp_path / "authors" / "user_data" / "users", lines)
    (tmp_path / "authors" / "user_data" / "user_data.py").write_text("the script that wrote them")
    split_by_user(tmp_path / "short" / "users", lines)
    for path in (
        tmp_path / "deep",
        tmp_path / "flat",
        tmp_path / "flat" / "amazon_train.tsv",
        folder / "amazon_train.tsv.gz",
        tmp_path / "central",
        tmp_path / "authors",
        tmp_path / "authors" / "user_data",
        tmp_path / "authors" / "user_data" / "users",
        tmp_path / "short",
    ):
        assert equal(amazon.read(path).train, found.train)


def test_the_test_part_is_found_beside_or_in_central_data(tmp_path: Path) -> None:
    folder = write_amazon(tmp_path / "both", test_rows=4)
    found = amazon.read(folder)
    assert found.test is not None
    assert len(found.test) == 12 * 4
    assert np.bincount(found.test.user)[1:].tolist() == [4] * 12
    assert equal(amazon.read(folder / "amazon_train.tsv.gz").test or found.train, found.test)
    authors = tmp_path / "authors"
    split_by_user(authors / "user_data" / "users", unpack(folder))
    (authors / "central_data").mkdir()
    packed = (folder / "amazon_test.tsv.gz").read_bytes()
    (authors / "central_data" / "amazon_test").write_bytes(gzip.decompress(packed))
    for path in (authors, authors / "user_data", authors / "user_data" / "users"):
        again = amazon.read(path)
        assert again.test is not None
        assert equal(again.test, found.test)
        assert equal(again.train, found.train)


def test_windows_line_ends_and_a_missing_last_one_are_read(tmp_path: Path) -> None:
    folder = write_amazon(tmp_path)
    before = amazon.read(folder).train
    file = tmp_path / "other.tsv"
    file.write_bytes(b"".join(unpack(folder)).replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    assert equal(amazon.read(file).train, before)


def test_the_way_line_by_line_gives_the_same_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_amazon(tmp_path)
    fast = amazon.read(folder).train
    monkeypatch.setattr(amazon, "_rows_fast", lambda _: None)
    assert equal(amazon.read(folder).train, fast)


USER, ITEM = "a whole number from 1 to 1869", "a whole number from 1 to 33135"
HISTORY = "whole numbers from 0 to 33135 joined by commas (0 for an empty history)"
BAD_LINES = {
    "columns": ("1\t2\t3", "3 columns found in '1\\t2\\t3'", "4 columns separated by tabs"),
    "more columns": ("1\t2\t3\t4\t5", "5 columns", "4 columns separated by tabs"),
    "header": ("click,user_id,item_id", "1 column found", "4 columns separated by tabs"),
    "blank line": ("", "1 column found in ''", "4 columns separated by tabs"),
    "binary": ("\xff\xfe\x00", "1 column found", "4 columns separated by tabs"),
    "click": ("2\t3\t4\t0", "the click is '2'", "0 or 1"),
    "click below 0": ("-1\t3\t4\t0", "the click is '-1'", "0 or 1"),
    "click as a fraction": ("1.0\t3\t4\t0", "the click is '1.0'", "0 or 1"),
    "nan click": ("nan\t3\t4\t0", "the click is 'nan'", "0 or 1"),
    "no click": ("\t3\t4\t0", "the click is ''", "0 or 1"),
    "user beyond": ("1\t1870\t4\t0", "the user id is '1870'", USER),
    "user of the padding": ("1\t0\t4\t0", "the user id is '0'", USER),
    "user below 0": ("1\t-3\t4\t0", "the user id is '-3'", USER),
    "nan user": ("1\tNaN\t4\t0", "the user id is 'NaN'", USER),
    "huge user": ("1\t" + "9" * 30 + "\t4\t0", "the user id is '9999", USER),
    "item beyond": ("1\t3\t33136\t0", "the item id is '33136'", ITEM),
    "item of the padding": ("1\t3\t0\t0", "the item id is '0'", ITEM),
    "item": ("1\t3\tB00004\t0", "the item id is 'B00004'", ITEM),
    "no history": ("1\t3\t4\t", "an item of the history is ''", HISTORY),
    "gap in the history": ("1\t3\t4\t5,,6", "an item of the history is ''", HISTORY),
    "history beyond": ("1\t3\t4\t5,33136", "an item of the history is '33136'", HISTORY),
    "history below 0": ("1\t3\t4\t5,-6", "an item of the history is '-6'", HISTORY),
    "history in fractions": ("1\t3\t4\t5.5", "an item of the history is '5.5'", HISTORY),
    "history not in utf-8": ("1\t3\t4\t\xff", "an item of the history is '\xff'", HISTORY),
}


@pytest.mark.parametrize("case", BAD_LINES)
@pytest.mark.parametrize("line", [1, 123])
@pytest.mark.parametrize("suffix", [".tsv", ".tsv.gz"])
def test_a_bad_line_is_named(tmp_path: Path, case: str, line: int, suffix: str) -> None:
    lines = unpack(write_amazon(tmp_path / "good"))
    text, found, expected = BAD_LINES[case]
    lines[line - 1] = text.encode("latin-1") + b"\n"
    file = tmp_path / f"amazon_train{suffix}"
    raw = b"".join(lines)
    file.write_bytes(gzip.compress(raw) if suffix.endswith("gz") else raw)
    told = sentence(tmp_path)
    assert told.startswith(f"{file}, line {line}: ")
    assert found in told
    assert f"expected {expected}" in told
    assert told.endswith("; correct the line or fetch the file again.")


def test_a_bad_line_of_one_user_or_of_the_test_part_is_named(tmp_path: Path) -> None:
    lines = unpack(write_amazon(tmp_path / "good"))
    split_by_user(tmp_path / "users", lines)
    file = tmp_path / "users" / "user_10"
    good = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*good[:6], b"7\t10\t3\t0\n", *good[7:]]))
    assert sentence(tmp_path).startswith(f"{file}, line 7: the click is '7', expected 0 or 1")
    file.write_bytes(b"".join(good))
    test = tmp_path / "amazon_test"
    test.write_text("1\t2\t3\t0\n1\t2\n")
    assert sentence(tmp_path).startswith(f"{test}, line 2: 2 columns found")


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_an_empty_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "amazon_train.tsv"
    file.write_bytes(content)
    assert f"{file} is empty, expected lines of text" in sentence(tmp_path)
    file.unlink()
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "user_3").write_bytes(content)
    assert "user_3 is empty" in sentence(tmp_path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert "nowhere does not exist" in sentence(tmp_path / "nowhere")
    told = sentence(tmp_path)
    assert f"{tmp_path} holds no amazon_train.tsv.gz, amazon_train.tsv" in told
    assert "user_data/users/user_*" in told


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def damage(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[100:120] = bytes(20)
    file.write_bytes(raw)


def replace(file: Path) -> None:
    file.write_text("<html>Not found</html>")


@pytest.mark.parametrize("harm", [cut, damage, replace])
def test_a_broken_archive_is_told_in_one_sentence(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    file = write_amazon(tmp_path) / "amazon_train.tsv.gz"
    harm(file)
    told = sentence(tmp_path)
    assert f"{file} cannot be read as a gzip archive" in told
    assert "fetch it again" in told


def test_an_archive_that_unpacks_to_an_absurd_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_amazon(tmp_path)
    monkeypatch.setattr(amazon, "MAX_BYTES", 1000)
    assert "amazon_train.tsv.gz unpacks to more than 1,000 bytes" in sentence(tmp_path)


def test_no_damage_gives_anything_but_arrays_or_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    packed = write_amazon(tmp_path) / "amazon_train.tsv.gz"
    plain = tmp_path / "plain.tsv"
    plain.write_bytes(b"".join(unpack(tmp_path)))
    for file in (packed, plain):
        good = file.read_bytes()
        for _ in range(200):
            raw = bytearray(good)
            for at in rng.integers(0, len(raw), rng.integers(1, 4)):
                raw[at] = rng.integers(0, 256)
            file.write_bytes(raw[: len(raw) - int(rng.integers(0, 20))])
            with suppress(UserError):
                amazon.read(file)


@pytest.mark.skipif(not REAL.is_dir(), reason="amazon_electronics_fedsubavg is not there (FEDSLICE_DATA)")
def test_the_real_training_part() -> None:
    found = amazon.read(REAL)
    assert found.test is None
    assert len(found.train) == 99_710
    assert found.train.label.sum() == 55_363
    assert len(np.unique(found.train.user)) == 1_859
    assert len(np.unique(found.train.item)) == 29_148
    lengths = np.diff(found.train.history.offsets)
    assert lengths.min() == 1
    assert lengths.max() == 229
    assert equal(amazon.read(REAL_DATA).train, found.train)
