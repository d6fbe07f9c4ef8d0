"""PyTorch datasets spread over clients: who gets which samples, kinds of datasets, and refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

import fedslice
from fedslice import Federation, Ragged, partition
from fedslice.data import ways
from layouts import one_sentence
from toys import samples_of

PARTITIONS = {
    "iid": partition.iid(),
    "dirichlet": partition.dirichlet(0.3),
    "pathological": partition.pathological(classes=2),
    "non-iid-a": partition.non_iid_a(),
    "non-iid-b": partition.non_iid_b(),
    "imbalanced": partition.imbalanced(),
    "pfl-dirichlet": partition.pfl_dirichlet(0.4),
    "pfl-pathological": partition.pfl_pathological(classes=3),
}


class Listed(Dataset[Any]):
    """Samples from a list."""

    def __init__(self, samples: list[Any]):
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> Any:
        return self._samples[number]


def numbered(count: int, classes: int = 4) -> TensorDataset:
    """Sample i says i."""
    return TensorDataset(torch.arange(count).float()[:, None].expand(-1, 2).clone(), torch.arange(count) % classes)


def numbers(column: Any) -> list[int]:
    return [int(one) for one in column[:, 0]]


@pytest.mark.parametrize("way", ways.WAYS)
def test_samples_go_where_the_partition_says(way: str) -> None:
    how = PARTITIONS[way]
    assert how.way == way
    data = numbered(300)
    federation = Federation.partition(data, how, clients=5, test=0.0, seed=3)
    owner = ways.partition(way, data.tensors[1].numpy(), 5, 3, how.beta, how.classes)
    assert federation.ids.tolist() == list(range(5))
    for client in range(5):
        found = [numbers(federation.train.features["x"])[i] for i in samples_of(federation.train, client)]
        assert found == np.flatnonzero(owner == client).tolist()
    assert federation.train.label.tolist() == [i % 4 for i in numbers(federation.train.features["x"])]


def test_every_way_is_a_value() -> None:
    assert {how.way for how in PARTITIONS.values()} == set(ways.WAYS)
    assert fedslice.partition.dirichlet(0.1) == partition.Partition("dirichlet", beta=0.1)


def test_shards_deal_the_test_samples_out_and_other_ways_do_not() -> None:
    train, test = numbered(200), numbered(40)
    dealt = Federation.partition(train, partition.shards(classes=1), clients=4, test=test)
    assert dealt.test.sizes.tolist() == [10] * 4
    for client in range(4):
        kinds = dealt.train.label[list(samples_of(dealt.train, client))]
        assert dealt.test.label[list(samples_of(dealt.test, client))].unique().equal(kinds.unique())
    spread = Federation.partition(train, partition.dirichlet(), clients=4, test=test)
    assert spread.test.sizes.tolist() == [0] * 4
    assert numbers(spread.test.features["x"]) == list(range(40)), "all of them, in their order"
    assert sorted(numbers(spread.train.features["x"])) == list(range(200))


@settings(deadline=None, max_examples=30)
@given(st.integers(8, 60), st.floats(0, 0.9), st.integers(0, 9))
def test_any_dataset_gives_what_its_tensors_give(count: int, test: float, seed: int) -> None:
    data = numbered(count)
    same = [
        Listed([(x, y) for x, y in data]),
        Listed([(x.numpy(), int(y)) for x, y in data]),
        Listed([{"x": x.tolist(), "label": int(y)} for x, y in data]),
        ConcatDataset([Subset(data, range(3)), Subset(data, range(3, count))]),
        Subset(numbered(count + 5), list(range(count))),
    ]
    one = Federation.partition(data, partition.iid(), clients=4, test=test, seed=seed)
    for other in same:
        found = Federation.partition(other, partition.iid(), clients=4, test=test, seed=seed)
        for a, b in ((one.train, found.train), (one.test, found.test)):
            assert isinstance(b.features["x"], Tensor)
            assert torch.equal(a.features["x"], b.features["x"])  # type: ignore[arg-type]
            assert torch.equal(a.label, b.label)
            assert torch.equal(a.offsets, b.offsets)
    sizes = (one.train.sizes + one.test.sizes).tolist()
    assert one.test.sizes.tolist() == [min(n - 1, int(np.floor(test * n + 0.5))) for n in sizes]


def test_sequences_of_differing_lengths_need_no_declaration() -> None:
    data = Listed([(torch.arange(i % 4 + 1), i % 2) for i in range(12)])
    even = Listed([(torch.tensor([7, 8]), 0), (torch.tensor([9, 9]), 1)])
    federation = Federation.partition(data, partition.iid(), clients=3, names=("words", "label"), test=even)
    for part, rows in ((federation.train, 12), (federation.test, 2)):
        features, label = part.batch(torch.arange(rows))
        assert isinstance(part.features["words"], Ragged)
        for words, length, kind in zip(features["words"], features["words_length"], label, strict=True):
            if part is federation.train:
                assert words[: int(length)].tolist() == list(range(int(length)))
                assert (int(length) - 1) % 2 == int(kind)
    assert features["words"].tolist() == [[7, 8], [9, 9]]


def test_the_items_of_a_sample_have_the_names_that_are_given() -> None:
    data = Listed([(0.5, i, [1.0, 2.0], i) for i in range(6)])
    federation = Federation.partition(data, partition.iid(), clients=2, names=("a", "label", "b", "c"), test=0.0)
    assert {name: tuple(column.shape) for name, column in federation.train.features.items()} == {  # type: ignore[union-attr]
        "a": (6,), "b": (6, 2), "c": (6,),
    }  # fmt: skip


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


PAIRS = [(0.5, 0), (1.5, 1)]
BROKEN: list[tuple[Any, dict[str, Any], str]] = [
    (Endless(), {}, "Endless has no length"),
    (Listed([]), {}, "has no samples"),
    (Listed([1, 2]), {}, "a sample is int, expected a tuple or a dictionary"),
    (Listed([(1, 2, 3)] * 2), {}, "samples have 3 items and names are ('x', 'label')"),
    (Listed(PAIRS), {"names": ("x", "y")}, "'label' among them"),
    (Listed(PAIRS), {"names": "ab"}, "names are 'ab'"),
    (Listed([{"x": 1.0}] * 2), {}, "no item 'label'"),
    (Listed([{"x": 1.0, "label": 1}] * 2), {"names": ("x", "label")}, "leave names out"),
    (Listed([(1.0, 0), (2, 0)]), {}, "'x' of sample 1 is of type torch.int64, expected torch.float32"),
    (Listed([("a", 0), ("b", 1)]), {}, "'x' of sample 0 is 'a', expected an array"),
    (Listed([({}, 0)]), {}, "'x' of sample 0"),
    (Listed([(torch.ones(2, 2), 0), (torch.ones(2, 3), 0)]), {}, "has shape (2, 3), expected (2, 2)"),
    (Listed([(torch.ones(2), 0), (torch.ones(2, 3), 0)]), {}, "has shape (2, 3), expected (2,)"),
    (Listed([(1.0, float("nan")), (1.0, 0.0)]), {}, "label row 0 is NaN"),
    (Listed([(1.0, 0.5), (1.0, 1.5)]), {"how": partition.dirichlet()}, "goes by classes, and labels have shape (2,)"),
    (Listed([{"x": 1.0, "label": 0}, {"y": 1.0, "label": 0}]), {}, "sample 1 has items y, label, expected x, label"),
    (Listed(PAIRS), {"how": "dirichlet"}, "a partition is 'dirichlet', expected one such as"),
    (Listed(PAIRS), {"clients": 3}, "clients=3 for 2 samples"),
    (Listed(PAIRS), {"test": 1.0}, "test=1.0 is not a fraction"),
    (Listed(PAIRS), {"test": Listed([([1.0, 2.0], 0)])}, "feature 'x' has rows of shape () and type torch.float32"),
    (Listed(PAIRS), {"test": Listed([{"z": 1.0, "label": 0}])}, "samples have features ['z']"),
]


@pytest.mark.parametrize(("data", "given", "told"), BROKEN, ids=[told for *_, told in BROKEN])
def test_what_cannot_be_spread_is_told_in_a_sentence(data: Any, given: dict[str, Any], told: str) -> None:
    options = {"how": partition.iid(), "clients": 1} | given
    assert told in one_sentence(lambda: Federation.partition(data, **options))


@pytest.mark.parametrize("wrong", [{"beta": 0.0}, {"beta": float("nan")}, {"classes": 0}, {"limit": 0}])
def test_a_partition_with_a_wrong_number_is_refused(wrong: dict[str, Any]) -> None:
    assert "of a partition, expected" in one_sentence(lambda: partition.Partition("dirichlet", **wrong))
