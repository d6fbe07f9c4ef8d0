"""A federation against plain lists: grouping, splits, ragged features, batches, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedslice.errors import UserError
from fedslice.federation import PAD, Federation, Ragged, Samples, ranges
from fedslice.tables import IndexSets
from toys import samples_of

clients_of_samples = st.one_of(
    st.lists(st.integers(-3, 6), min_size=1, max_size=25),
    st.lists(st.sampled_from(["ann", "bob", "cy", "ö"]), min_size=1, max_size=25),
)
rows = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=8)


def sequence(number: int) -> list[int]:
    """A sequence that tells which sample it belongs to."""
    return [number] * (number % 4)


def numbered(client: list[Any], **options: Any) -> Federation:
    """Every feature and the label of sample i say i."""
    count = len(client)
    features = {
        "x": np.arange(count),
        "pair": np.stack([np.arange(count), -np.arange(count)], 1),
        "seq": Ragged.from_lists([sequence(i) for i in range(count)]),
    }
    return Federation.from_arrays(client=client, features=features, label=np.arange(count), **options)


def owned(federation: Federation, part: Samples) -> dict[Any, list[int]]:
    """The samples of every client, by its own name."""
    return {
        name: [int(part.label[i]) for i in samples_of(part, place)]
        for place, name in enumerate(federation.ids.tolist())
    }


def assert_rows_agree(part: Samples) -> None:
    """All columns of a sample still belong together."""
    sequences = part.features["seq"]
    assert isinstance(sequences, Ragged)
    for place, number in enumerate(part.label.tolist()):
        assert part.features["x"][place] == number
        assert part.features["pair"][place].tolist() == [number, -number]
        assert listed(sequences)[place] == sequence(number)


def listed(ragged: Ragged) -> list[list[int]]:
    """The sequences as lists."""
    pairs = zip(ragged.offsets[: len(ragged)].tolist(), ragged.lengths.tolist(), strict=True)
    return [ragged.values[start : start + length].tolist() for start, length in pairs]


def of_client(client: list[Any], name: Any, numbers: list[int]) -> list[int]:
    return [i for i in numbers if client[i] == name]


@settings(deadline=None, max_examples=60)
@given(clients_of_samples, st.data())
def test_a_mask_splits_and_the_order_within_a_client_stays(client: list[Any], data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(client), max_size=len(client)))
    train = [i for i, out in enumerate(mask) if not out]
    if not train:
        with pytest.raises(UserError, match="no training sample"):
            numbered(client, test=np.array(mask))
        return
    federation = numbered(client, test=np.array(mask))
    trainable = sorted({client[i] for i in train})
    assert federation.ids.tolist() == trainable, "only clients with training samples are in the population"
    assert len(federation) == len(federation.train.sizes) == len(trainable)
    assert owned(federation, federation.train) == {name: of_client(client, name, train) for name in trainable}
    test = [i for i, out in enumerate(mask) if out]
    assert owned(federation, federation.test) == {name: of_client(client, name, test) for name in trainable}
    strangers = federation.test.label[int(federation.test.offsets[-1]) :].tolist()
    assert strangers == [i for i in test if client[i] not in trainable]
    for part in (federation.train, federation.test):
        assert_rows_agree(part)


@settings(deadline=None, max_examples=40)
@given(clients_of_samples, st.sampled_from([0.0, 0.1, 0.25, 0.5]), st.integers(0, 5))
def test_a_fraction_of_samples_is_held_out(client: list[Any], test: float, seed: int) -> None:
    if round(test * len(client)) == len(client):
        return
    federation = numbered(client, test=test, seed=seed)
    assert len(federation.test) == round(test * len(client))
    assert sorted(federation.train.label.tolist() + federation.test.label.tolist()) == list(range(len(client)))
    again = numbered(client, test=test, seed=seed)
    assert torch.equal(again.test.label, federation.test.label)


def test_the_split_depends_on_the_seed() -> None:
    splits = {tuple(numbered([0, 1] * 10, test=0.5, seed=seed).test.label.tolist()) for seed in range(4)}
    assert len(splits) == 4


@settings(deadline=None, max_examples=40)
@given(clients_of_samples, st.sampled_from([0.0, 0.25, 0.5]), st.integers(0, 5))
def test_whole_clients_are_held_out(client: list[Any], test: float, seed: int) -> None:
    every = set(client)
    if round(test * len(every)) == len(every):
        return
    federation = numbered(client, test=test, by="client", seed=seed)
    assert len(federation) == len(every) - round(test * len(every))
    assert {client[i] for i in federation.train.label.tolist()} == set(federation.ids.tolist())
    assert {client[i] for i in federation.test.label.tolist()} == every - set(federation.ids.tolist())
    assert len(federation.train) + len(federation.test) == len(client)
    assert not federation.test.sizes.any(), "samples of clients that do not train belong to nobody"


@st.composite
def windows(draw: st.DrawFn) -> tuple[Ragged, list[list[int]]]:
    """Sequences that lie end to end, or windows that overlap, and the same as lists."""
    if draw(st.booleans()):
        lists = draw(rows)
        return Ragged.from_lists(lists), lists
    values = draw(st.lists(st.integers(0, 9), max_size=12))
    bounds = st.tuples(st.integers(0, len(values)), st.integers(0, len(values)))
    cuts = [sorted(pair) for pair in draw(st.lists(bounds, max_size=8))]
    starts = torch.tensor([start for start, _ in cuts], dtype=torch.int32)
    lengths = torch.tensor([end - start for start, end in cuts], dtype=torch.int32)
    ragged = Ragged(torch.tensor(values, dtype=torch.int32), starts, lengths)
    return ragged, [values[start:end] for start, end in cuts]


@settings(deadline=None, max_examples=120)
@given(windows(), st.data())
def test_ragged_against_lists(both: tuple[Ragged, list[list[int]]], data: st.DataObject) -> None:
    ragged, lists = both
    assert len(ragged) == len(lists)
    assert ragged.lengths.tolist() == [len(row) for row in lists]
    index = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=6)) if lists else []
    number = torch.tensor(index, dtype=torch.int64)
    taken = ragged.take(number)
    assert listed(taken) == [lists[i] for i in index]
    assert taken.values.dtype == ragged.values.dtype
    assert len(taken.values) <= min(len(ragged.values), sum(len(lists[i]) for i in index)), "the smaller of both"
    ids, lengths = ragged.padded(number)
    longest = max((len(lists[i]) for i in index), default=0)
    assert lengths.tolist() == [len(lists[i]) for i in index]
    assert ids.shape == (len(index), longest)
    assert ids.tolist() == [lists[i] + [PAD] * (longest - len(lists[i])) for i in index]


@settings(deadline=None, max_examples=80)
@given(windows(), st.data())
def test_distinct_names_each_place_once_per_owner(both: tuple[Ragged, list[list[int]]], data: st.DataObject) -> None:
    """Values that tell their place apart: what comes out is the union of the windows, owner by owner."""
    ragged, lists = both
    count = len(ragged.values)
    places = Ragged(torch.arange(count), ragged.offsets[: len(ragged)], ragged.lengths)
    index = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=6)) if lists else []
    owner = sorted(data.draw(st.lists(st.integers(0, 2), min_size=len(index), max_size=len(index))))
    found, whose = places.distinct(torch.tensor(index, dtype=torch.int64), torch.tensor(owner, dtype=torch.int64))
    expected = {(o, place) for o, i in zip(owner, index, strict=True) for place in listed(places)[i]}
    assert list(zip(whose.tolist(), found.tolist(), strict=True)) == sorted(expected)


def test_windows_share_their_values() -> None:
    """A history of the last three for each of many samples costs two numbers per sample."""
    values = torch.arange(100, dtype=torch.int32)
    ragged = Ragged(values, torch.arange(98, dtype=torch.int32), torch.full((98,), 3, dtype=torch.int32))
    taken = ragged.take(torch.arange(97, -1, -1))
    assert taken.values is values
    assert taken.padded(torch.tensor([0, 97]))[0].tolist() == [[97, 98, 99], [0, 1, 2]]
    few = ragged.take(torch.tensor([5, 90]))
    assert few.values.tolist() == [5, 6, 7, 90, 91, 92], "a few do not hold on to all"


def test_padded_takes_any_shape_of_numbers() -> None:
    ragged = Ragged.from_lists([[1, 2, 3], [], [4]])
    ids, lengths = ragged.padded(torch.tensor([[[2, 1], [0, 2]]]))
    assert ids.tolist() == [[[[4, 0, 0], [0, 0, 0]], [[1, 2, 3], [4, 0, 0]]]]
    assert lengths.tolist() == [[[1, 0], [3, 1]]]
    empty, none = Ragged.from_lists([[], []]).padded(torch.tensor([[0], [1]]))
    assert empty.shape == (2, 1, 0)
    assert none.tolist() == [[0], [0]]


def test_a_batch_brings_the_lengths_of_its_sequences() -> None:
    federation = numbered(["b", "a", "b", "a", "b"], test=0.0)
    index = torch.tensor([[0, 4], [2, 2]])
    features, label = federation.train.batch(index)
    assert features.keys() == {"x", "pair", "seq", "seq_length"}
    assert label.tolist() == [[1, 4], [0, 0]], "a's samples 1 and 3 come first, then b's 0, 2 and 4"
    assert features["x"].tolist() == label.tolist()
    assert features["pair"].shape == (2, 2, 2)
    assert features["seq_length"].tolist() == [[1, 0], [0, 0]]
    assert features["seq"].tolist() == [[[1], [0]], [[0], [0]]]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_ranges(sizes: list[int], data: st.DataObject) -> None:
    offsets = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    index = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=6))
    flat, owner = ranges(torch.tensor(offsets), torch.tensor(index, dtype=torch.int64))
    assert flat.tolist() == [i for r in index for i in range(offsets[r], offsets[r + 1])]
    assert owner.tolist() == [place for place, r in enumerate(index) for _ in range(sizes[r])]


def test_pooled_is_one_client_with_all_training_samples() -> None:
    federation = numbered([3, 1, 3, 2, 1], test=np.array([False, False, True, False, False]))
    pooled = federation.pooled()
    assert len(pooled) == 1
    assert pooled.train.sizes.tolist() == [4]
    assert torch.equal(pooled.train.label, federation.train.label)
    assert torch.equal(pooled.test.label, federation.test.label)
    assert len(federation) == 3, "the federation itself stays as it is"


def test_numbers_take_the_default_precision_and_ids_stay_whole() -> None:
    federation = Federation.from_arrays(
        client=[0, 1],
        features={"a": np.array([1.0, 2.0]), "b": torch.tensor([1, 2], dtype=torch.int32), "c": [[1], [2]]},
        label=torch.tensor([0.5, 1.0], dtype=torch.float64),
        test=0.0,
    )
    assert federation.train.features["a"].dtype == federation.train.label.dtype == torch.float32
    assert federation.train.features["b"].dtype == torch.int32
    assert federation.train.features["c"].shape == (2, 1)


def window(starts: list[int], lengths: list[int]) -> Ragged:
    return Ragged(torch.arange(4), torch.tensor(starts), torch.tensor(lengths))


GOOD: dict[str, Any] = {"client": [0, 0, 1], "features": {"x": [1.0, 2.0, 3.0]}, "label": [0, 1, 0], "test": 0.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": {"x": [1.0, 2.0]}}, r"feature 'x' has 2 rows but client has 3"),
        ({"label": [0, 1]}, r"'label' has 2 rows but client has 3"),
        ({"features": {"h": Ragged.from_lists([[1]])}}, r"feature 'h' has 1 rows but client has 3"),
        ({"features": {"h": window([0, 1, 3], [1, 2, 2])}}, r"'h' row 2 begins at 3 and has 2 values, .* 4 values"),
        ({"features": {"h": window([0, -1, 3], [1, 2, 1])}}, r"'h' row 1 begins at -1"),
        ({"features": {"h": window([0, 1, 3], [1, 2, -1])}}, r"'h' row 2 begins at 3 and has -1 values"),
        ({"features": {"h": window([0, 1], [1, 2, 1])}}, r"'h' has 2 offsets for 3 lengths; give one for each"),
        ({"features": {"x": [1.0, float("nan"), 3.0]}}, r"feature 'x' row 1 is NaN or infinite"),
        ({"features": {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, float("inf")]]}}, r"feature 'x' row 2 is NaN or infinite"),
        ({"features": {"x": [1e300, 2.0, 3.0]}}, r"feature 'x' row 0 is NaN or infinite"),
        ({"label": [0.0, 1.0, float("-inf")]}, r"'label' row 2 is NaN or infinite"),
        ({"features": {"x": ["a", "b", "c"]}}, r"feature 'x' is not an array of numbers"),
        ({"features": {"x": [[1], [2, 3], [4]]}}, r"feature 'x' is not an array of numbers"),
        ({"label": Ragged.from_lists([[1], [2], [3]])}, r"label is Ragged; give one label per sample"),
        ({"client": [[0], [0], [1]]}, r"client has shape \(3, 1\)"),
        ({"client": [0.0, float("nan"), 1.0]}, r"client .* holds NaN; give one client id per sample"),
        ({"features": {"label": [1.0, 2.0, 3.0]}}, r"a feature is called 'label'"),
        ({"features": {"x": 3.0}}, r"feature 'x' is a single number; give one row per sample \(3\)"),
        ({"test": 0.5, "by": "clients"}, r"unknown way to split.*'clients'; did you mean 'client'\?"),
        ({"test": 1.0}, r"test=1.0 is not a fraction"),
        ({"test": -0.1}, r"test=-0.1 is not a fraction"),
        ({"test": [True, False]}, r"test has shape \(2,\).*one boolean per sample \(3\)"),
        ({"test": [0, 1, 0]}, r"test has shape \(3,\) and type int64"),
        ({"test": [True, True, True]}, r"the federation has no training sample"),
        ({"test": 0.99, "by": "client"}, r"the federation has no training sample"),
        ({"client": [], "features": {"x": []}, "label": []}, r"the federation has no training sample"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        Federation.from_arrays(**GOOD | change)
    assert "\n" not in str(refusal.value)


def test_a_million_clients() -> None:
    clients = 1_000_000
    client = np.arange(2 * clients) % clients
    item = (client * 7 + np.arange(2 * clients) // clients * 3) % 1000
    federation = Federation.from_arrays(client=client, features={"item": item}, label=item % 2, test=0.0)
    assert len(federation) == clients
    assert federation.train.sizes.unique().tolist() == [2]
    asked = torch.arange(50) * 19_999
    ids, counts = IndexSets(federation.train, ("item",), ("item.weight",), 1000).of(asked)
    expected = [sorted({7 * c % 1000, (7 * c + 3) % 1000}) for c in asked.tolist()]
    assert [part.tolist() for part in ids.split(counts.tolist())] == expected
