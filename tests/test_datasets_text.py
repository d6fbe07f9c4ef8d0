"""Words and their numbers, GloVe vectors, and files as they were fetched."""

import bz2
import gzip
import lzma
import re
import zipfile
import zlib
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedslice.core.errors import UserError
from fedslice.datasets import lines, packed, text


def words(*texts: str) -> list[list[str]]:
    return text.tokenise(pl.Series(list(texts), dtype=pl.String)).to_list()


TOKENS = {
    "plain": ("the cat sat", "the cat sat"),
    "case": ("The CAT", "the cat"),
    "other signs": ("a-b_c,d.e!f?g(h)1i2", "a b c d e f g h i"),
    "apostrophes": ("don't it’s", "don t it s"),
    "not a to z": ("café naïve ÿes", "caf na ve es"),
    "entities": ("fish &amp; chips &lt;b&gt; &quot;x&quot; I&#39;m", "fish chips b x i m"),
    "entities once": ("&amp;lt;", "lt"),
    "user": ("@Bob_99 hi @a!", "<user> hi <user>"),
    "at alone": ("a @ b @", "a b"),
    "mail": ("me@host.org", "me <user> org"),
    "address": ("see http://t.co/aB?c=d now", "see <url> now"),
    "addresses": ("HTTPS://X.ORG/@me www.foo.com", "<url> <url>"),
    "address inside a word": ("xhttp://a.b", "x <url>"),
    "user in an entity": ("&#64;bob", "<user>"),
    "letters in a row": ("sooo soo so aaabbbccc", "soo soo so aabbcc"),
    "letters in a row by case": ("SoOoO", "soo"),
    "letters apart": ("a-a-a a a", "a a a a a"),
    "none": ("", ""),
    "no letter": ("123 !!! ...", ""),
    "several lines": ("a\nb\r\n\tc", "a b c"),
}


@pytest.mark.parametrize("case", TOKENS)
def test_a_text_falls_into_words(case: str) -> None:
    given_text, expected = TOKENS[case]
    assert words(given_text) == [expected.split()]


@given(st.lists(st.text(st.sampled_from("aAbB @_1.é'\n")), max_size=8))
def test_words_are_those_of_a_plain_computation(texts: list[str]) -> None:
    def plain(line: str) -> list[str]:
        line = re.sub(r"@[a-z0-9_]+", " USER ", line.lower())
        line = re.sub(r"([a-z])\1{2,}", r"\1\1", re.sub("[^a-zUSER]", " ", line))
        return [word.replace("USER", "<user>") for word in line.split()]

    assert words(*texts) == [plain(line) for line in texts]


@given(st.lists(st.sampled_from(["a", "b", "c", "aa", "z", "<user>"]), max_size=40))
def test_words_are_numbered_by_frequency_and_then_by_name(flat: list[str]) -> None:
    numbers, vocabulary = text.number(pl.Series(flat, dtype=pl.String))
    counts = Counter(flat)
    assert vocabulary.to_list() == sorted(counts, key=lambda word: (-counts[word], word))
    assert [vocabulary[int(n) - 1] for n in numbers] == flat
    assert numbers.dtype == np.int32


def test_texts_keep_their_order_and_empty_ones_stay() -> None:
    texts = pl.Series(["b a b", "!!", "c b a"])
    found = text.collect(pl.Series(["zoe", "ann", "zoe"]), pl.Series([True, False, False]), texts, None)
    assert found.words.to_list() == ["b", "a", "c"]
    assert found.user.tolist() == [1, 0, 1]
    assert found.users == 2
    assert found.label.tolist() == [1, 0, 0]
    assert found.tokens.tolist() == [1, 2, 1, 3, 1, 2]
    assert found.offsets.tolist() == [0, 3, 3, 6]
    dtypes = [array.dtype.name for array in (found.user, found.label, found.tokens, found.offsets)]
    assert dtypes == ["int32", "int8", "int32", "int64"]


def test_words_that_the_cut_takes_away_have_no_number() -> None:
    found = text.collect(pl.Series(["u", "u"]), pl.Series([True, True]), pl.Series(["a b c c c", "d"]), 2)
    assert found.words.to_list() == ["a", "b", "d"]
    assert found.offsets.tolist() == [0, 2, 3]


# --- GloVe -------------------------------------------------------------------------------------------------

GLOVE = '<user> 0.5 -1 2e-1\n" 1 1 1\nthe 1 2 3\nnan 4 5 6\nthe 9 9 9\n'
ASKED = pl.Series(["cat", "the", "<user>", "nan"])
ROWS = [[0, 0, 0], [0, 0, 0], [1, 2, 3], [0.5, -1, 0.2], [4, 5, 6]]


def told(path: Path, dim: int = 3) -> str:
    with pytest.raises(UserError) as caught:
        text.glove(path, ASKED, dim)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert ". " not in sentence
    return sentence


def test_vectors_stand_at_the_numbers_of_their_words(tmp_path: Path) -> None:
    plain, gz, only, official = (tmp_path / n for n in ("g.txt", "g.txt.gz", "only.zip", "official.zip"))
    plain.write_text(GLOVE)
    gz.write_bytes(gzip.compress(GLOVE.encode()))
    with zipfile.ZipFile(only, "w") as archive:
        archive.writestr("any.txt", GLOVE)
    with zipfile.ZipFile(official, "w") as archive:
        archive.writestr("glove.twitter.27B.50d.txt", "a 1\n")
        archive.writestr("glove.twitter.27B.3d.txt", GLOVE.replace("\n", "\r\n"))
    for path in (plain, gz, only, official):
        table, seen = text.glove(path, ASKED, 3)
        np.testing.assert_array_equal(table, np.array(ROWS, np.float32))
        assert (table.dtype, seen) == (np.float32, 3)


