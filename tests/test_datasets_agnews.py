"""AG News: the words of good files, the sentence of bad ones, row numbers, and the articles that are generated."""

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedslice.datasets import agnews, headlines
from layouts import REAL_DATA, one_sentence

TRAIN = (
    '"3","Wall St. Bears","Short-sellers, Wall Street\'s band, are ""green"" again."\n'
    '"1","Talks (Reuters)","A\\B: no; deal!"\n'
    '"4","","#39;s"\n'
)
TEST = '"2","Match lost","Again?"\r\n"1","Été","peace"\r\n'


def write(folder: Path, train: str = TRAIN, test: str = TEST, zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("train", train), ("test", test)):
        raw = content.encode()
        (folder / f"{name}.csv{'.gz' * zipped}").write_bytes(gzip.compress(raw) if zipped else raw)
    return folder


@pytest.mark.parametrize("inner", ["", "ag_news_csv", "ag_news", "agnews"])
@pytest.mark.parametrize("zipped", [False, True])
def test_classes_and_words_are_those_that_were_written(tmp_path: Path, inner: str, zipped: bool) -> None:
    write(tmp_path / inner, zipped=zipped)
    news = agnews.read(tmp_path)
    assert news.whole
    assert news.train.label.tolist() == [2, 0, 3]
    assert [" ".join(words) for words in news.train.words] == [
        "wall st . bears short-sellers , wall street ' s band , are green again .",
        "talks ( reuters ) a\\b no deal !",
        "#39 s",
    ]
    assert news.test.label.tolist() == [1, 0]
    assert news.test.words.to_list() == [["match", "lost", "again", "?"], ["été", "peace"]]


