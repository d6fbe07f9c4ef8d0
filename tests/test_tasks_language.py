"""The language tasks: what they are built from, what they say of it, what they refuse, and that they train."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedslice import Experiment, Task, recipes, tasks
from fedslice.core.errors import UserError
from fedslice.data.ragged import Ragged
from fedslice.datasets import sent140
from fedslice.measure.heat import describe
from layouts import REAL_DATA

NAMES = ("sent140", "renttherunway")


def build(name: str, data: Path | None = None, **options: Any) -> Task:
    return tasks.get(name).build(options, data)


def generated(name: str, **options: Any) -> Task:
    return build(name, source="generated", **{"scale": 0.02, **options})


def write_sent140(folder: Path) -> Path:
    """Two users with 50 tweets, in which "good" and "bad" decide."""
    out = io.StringIO()
    rows = csv.writer(out, quoting=csv.QUOTE_ALL)
    for i in range(100):
        word = ("bad", "good")[i % 2]
        rows.writerow((4 * (i % 2), i, "date", "NO_QUERY", f"user{i // 50}", f"@a {word} day {i}"))
    (folder / sent140.FILE).write_text(out.getvalue(), encoding="latin-1")
    return folder


def write_reviews(folder: Path) -> Path:
    rows = [{"user_id": f"{i // 10}", "rating": ("8", "10")[i % 2], "review_text": "so very nice"} for i in range(30)]
    rows.append({"user_id": "1", "review_text": "no stars"})
    (folder / "some.json").write_text("\n".join(map(json.dumps, rows)))
    return folder


def refused(name: str, data: Path | None = None, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        build(name, data, **options)
    return str(caught.value)


def test_a_task_says_what_it_is_made_of(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    tweets, reviews = write_sent140(tmp_path / "a"), write_reviews(tmp_path / "b")
    assert build("sent140", tweets).source == (
        "Sentiment140, 100 tweets of 2 users with more than 40, uncut, 4 words that start from N(0, 0.1)"
    )
    assert build("sent140", tweets, tokens=2, std=0.5).source == (
        "Sentiment140, 100 tweets of 2 users with more than 40, cut after 2 words, 3 words that start from N(0, 0.5)"
    )
    assert build("renttherunway", reviews, at_least=5).source == (
        "RentTheRunway, 30 reviews (1 without a rating left out) of 3 users with at least 5, cut after 60 words, "
        "3 words that start from N(0, 0.1)"
    )
    assert generated("sent140", data_seed=3).source.startswith(
        "generated like Sentiment140 (data_seed 3), 1,556 tweets of 29 users with more than 40, uncut, "
    )
    assert generated("renttherunway", tokens=None).source.startswith(
        "generated like RentTheRunway (data_seed 0), 492 reviews of 28 users with at least 10, uncut, "
    )


def test_samples_labels_and_split_follow_the_file(tmp_path: Path) -> None:
    task = build("sent140", write_sent140(tmp_path))
    words = sent140.read(tmp_path).words.to_list()
    assert words == ["<user>", "day", "bad", "good"]
    assert task.shapes["word.weight"] == (5, 25)
    for samples in (task.federation.train, task.federation.test):
        features, label = samples.batch(torch.arange(len(samples)))
        assert features["text"].tolist() == [[1, 4 if positive else 3, 2] for positive in label.tolist()]
    assert (len(task.federation.train), len(task.federation.test)) == (80, 20)
    other = build("sent140", tmp_path, data_seed=1)
    assert not torch.equal(task.federation.train.label, other.federation.train.label)


def test_glove_vectors_are_where_training_starts(tmp_path: Path) -> None:
    file = tmp_path / "glove.txt"
    vectors = {"<user>": 1.0, "good": 2.0, "night": 3.0}
    file.write_text("".join(f"{word}{f' {value}' * 25}\n" for word, value in vectors.items()))
    task = build("sent140", write_sent140(tmp_path), glove=f"{file}")
    assert task.source.endswith("4 words that start from GloVe 25d for 2 of them, zero for the others")
    assert task.initial(0)["word.weight"].tolist() == [[value] * 25 for value in (0.0, 1.0, 0.0, 0.0, 2.0)]
    file.write_text("good 1 2 3\n")
    told = refused("sent140", tmp_path, glove=f"{file}")
    assert told.startswith(f"{file}, line 1: 3 numbers after the word 'good', expected 25")


def test_words_start_with_the_deviation_asked_for() -> None:
    for std in (0.1, 2.0):
        assert generated("sent140", std=std).initial(0)["word.weight"].std() == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_what_has_no_place_is_refused(name: str, tmp_path: Path) -> None:
    assert refused(name).startswith(f"task {name!r} needs data (the official ")
    assert refused(name, tmp_path, source="generated") == (
        f"task {name!r} is generated with source=generated, so --data {tmp_path} has no place in it; "
        "leave one of them out."
    )
    assert refused(name, source="generated", glove="x.txt") == (
        f"task {name!r}: glove=x.txt does nothing with source=generated; leave one of them out."
    )
    assert refused(name, tmp_path, scale=0.5) == (
        f"task {name!r}: scale=0.5 does nothing with source=official; leave one of them out."
    )
    for option, value in (("scale", 0), ("scale", 1.5), ("tokens", 0), ("std", 0), ("source", "real"), ("nonsense", 1)):
        assert option in refused(name, tmp_path, **{option: value})


def test_options_that_others_make_idle_are_refused(tmp_path: Path) -> None:
    assert "at_least=5 does nothing with source=generated" in refused("renttherunway", source="generated", at_least=5)
    assert "std=0.2 does nothing with glove" in refused("sent140", write_sent140(tmp_path), glove="x", std=0.2)


def test_the_generated_task_has_the_published_statistics() -> None:
    """FedSubAvg, table 1: 1,473 clients, 79,050 samples, dispersion 1,451; its draft, table 1: sparsity 13.15%."""
    task = generated("sent140", scale=1.0)
    seen = describe(task)
    table = seen["tables"][0]
    assert seen["clients"] == 1_473
    assert seen["train_samples"] + seen["test_samples"] == 79_050
    assert seen["test_samples"] == 15_810
    assert seen["feature_heat_dispersion"] == pytest.approx(1_451, abs=5)
    dense = seen["parameters"] - table["rows"] * 25
    assert dense == 131_600 + 101  # the LSTM and its head
    words = table["rows"] - 1
    held = table["rows_per_client"]["mean"] - 1  # without padding
    assert words == pytest.approx(37_000, rel=0.01)
    assert held == pytest.approx(285, abs=15)
    assert (dense + 25 * held) / (dense + 25 * words) == pytest.approx(0.1315, abs=0.001)


def test_the_padding_row_is_everyones_and_no_heat() -> None:
    task = generated("sent140")
    (sets,) = task.index_sets
    assert sets.padded
    assert sets.heat[0] == len(task.federation)
    assert describe(task)["tables"][0]["heat_max"] == int(sets.heat[1:].max())
    column = task.federation.train.features["text"]
    assert isinstance(column, Ragged)
    assert column.values.min() == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recipe", ["fedsubavg", "fedavg"])
def test_two_rounds_train(name: str, recipe: str) -> None:
    task = generated(name, tokens=8)
    settings = {**tasks.get(name).settings, "cohort": 5}
    rows = Experiment(task, recipes.get(recipe, **settings), rounds=2, eval_every=1).run()
    assert [row["round"] for row in rows] == [0, 1, 2]
    losses = [row["train_loss"] for row in rows]
    assert np.isfinite(losses).all()
    assert losses[2] != losses[0]


def test_empty_texts_train(tmp_path: Path) -> None:
    rows = [{"user_id": f"{i // 10}", "rating": ("8", "10")[i % 2], "review_text": "!!"} for i in range(30)]
    (tmp_path / "some.json").write_text("\n".join(map(json.dumps, rows)))
    task = build("renttherunway", tmp_path)
    assert task.shapes["word.weight"] == (1, 25)
    settings = {**tasks.get("renttherunway").settings, "cohort": 3}
    done = Experiment(task, recipes.get("fedsubavg", **settings), rounds=1, eval_every=1).run()
    assert np.isfinite(done[-1]["train_loss"])


@pytest.mark.skipif(not (REAL_DATA / "renttherunway").is_dir(), reason="renttherunway is not there (FEDSLICE_DATA)")
def test_the_real_reviews() -> None:
    task = build("renttherunway", REAL_DATA)
    seen = describe(task)
    assert seen["clients"] == 1_395
    assert seen["train_samples"] + seen["test_samples"] == 24_492
    assert seen["feature_heat_dispersion"] == pytest.approx(1_394, abs=3)
    column = task.federation.train.features["text"]
    assert isinstance(column, Ragged)
    assert int(column.lengths.max()) == 60
