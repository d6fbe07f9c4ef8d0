"""The task at Alibaba's size, made small: histories are the clicks before, tails are tested, both engines train it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedslice import Experiment, recipes
from fedslice.core.errors import UserError
from fedslice.data.ragged import Ragged
from fedslice.data.samples import Samples
from fedslice.datasets import taobao as files
from fedslice.datasets.taobao import Clicks
from fedslice.measure.heat import describe
from fedslice.tasks import taobao
from test_datasets_taobao import some_lines, write

SMALL = {"scale": 0.0003, "test_samples": 300}


def histories(log: Clicks, most: int) -> list[tuple[list[int], list[int]]]:
    """The last clicked items and categories of the same user before each sample, by walking through the log."""
    out = []
    before: dict[int, list[tuple[int, int]]] = {}
    for user, item, category, label in zip(log.user, log.item, log.category, log.label, strict=True):
        clicked = before.setdefault(int(user), [])
        last = clicked[-most:] if most else []
        out.append(([i for i, _ in last], [c for _, c in last]))
        if label:
            clicked.append((int(item), int(category)))
    return out


def listed(samples: Samples, name: str) -> list[list[int]]:
    column = samples.features[name]
    assert isinstance(column, Ragged)
    ids, lengths = column.padded(torch.arange(len(samples)))
    return [row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)]


def seen(samples: Samples) -> list[tuple[Any, ...]]:
    """Everything a sample brings, as one tuple."""
    plain = [samples.features[name].tolist() for name in ("user", "item", "category")]  # type: ignore[union-attr]
    clicked = [[tuple(row) for row in listed(samples, name)] for name in ("history", "category_history")]
    return list(zip(*plain, *clicked, samples.label.tolist(), strict=True))


@pytest.mark.parametrize("most", [0, 1, 4, 1000])
def test_histories_are_the_clicks_before_and_tests_are_of_the_tails(most: int) -> None:
    log = taobao.generated.generate(SMALL["scale"], seed=3)
    task = taobao.ENTRY.build({**SMALL, "history": most, "data_seed": 3, "holdout": 0.25}, None)
    every = [
        (int(u), int(i), int(c), tuple(items), tuple(categories), int(label))
        for u, i, c, label, (items, categories) in zip(
            log.user, log.item, log.category, log.label, histories(log, most), strict=True
        )
    ]
    sizes = np.bincount(log.user)[1:]
    train, tails, first = [], [], 0
    for size in sizes.tolist():
        cut = first + size - size // 4
        train += every[first:cut]
        tails += every[cut : first + size]
        first += size
    assert seen(task.federation.train) == train
    tested = seen(task.federation.test)
    assert len(tested) == 300 < len(tails)
    assert set(tested) <= set(tails)


def test_storage_is_shared_and_small() -> None:
    features = taobao.ENTRY.build(SMALL, None).federation.train.features
    for name in ("history", "category_history"):
        column = features[name]
        assert isinstance(column, Ragged)
        kinds = {tensor.dtype for tensor in (column.values, column.offsets, column.lengths)}
        assert kinds == {torch.int32}
        assert len(column.values) < len(column) < int(column.lengths.sum())


def test_the_split_and_its_tests_depend_on_the_seed_alone() -> None:
    one, same, other = (taobao.ENTRY.build({**SMALL, "data_seed": seed}, None).federation for seed in (0, 0, 1))
    assert seen(one.test) == seen(same.test)
    assert seen(one.test) != seen(other.test)
    few = taobao.ENTRY.build({**SMALL, "test_samples": 10**9}, None).federation
    assert len(few.train) + len(few.test) == round(SMALL["scale"] * taobao.generated.SAMPLES), "all tails, if asked for"


def test_the_official_log(tmp_path: Path) -> None:
    folder = write(tmp_path, some_lines({5: 40, 3: 33, 8: 100}))
    task = taobao.ENTRY.build({"users": 2}, folder)
    assert task.federation.ids.tolist() == [1, 2]
    assert task.federation.train.sizes.tolist() == [27, 32]
    assert len(task.federation.test) == 6 + 8
    assert "Taobao's public log, buy, cart or fav against pv, 73 samples" in task.source
    log = files.read(folder)
    whole = taobao.ENTRY.build({"source": "official"}, folder)
    assert task.shapes["user.weight"] == (3, 18)
    assert whole.shapes["item.weight"] == (int(log.item.max()) + 1, 18)
    assert whole.shapes["category.weight"] == (int(log.category.max()) + 1, 18)


@pytest.mark.parametrize(
    ("options", "data", "saying"),
    [
        ({"source": "official"}, None, "task 'taobao' needs data (the public UserBehavior.csv)"),
        ({"source": "generated"}, Path("x"), "source=generated needs no data, so --data x has no place; leave it out."),
        ({"users": 5}, None, "users=5 is for source=official; use scale=... instead."),
        ({"scale": 0.5}, Path("x"), "scale=0.5 is for source=generated; use users=... instead."),
        ({"scale": 0}, None, "task taobao: scale=0"),
        ({"scale": 2}, None, "task taobao: scale=2"),
        ({"test_samples": 0}, None, "task taobao: test_samples=0"),
        ({"history": -1}, None, "task taobao: history=-1"),
    ],
)
def test_what_is_refused(options: dict[str, Any], data: Path | None, saying: str) -> None:
    with pytest.raises(UserError) as caught:
        taobao.ENTRY.build(options, data)
    assert saying in str(caught.value)
    assert "\n" not in str(caught.value)


def test_both_engines_train_alike() -> None:
    task = taobao.ENTRY.build({"scale": 0.0003, "history": 5, "test_samples": 100}, None)
    recipe = recipes.get("fedsubavg", **{**taobao.ENTRY.settings, "cohort": 4, "batch_size": 8})
    found = []
    for engine in ("vectorized", "sequential"):
        run = Experiment(task, recipe, rounds=2, eval_every=2, engine=engine)
        found.append(run.run()[-1])
    for name in ("train_loss", "test_loss", "test_auc"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-3)
    assert found[0]["train_loss"] < 0.69, "less than where the model starts, the logarithm of two"


def test_heat_of_the_three_tables() -> None:
    found = {table["tables"][0]: table for table in describe(taobao.ENTRY.build(SMALL, None))["tables"]}
    assert found.keys() == {"user.weight", "item.weight", "category.weight"}
    assert found["user.weight"]["heat_max"] == 1
    assert found["item.weight"]["features"] == ["item", "history"]
    assert found["category.weight"]["features"] == ["category", "category_history"]
