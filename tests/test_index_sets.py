"""Index sets and heat of the training data against plain sets (FedSubAvg, section 2)."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedslice.data import index_sets
from fedslice.data.federation import Federation
from fedslice.data.index_sets import IndexSets
from fedslice.data.ragged import PAD, Ragged
from fedslice.task import Task

ROWS = 9
ids = st.integers(0, ROWS - 1)


@st.composite
def populations(draw: st.DrawFn) -> tuple[Federation, list[dict[str, list[int]]], list[int]]:
    """A federation with four kinds of features, its training samples as lists, and who owns each."""
    count = draw(st.integers(1, 20))
    client = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    stream = draw(st.lists(ids, min_size=4, max_size=12))
    starts = draw(st.lists(st.integers(0, len(stream) - 3), min_size=count, max_size=count))
    lengths = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    samples = [
        {
            "one": [draw(ids)],
            "two": draw(st.lists(ids, min_size=2, max_size=2)),
            "many": draw(st.lists(ids, max_size=3)),
            "window": stream[start : start + length],
        }
        for start, length in zip(starts, lengths, strict=True)
    ]
    test = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    test[draw(st.integers(0, count - 1))] = False
    federation = Federation.from_arrays(
        client=client,
        features={
            "one": np.array([s["one"][0] for s in samples]),
            "two": np.array([s["two"] for s in samples]),
            "many": Ragged.from_lists([s["many"] for s in samples]),
            "window": Ragged(torch.tensor(stream), torch.tensor(starts), torch.tensor(lengths)),
        },
        label=np.zeros(count),
        test=np.array(test),
    )
    kept = [i for i in range(count) if not test[i]]
    return federation, [samples[i] for i in kept], [client[i] for i in kept]


def brute(population: tuple[Federation, list[dict[str, list[int]]], list[int]], features: tuple[str, ...]) -> list[set]:
    federation, samples, owner = population
    out = []
    for name in federation.ids.tolist():
        mine = [s for s, c in zip(samples, owner, strict=True) if c == name]
        out.append(
            {i for s in mine for f in features for i in s[f]} | ({PAD} if {"many", "window"} & {*features} else set())
        )
    return out


FEATURES = [("one",), ("two",), ("many",), ("one", "two"), ("two", "many"), ("many", "one", "two")]
FEATURES += [("window",), ("one", "window"), ("window", "many")]


@settings(deadline=None, max_examples=80)
@given(populations(), st.sampled_from(FEATURES), st.sampled_from([1, 2, 5, 1 << 23]), st.data())
def test_index_sets_counts_heat_and_weight(
    population: Any, features: tuple[str, ...], at_once: int, data: st.DataObject
) -> None:
    federation = population[0]
    expected = brute(population, features)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_sets, "_IDS_AT_ONCE", at_once)
        sets = IndexSets(federation.train, features, ("t",), ROWS)
        asked = data.draw(st.lists(st.integers(0, len(federation) - 1), min_size=1, max_size=6))
        flat, counts = sets.of(torch.tensor(asked))
        assert [part.tolist() for part in flat.split(counts.tolist())] == [sorted(expected[c]) for c in asked]
        assert sets.counts.tolist() == [len(held) for held in expected]
        assert sets.heat.tolist() == [sum(m in held for held in expected) for m in range(ROWS)]
        weights = torch.tensor([1.5 * (c + 1) for c in range(len(federation))])
        total = [sum(1.5 * (c + 1) for c, held in enumerate(expected) if m in held) for m in range(ROWS)]
        assert sets.weight(weights).tolist() == pytest.approx(total)
        assert sets.weight(weights).dtype == torch.float64
        axis = sets.axis(torch.tensor(asked))
        assert axis.counts.tolist() == [len(expected[c]) for c in asked]
        for place, c in enumerate(asked):
            assert axis.ids[place][axis.mask[place]].tolist() == sorted(expected[c])


def test_every_block_is_bounded_and_every_client_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation.from_arrays(
        client=np.repeat(np.arange(6), [1, 2, 9, 1, 1, 3]),
        features={"x": np.arange(17) % 5},
        label=np.zeros(17),
        test=0.0,
    )
    monkeypatch.setattr(index_sets, "_IDS_AT_ONCE", 3)
    blocks = [clients.tolist() for clients, _, _ in IndexSets(federation.train, ("x",), ("t",), 5)._blocks()]
    assert blocks == [[0, 1], [2], [3, 4], [5]], "a client that alone is too much has a block of its own"


def test_only_training_data_count() -> None:
    federation = Federation.from_arrays(
        client=[0, 0, 1], features={"x": [1, 2, 3]}, label=[0, 0, 0], test=np.array([False, True, False])
    )
    assert IndexSets(federation.train, ("x",), ("t",), 5).heat.tolist() == [0, 1, 0, 1, 0]


class Tables(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, rows in {"a": ROWS, "b": ROWS, "c": ROWS, "d": 4}.items():
            setattr(self, name, torch.nn.Embedding(rows, 2))

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (self.a(x) + self.b(x) + self.b(y) + self.c(y)).sum(-1) + self.d(z).sum(-1)


def test_tables_that_share_a_feature_share_their_index_sets() -> None:
    """Joined by x and y, the three tables of a client hold the rows of either; d goes its own way."""
    federation = Federation.from_arrays(
        client=[0, 1], features={"x": [1, 2], "y": [5, 6], "z": [0, 3]}, label=[0.0, 0.0], test=0.0
    )
    task = Task(
        federation,
        Tables(),
        lambda out, label: (out - label) ** 2,
        tables={"a.weight": "x", "d.weight": "z", "c.weight": "y", "b.weight": ["x", "y"]},
    )
    groups = {sets.tables: (sets.features, sets) for sets in task.index_sets}
    assert groups.keys() == {("d.weight",), ("a.weight", "c.weight", "b.weight")}
    features, sets = groups["a.weight", "c.weight", "b.weight"]
    assert set(features) == {"x", "y"}
    assert [part.tolist() for part in sets.of(torch.tensor([0, 1]))[0].split(2)] == [[1, 5], [2, 6]]
    assert not sets.padded
    assert groups[("d.weight",)][1].of(torch.tensor([1, 0]))[0].tolist() == [3, 0]


def test_the_padding_row_belongs_to_everyone() -> None:
    federation = Federation.from_arrays(
        client=[0, 1, 2], features={"h": Ragged.from_lists([[3], [], [2, 3]])}, label=[0, 0, 0], test=0.0
    )
    sets = IndexSets(federation.train, ("h",), ("t",), 4)
    assert sets.padded
    assert sets.heat.tolist() == [3, 0, 1, 2]
    assert sets.counts.tolist() == [2, 1, 3]