def test_a_part_of_the_training_articles_is_called_one(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train_subset.csv").write_text('label,text,source\n3,"Oil. Dear",a\n1,peace,b\n')
    assert len(agnews.read(tmp_path).train) == 3, "the whole file is preferred"
    (tmp_path / "train.csv").unlink()
    news = agnews.read(tmp_path)
    assert not news.whole
    assert news.train.label.tolist() == [2, 0]
    assert news.train.words.to_list() == [["oil", ".", "dear"], ["peace"]]
    (tmp_path / "train_subset.csv").write_text("label,text,source\n")
    assert "has no articles after its header" in one_sentence(agnews.read, tmp_path)


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_words_are_those_of_the_rules_one_by_one(text: str) -> None:
    """Marks are spaced out, quotes dropped, semicolons and colons made spaces, and the rest is cut at spaces."""
    plain = text.lower()
    if len(plain) != len(text) or not text.isascii():  # what small letters and spaces are is a question of tables
        plain = text = "".join(one for one in text if one.isascii())
        plain = plain.lower()
    for mark in "'.,()!?":
        plain = plain.replace(mark, f" {mark} ")
    plain = plain.replace('"', "").replace("<br />", " ").replace(";", " ").replace(":", " ")
    for separator in "\x1c\x1d\x1e\x1f":  # of which only Python says that they are spaces
        plain, text = plain.replace(separator, "x"), text.replace(separator, "x")
    assert agnews.tokenise(pl.Series([text])).to_list() == [plain.split()]


BAD = {
    "two columns": ('"3","a","b"\n"3","a"\n', "line 2: 2 columns found in '3,a', expected 3 columns"),
    "four columns": ('"3","a","b","c"\n', "line 1: 4 columns found in '3,a,b,c', expected 3 columns"),
    "an empty line": ('"3","a","b"\n\n"3","a","b"\n', "line 2: 0 columns found in '', expected 3"),
    "class 0": ('"0","a","b"\n', "line 1: the class is '0', expected 1 to 4; correct"),
    "class 5": ('"1","a","b"\n"5","a","b"\n', "line 2: the class is '5', expected 1 to 4"),
    "class by name": ('"sports","a","b"\n', "line 1: the class is 'sports', expected 1 to 4"),
    "a header": ("label,text,source\n1,a,b\n", "line 1: the class is 'label', expected 1 to 4"),
    "a huge class": (f'"{"9" * 50}","a","b"\n', "line 1: the class is '9999"),
    "a quote inside": ('"1","a","b"\n"1","say "so" now","b"\n', "line 2: the quotes are out of order"),
    "a quote left open": ('"1","a","b"\n"1","a","b\n"2","c","d"\n', "line 2: the quotes are out of order"),
    "a quote left open at the end": ('"1","a","b"\n"1","a","b\n', "line 2: the quotes are out of order"),
    "too long a field": (f'"1","{"a" * 140_000}","b"\n', "line 1: the quotes are out of order (field larger than"),
    "nothing": ("", "is empty, expected lines of text"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("part", ["train", "test"])
def test_a_bad_line_is_named(tmp_path: Path, case: str, part: str) -> None:
    content, saying = BAD[case]
    write(tmp_path, **{part: content})
    told = one_sentence(agnews.read, tmp_path)
    assert told.startswith(f"{tmp_path / part}.csv")
    assert saying in told


def test_other_bytes_and_missing_files_are_named(tmp_path: Path) -> None:
    assert one_sentence(agnews.read, tmp_path).startswith(f"{tmp_path} holds no train.csv or train.csv.gz or")
    write(tmp_path)
    (tmp_path / "train.csv").write_bytes(b'"1","a","b"\n"1","caf\xe9","b"\n')
    assert one_sentence(agnews.read, tmp_path).startswith(f"{tmp_path / 'train.csv'}, line 2: byte 0xe9 is no UTF-8")
    (tmp_path / "test.csv").unlink()
    assert one_sentence(agnews.read, tmp_path).startswith(f"{tmp_path / 'test.csv'} is missing, plain or .gz")


def test_rows_are_by_frequency_in_what_is_trained_on() -> None:
    words = pl.Series([["b", "a", "b"], ["c", "c", "c", "d"], [], ["b", "a", "a", "c", "c"]])
    train = np.array([True, False, True, True])
    found = agnews.number(words, train, tokens=4, rows=100)
    assert found.rows == 5, "padding, unknown, a and b as often as each other, and c; d is only tested on"
    assert found.tokens.tolist() == [3, 2, 3, 4, 4, 4, 1, 3, 2, 2, 4]
    assert found.offsets.tolist() == [0, 3, 7, 7, 11]
    few = agnews.number(words, train, tokens=4, rows=4)
    assert few.rows == 4
    assert few.tokens.tolist() == [3, 2, 3, 1, 1, 1, 1, 3, 2, 2, 1]


def test_a_generated_article_is_its_seed_and_its_number() -> None:
    whole = headlines.generate(300, 5)
    for first, samples in ((0, 10), (200, 100), (123, 1), (7, 0)):
        part = headlines.generate(samples, 5, first)
        assert part.label.tolist() == whole.label[first : first + samples].tolist()
        assert part.words.to_list() == whole.words[first : first + samples].to_list()
    assert headlines.generate(10, 6).words.to_list() != whole.words[:10].to_list()


def test_generated_articles_have_the_lengths_and_words_they_are_said_to() -> None:
    made = headlines.generate(4000, 0)
    lengths = made.words.list.len().to_numpy()
    assert lengths.mean() == pytest.approx(45, abs=1)
    assert (lengths.min(), lengths.max()) == (headlines.SHORTEST, headlines.LONGEST)
    assert np.bincount(made.label).min() > 900
    words, label = made.words.explode().to_numpy(), np.repeat(made.label, lengths.astype(np.int64))
    own = words >= headlines.COMMON
    assert ((words - headlines.COMMON)[own] // headlines.PER_CLASS == label[own]).all()
    assert own.mean() == pytest.approx(1 / 3, abs=0.02), "the mean of a squared uniform draw"
    article = np.repeat(np.arange(len(made)), lengths.astype(np.int64))
    none = (np.bincount(article, own) == 0).mean()
    assert 0.1 < none < 0.17, "nobody can do better than guess these"


@pytest.mark.skipif(not (REAL_DATA / "ag_news").is_dir(), reason="AG News is not there (FEDSLICE_DATA)")
def test_the_real_articles() -> None:
    news = agnews.read(REAL_DATA)
    assert np.bincount(news.test.label).tolist() == [1_900] * 4
    assert len(news.train) == (120_000 if news.whole else 20_388)
    assert news.test.words.list.len().mean() == pytest.approx(45, abs=3)