def test_vectors_line_by_line_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.txt"
    path.write_bytes(GLOVE.encode() + b" 1 2 3\n\xff 1 2 3\n")  # an empty word, and one that is not UTF-8
    monkeypatch.setattr(text, "_vectors_fast", lambda *_: None)
    np.testing.assert_array_equal(text.glove(path, ASKED, 3)[0], np.array(ROWS, np.float32))


@pytest.mark.parametrize(
    ("line", "found", "expected"),
    [
        ("cat 1 2", "2 numbers after the word 'cat'", "3, separated by single spaces"),
        ("cat 1 2 3 4", "4 numbers after the word 'cat'", "3, separated by single spaces"),
        ("cat  1 2 3", "4 numbers after the word 'cat'", "3, separated by single spaces"),
        ("", "0 numbers after the word ''", "3, separated by single spaces"),
        ("cat 1 two 3", "'two' is among the numbers", "finite numbers"),
        ("cat 1 nan 3", "'nan' is among the numbers", "finite numbers"),
        ("cat 1 -inf 3", "'-inf' is among the numbers", "finite numbers"),
        ("cat 1 1e39 3", "'1e39' is among the numbers", "finite numbers"),
        ("cat 1 1_0 3", "'1_0' is among the numbers", "finite numbers"),
    ],
)
@pytest.mark.parametrize("at", [1, 4])
def test_a_bad_vector_is_named(tmp_path: Path, line: str, found: str, expected: str, at: int) -> None:
    path = tmp_path / "g.txt"
    rows = GLOVE.splitlines()
    rows[at - 1] = line
    path.write_text("\n".join(rows))
    assert told(path).startswith(f"{path}, line {at}: {found}, expected {expected}; ")


def test_a_glove_file_of_another_dimension_is_named(tmp_path: Path) -> None:
    path = tmp_path / "g.txt"
    path.write_text(GLOVE)
    assert told(path, dim=25).startswith(f"{path}, line 1: 3 numbers after the word '<user>', expected 25, ")


ARCHIVES = {
    "gzip": gzip.compress,
    **{f"zlib {level}": partial(zlib.compress, level=level) for level in range(10)},
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "the beginning of zstd": lambda _: b"\x28\xb5\x2f\xfd" + bytes(50),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_under_a_text_s_name_is_not_unpacked(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "g.txt"
    path.write_bytes(ARCHIVES[kind](GLOVE.encode() * 50))
    assert told(path).startswith(f"{path}, line ")
    schema = dict.fromkeys("wabc", pl.String)
    frame = lines.read_csv(path.read_bytes(), schema, separator=" ", quote_char=None)
    assert frame is None or len(frame) < 50


def test_a_first_word_that_looks_like_an_archive_is_a_word(tmp_path: Path) -> None:
    path = tmp_path / "g.txt"
    path.write_text(f"x^2 7 8 9\n{GLOVE}")
    table, seen = text.glove(path, pl.Series(["x^2", "the"]), 3)
    assert table.tolist() == [[0, 0, 0], [7, 8, 9], [1, 2, 3]]
    assert seen == 2


# --- packed files ------------------------------------------------------------------------------------------


def refused(path: Path, limit: int = 1 << 20) -> str:
    with pytest.raises(UserError) as caught:
        packed.load(path, limit, "wanted.txt")
    return str(caught.value)


def test_what_cannot_be_loaded_is_told_in_one_sentence(tmp_path: Path) -> None:
    gz, zipped, plain = tmp_path / "a.gz", tmp_path / "a.zip", tmp_path / "a.txt"
    gz.write_bytes(gzip.compress(b"x" * 5000)[:-12])
    assert refused(gz).startswith(f"{gz} cannot be read as a gzip archive (")
    zipped.write_text("<html>Not found</html>")
    assert refused(zipped).startswith(f"{zipped} cannot be read as a zip archive (")
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("one.txt", "1")
        archive.writestr("two.txt", "2")
    assert refused(zipped) == f"{zipped} holds 2 files and none is called wanted.txt; give the official archive."
    assert refused(plain) == f"{plain} cannot be read (No such file or directory); check it and its permissions."
    plain.write_text(" \n")
    assert refused(plain) == f"{plain} is empty, expected lines of text; fetch the file again."
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("wanted.txt", "x" * 5000)
    assert refused(zipped, 1000).startswith(f"{zipped / 'wanted.txt'} has 5,000 bytes, expected at most 1,000")


def test_no_damage_to_an_archive_gives_anything_but_bytes_or_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    content = "".join(f"line {i}\n" for i in range(50))
    gz, zipped = tmp_path / "a.gz", tmp_path / "a.zip"
    gz.write_bytes(gzip.compress(content.encode(), mtime=0))
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("wanted.txt", content)
    for file in (gz, zipped):
        good = file.read_bytes()
        for _ in range(150):
            raw = bytearray(good)
            for at in rng.integers(0, len(raw), rng.integers(1, 4)):
                raw[at] = rng.integers(0, 256)
            file.write_bytes(raw)
            with suppress(UserError):
                packed.load(file, 1 << 20, "wanted.txt")
