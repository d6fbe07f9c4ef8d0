"""A federation against plain lists: grouping, splits, ragged features, batches, and what is refused."""

import datetime
import decimal
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.data.index_sets import IndexSets
from fedslice.data.ragged import PAD, Ragged, ranges
from fedslice.data.samples import Samples
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
        ({"label": [0, 1]}, r"label has 2 rows but client has 3"),
        ({"features": {"h": Ragged.from_lists([[1]])}}, r"feature 'h' has 1 rows but client has 3"),
        ({"features": {"h": window([0, 1, 3], [1, 2, 2])}}, r"'h' row 2 begins at 3 and has 2 values, .* 4 values"),
        ({"features": {"h": window([0, -1, 3], [1, 2, 1])}}, r"'h' row 1 begins at -1"),
        ({"features": {"h": window([0, 1, 3], [1, 2, -1])}}, r"'h' row 2 begins at 3 and has -1 values"),
        ({"features": {"h": window([0, 1], [1, 2, 1])}}, r"'h' has 2 offsets for 3 lengths; give one for each"),
        ({"features": {"x": [1.0, float("nan"), 3.0]}}, r"feature 'x' row 1 is NaN or infinite"),
        ({"features": {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, float("inf")]]}}, r"feature 'x' row 2 is NaN or infinite"),
        ({"features": {"x": [1e300, 2.0, 3.0]}}, r"feature 'x' row 0 is NaN or infinite"),
        ({"label": [0.0, 1.0, float("-inf")]}, r"label row 2 is NaN or infinite"),
        (
            {"features": {"x": ["a", "b", "c"]}},
            r"feature 'x' row 0 is 'a', expected a number; number the distinct texts",
        ),
        ({"features": {"x": [[1], [2, 3], [4]]}}, r"feature 'x' row 0 is \[1\], .*write fedslice.Ragged.from_lists\("),
        ({"label": Ragged.from_lists([[1], [2], [3]])}, r"label is Ragged; give one label per sample"),
        ({"client": [[0], [0], [1]]}, r"client has shape \(3, 1\)"),
        ({"client": [0.0, float("nan"), 1.0]}, r"client row 1 is missing \(nan\), expected one client id per sample"),
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


def objects(*values: Any) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        array[row] = value
    return array


def read_only(values: np.ndarray) -> np.ndarray:
    values.flags.writeable = False
    return values


