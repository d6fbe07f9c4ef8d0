"""The news task: what it is built from, its vocabulary, and that both engines train it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedslice import Experiment, recipes, tasks
from fedslice.data.ragged import Ragged
from fedslice.datasets import headlines
from fedslice.task import Task
from layouts import one_sentence
from test_datasets_agnews import write

ENTRY = tasks.get("agnews")


def build(data: Path | None = None, **options: Any) -> Task:
    return ENTRY.build({"dim": 4, **options}, data)


def written(folder: Path) -> Path:
    """24 articles to train and 8 to test on, in which the class is one of the words."""
    rows = [f'"{n % 4 + 1}","title {n}","kind{n % 4} of news"\n' for n in range(32)]
    return write(folder, "".join(rows[:24]), "".join(rows[24:]))


def ids(task: Task, part: str) -> torch.Tensor:
    column = getattr(task.federation, part).features["text"]
    assert isinstance(column, Ragged)
    return column.values.view(-1, 5)


def test_official_articles(tmp_path: Path) -> None:
    task = build(written(tmp_path), clients=3)
    assert task.source == (
        "AG News, 24 training articles over 3 clients by iid, 8 test articles, cut after 200 words, table of 33 words, "
        "model fasttext"
    )
    assert task.shapes["word.weight"] == (2 + 3 + 4 + 24, 4), "title, of, news, the kinds and the numbers"
    assert task.federation.test.label.tolist() == [n % 4 for n in range(8)]
    trained, tested = ids(task, "train"), ids(task, "test")
    assert (trained >= 2).all()
    assert (tested[:, 1] == 1).all(), "a number that only occurs in the test articles"
    assert (tested[:, [0, 2, 3, 4]] >= 2).all()
    kinds = {(int(row[2]), int(label)) for row, label in zip(trained, task.federation.train.label, strict=True)}
    assert len(kinds) == len({kind for kind, _ in kinds}) == 4
    short = build(tmp_path, clients=3, tokens=2, words=4)
    assert short.shapes["word.weight"] == (4, 4)


def test_merged_articles_have_the_words_of_those_trained_on(tmp_path: Path) -> None:
    task = build(written(tmp_path), clients=2, split="pfllib")
    assert "AG News, 32 articles over 2 clients by iid, of each client's a quarter held out (8), cut" in task.source
    assert task.federation.test.sizes.tolist() == [4, 4]
    assert task.shapes["word.weight"][0] == 2 + 3 + 4 + 24
    assert (ids(task, "test")[:, 1] == 1).all()


def test_generated_articles_say_so() -> None:
    task = build(train=50, clients=5, data_seed=2, split="pfllib", partition="pfl-dirichlet", beta=5)
    assert task.source.startswith(
        "generated in the shape of AG News (data_seed 2), 50 articles over 5 clients by pfl-dirichlet (beta 5), of each"
    )
    label = headlines.generate(50, 2).label
    both = torch.cat([task.federation.train.label, task.federation.test.label])
    assert sorted(both.tolist()) == sorted(label.tolist())


REFUSED: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "no data": ({"source": "official"}, None, "task 'agnews' needs data (train.csv and test.csv"),
    "data for nothing": ({"source": "generated"}, "x", "task agnews: source=generated needs no data, so --data x"),
    "beta": ({"beta": 0.1}, None, "task agnews: beta=0.1 is for partition=dirichlet or pfl-dirichlet; leave one"),
    "words": ({"words": 2}, None, "task agnews: words=2"),
    "classes": ({"train": 40, "partition": "pathological", "classes": 5}, None, "expected at most the 4 that"),
    "split": ({"split": "half"}, None, "task agnews: split="),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, data, saying = REFUSED[case]
    monkeypatch.setattr("fedslice.tasks.agnews.SAMPLES", (40, 10))
    assert saying in one_sentence(ENTRY.build, options, None if data is None else Path(data))


@pytest.mark.parametrize("recipe", ["fedavg", "fedsubavg"])
def test_both_engines_train_alike_and_learn(tmp_path: Path, recipe: str) -> None:
    task = build(written(tmp_path), clients=3, dim=8)
    found = []
    for engine in ("vectorized", "sequential"):
        asked = recipes.get(recipe, cohort=3, lr=1.0, batch_size=4, epochs=2)
        rows = Experiment(task, asked, rounds=6, eval_every=6, engine=engine).run()
        found.append(rows[-1])
        assert rows[-1]["train_loss"] < rows[0]["train_loss"] - 0.1
    for name in ("train_loss", "test_loss"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-3)