class Column:
    """What a data frame hands out: no array, but something that becomes one."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return objects(*self.values)


TIME = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "datetime64[s]")
TAKEN: dict[str, tuple[Any, str]] = {
    "tuple": ((1, 2, 3), "int64"),
    "lists of equal length": ([[1, 2], [3, 4], [5, 6]], "int64"),
    "truth values": ([True, False, True], "bool"),
    "3 dimensions": (np.zeros((3, 2, 2)), "float32"),
    "no column": (np.zeros((3, 0)), "float32"),
    "below zero": ([-1, -2, 3], "int64"),
    "strided": (np.arange(6.0)[::2], "float32"),
    "backwards": (np.arange(3)[::-1], "int64"),
    "by columns": (np.asfortranarray(np.ones((3, 2))), "float32"),
    "big-endian": (np.arange(3, dtype=">f8"), "float32"),
    "big-endian ids": (np.arange(3, dtype=">i4"), "int32"),
    "read-only": (read_only(np.arange(3.0)), "float32"),
    "unsigned, 16 bits": (np.arange(3, dtype=np.uint16), "int32"),
    "unsigned, 32 bits": (np.array([0, 1, 2**32 - 1], np.uint32), "int64"),
    "unsigned, 64 bits": (np.arange(3, dtype=np.uint64), "int64"),
    "unsigned tensor": (torch.arange(3).to(torch.uint16), "int32"),
    "half precision": (np.arange(3, dtype=np.float16), "float32"),
    "extended precision": (np.arange(3, dtype=np.longdouble), "float32"),
    "nothing masked": (np.ma.masked_array([1, 2, 3], mask=[0, 0, 0]), "int64"),
    "data frame": (pl.Series([1.0, 2.0, 3.0]), "float32"),
    "table of a data frame": (pl.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6]}), "int64"),
    "tensor with a gradient": (torch.ones(3, requires_grad=True), "float32"),
    "tensors": ([torch.tensor(1.0)] * 3, "float32"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", TAKEN)
def test_numbers_in_any_form_are_taken(case: str) -> None:
    column, kind = TAKEN[case]
    found = Federation.from_arrays(**GOOD | {"features": {"x": column}}).train.features["x"]
    assert isinstance(found, torch.Tensor)
    assert str(found.dtype) == f"torch.{kind}"
    assert not found.requires_grad
    whole = column.detach() if isinstance(column, torch.Tensor) else np.asarray(column)
    assert found.tolist() == whole.tolist()


TEXT = "number the distinct texts with np.unique"
TIMES = "turn times t into numbers"
RAGGED = r"for sequences of differing lengths write fedslice.Ragged.from_lists\(column\)"
REFUSED: dict[str, tuple[Any, str]] = {
    "texts": (["a", "b", "c"], f"row 0 is 'a', expected a number; {TEXT}"),
    "texts of digits": (["1", "2", "3"], f"row 0 is '1', expected a number; {TEXT}"),
    "bytes": ([b"a", b"b", b"c"], f"row 0 is b'a', expected a number; {TEXT}"),
    "a text among numbers": (objects(1, "b", 2), f"row 1 is 'b', expected a number; {TEXT}"),
    "texts of a data frame": (pl.Series(["a", "b", "c"]), f"row 0 is 'a', expected a number; {TEXT}"),
    "categories": (pl.Series(["a", "b", "a"], dtype=pl.Categorical), f"row 0 is 'a', expected a number; {TEXT}"),
    "categories as objects": (Column("a", "b", "a"), f"row 0 is 'a', expected a number; {TEXT}"),
    "sequences": ([[1, 2], [3], []], rf"row 0 is \[1, 2\], expected a number; {RAGGED}"),
    "sequences as objects": (objects([1], [2, 3], []), rf"row 0 is \[1\], expected a number; {RAGGED}"),
    "sequences of a data frame": (pl.Series([[1], [2, 3], []]), rf"row 0 is array\(\[1\]\), .*{RAGGED}"),
    "times": (TIME, rf"row 0 is datetime.datetime\(2020, .*{TIMES}"),
    "times as objects": ([datetime.date(2020, 1, 1)] * 3, rf"row 0 is datetime.date\(2020, .*{TIMES}"),
    "spans of time": (TIME - TIME[0], rf"row 0 is datetime.timedelta\(0\), .*{TIMES}"),
    "no time": (np.array(["2020-01-01", "NaT", "NaT"], "datetime64[s]"), TIMES),
    "none": ([1.0, None, 3.0], "row 1 is None, expected a number; fill it in or leave the sample out"),
    "none in a data frame": (pl.Series([1.0, None, 3.0]), "row 1 is NaN or infinite"),
    "not a number, as object": (objects(1, float("nan"), 2), "row 1 is nan, expected a number; fill it in"),
    "masked": (np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]), "row 1 is masked, expected a value; fill it in"),
    "whole numbers as objects": (objects(1, 2, 3), "holds numbers as Python objects, expected an array of numbers"),
    "very large numbers": ([1, 2, 2**70], "holds numbers as Python objects, expected an array of numbers"),
    "above the largest id": (np.array([1, 2, 2**63], np.uint64), "has a number above 9223372036854775807"),
    "decimals": ([decimal.Decimal(1)] * 3, r"row 0 is Decimal\('1'\), expected a number; convert the column"),
    "complex": ([1j, 2, 3], "is complex, expected real numbers"),
    "complex tensor": (torch.zeros(3, dtype=torch.complex64), "is complex, expected real numbers"),
    "fields": (np.zeros(3, [("a", "f4"), ("b", "i4")]), r"row 0 is \(0.0, 0\), expected a number; convert"),
    "sparse": (torch.eye(3).to_sparse(), "is a sparse tensor"),
    "one number": (3.0, "is a single number; give one row per sample"),
    "one text": ("abc", "is 'abc', expected an array with one number per sample"),
    "nothing": (None, "is None, expected an array with one number per sample"),
    "a dictionary": ({"a": 1}, r"is \{'a': 1\}, expected an array with one number per sample"),
    "a generator": ((i for i in range(3)), "is <generator object .*, expected an array with one number per sample"),
    "too few": ([1, 2], "has 2 rows but client has 3"),
    "none at all": ([], "has 0 rows but client has 3"),
    "sequences of pairs": (
        Ragged(torch.zeros(3, 2), torch.arange(4)),
        r"has values of shape \(3, 2\), expected one number",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_column_of_anything_else_is_refused_by_its_name_and_row(case: str) -> None:
    column, message = REFUSED[case]
    with pytest.raises(UserError, match=message) as refusal:
        Federation.from_arrays(**GOOD | {"features": {"x": column}})
    told = str(refusal.value)
    assert told.startswith("feature 'x' ")
    assert told.endswith((".", "?"))
    assert "\n" not in told


def test_labels_that_are_sequences_are_refused_as_labels() -> None:
    with pytest.raises(UserError, match=r"^label row 0 is \[1\], expected a number; give one label per sample\.$"):
        Federation.from_arrays(**GOOD | {"label": [[1], [2, 3], []]})


@pytest.mark.parametrize(
    "client",
    [
        ["a", "a", "b"],
        [b"a", b"a", b"b"],
        (1, 1, 2),
        [-5, -5, 7],
        [0.5, 0.5, 1.5],
        [False, False, True],
        np.array([1, 1, 2**63 + 1], np.uint64),
        np.array([1, 1, 2], ">i8"),
        [1, 1, 2**70],
        TIME[[0, 0, 1]],
        objects("a", "a", "b"),
        objects((1, "x"), (1, "x"), (1, "y")),
        pl.Series(["a", "a", "b"]),
        torch.tensor([0, 0, 1]),
        read_only(np.array([0, 0, 1])),
    ],
    ids=lambda client: f"{type(client).__name__} of {type(client[0]).__name__}",
)
def test_clients_may_be_called_by_numbers_texts_or_anything_with_an_order(client: Any) -> None:
    federation = Federation.from_arrays(**GOOD | {"client": client})
    assert federation.train.sizes.tolist() == [2, 1]
    assert len(federation.ids) == 2


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (
            [0, None, 1],
            r"row 1 is missing \(None\), expected one client id per sample; give it an id or leave the sample",
        ),
        (["a", None, "b"], r"row 1 is missing \(None\)"),
        (["a", "b", float("nan")], r"row 2 is missing \(nan\)"),
        (objects("a", float("nan"), "b"), r"row 1 is missing \(nan\)"),
        ([0.0, float("inf"), 1.0], r"row 1 is missing \(inf\)"),
        (np.array(["2020-01-01", "NaT", "NaT"], "datetime64[s]"), r"row 1 is missing \(NaT\)"),
        (pl.Series(["a", None, "b"]), r"row 1 is missing \(None\)"),
        (np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]), "row 1 is masked, expected a value"),
        (objects("a", 1, "b"), "holds ids of type int and str, expected all numbers or all texts"),
        (objects({}, {}, {}), "holds ids of type dict, expected all numbers or all texts"),
        ([[1], [1, 2], [3]], "holds ids of type list, expected all numbers or all texts"),
        ([(1, 2), (1, 2), (3, 4)], r"has shape \(3, 2\); give one client id per sample"),
        (5, r"has shape \(\); give one client id per sample"),
        (None, r"has shape \(\); give one client id per sample"),
    ],
)
def test_a_client_without_an_id_is_named_by_its_row(client: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^client {message}") as refusal:
        Federation.from_arrays(**GOOD | {"client": client})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            [1, 2, 3],
            r"features is of type list, expected a dictionary of columns; write for example \{name: table\[name\]",
        ),
        (pl.DataFrame({"x": [1, 2, 3]}), "features is of type DataFrame, expected a dictionary"),
        ({0: [1, 2, 3]}, "a feature is called 0, expected a text"),
        (
            {"h": Ragged.from_lists([[1], [], [2]]), "h_length": [1, 2, 3]},
            "a feature is called 'h_length', like the lengths that 'h' brings",
        ),
    ],
)
def test_features_are_columns_by_name(features: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Federation.from_arrays(**GOOD | {"features": features})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1], 2, [3]], "row 1 is 2, expected a list of numbers"),
        (["ab", "c"], "row 0 is 'ab', expected a list of numbers"),
        ([[1], None], "row 1 is None, expected a list of numbers"),
        ([[1], ["a"]], "row 1, row 0 is 'a', expected a number; number the distinct texts"),
        ([[1], [2, None]], "row 1, row 1 is None, expected a number"),
    ],
)
def test_lists_that_hold_no_numbers_are_refused_by_their_row(rows: Any, message: str) -> None:
    with pytest.raises(UserError, match=rf"^Ragged.from_lists: {message}"):
        Ragged.from_lists(rows)


def test_sequences_of_measurements_keep_their_fractions() -> None:
    ragged = Ragged.from_lists([[1.5], [], [2, 3]])
    assert ragged.values.tolist() == [1.5, 2.0, 3.0]
    assert ragged.padded(torch.tensor([0, 2]))[0].tolist() == [[1.5, 0.0], [2.0, 3.0]]
    assert Ragged.from_lists([[], []]).values.dtype == torch.int64


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
