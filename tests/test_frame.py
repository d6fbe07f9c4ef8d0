"""Federations from tables: laws of grouping, splits and ids, one federation from every kind of source, and refusals."""

import datetime as dt
import math
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing.parametric import column, dataframes
from torch import Tensor, nn

import pandas_like
from fedslice import Federation, Ragged, Task, UserError, Vocabulary
from fedslice.data.samples import Samples
from layouts import one_sentence
from toys import samples_of

ROLES = {"client": "user", "label": "y"}
START = dt.datetime(2024, 1, 1)

names = st.sampled_from(["ann", "bob", "cy", "dee"])
words = st.text("abc", min_size=1, max_size=2)
rows = st.fixed_dictionaries(
    {
        "user": names,
        "item": words,
        "tags": st.lists(words, max_size=3),
        "age": st.integers(-5, 5),
        "price": st.floats(-4, 4, width=16),
        "ok": st.booleans(),
        "y": st.floats(-4, 4, width=16),
    }
)
SCHEMA = {
    "user": pl.String, "item": pl.String, "tags": pl.List(pl.String), "age": pl.Int64, "price": pl.Float64,
    "ok": pl.Boolean, "y": pl.Float64, "when": pl.Datetime("us"), "held": pl.Boolean,
}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> pl.DataFrame:
    """Rows with distinct times and, by a column, some to test on and one at least to train on."""
    found = draw(st.lists(rows, min_size=1, max_size=25))
    times = draw(st.permutations(range(len(found))))
    held = draw(st.lists(st.booleans(), min_size=len(found), max_size=len(found)))
    held[draw(st.integers(0, len(found) - 1))] = False
    for row, time, out in zip(found, times, held, strict=True):
        row |= {"when": START + dt.timedelta(hours=time), "held": out}
    return pl.DataFrame(found, schema=SCHEMA)


def sample(part: Samples, number: int, federation: Federation) -> tuple[Any, ...]:
    """One sample with its ids as the values that they stand for."""
    features, label = part.batch(torch.tensor([number]))
    found: list[Any] = [float(label[0])]
    for name in sorted(part.features):
        value = features[name][0]
        if name in federation.vocabularies:
            length = int(features[f"{name}_length"][0]) if f"{name}_length" in features else 1
            found.append(tuple(federation.vocabularies[name].decode(value.reshape(-1)[:length])))
        else:
            found.append(tuple(value.reshape(-1).tolist()))
    return tuple(found)


def held_by(federation: Federation, part: Samples) -> dict[Any, list[tuple[Any, ...]]]:
    """The samples of every client and, under None, of those who do not train."""
    found = {
        name: [sample(part, number, federation) for number in samples_of(part, place)]
        for place, name in enumerate(federation.ids.tolist())
    }
    rest = range(int(part.offsets[-1]), len(part))
    return found | {None: [sample(part, number, federation) for number in rest]}


def same(one: Federation, other: Federation) -> bool:
    return all(
        held_by(one, a) == held_by(other, b) for a, b in ((one.train, other.train), (one.test, other.test))
    ) and (one.ids.tolist() == other.ids.tolist() and one.vocabularies == other.vocabularies)


def without_order(found: dict[Any, list[tuple[Any, ...]]]) -> dict[Any, Counter[tuple[Any, ...]]]:
    return {name: Counter(samples) for name, samples in found.items()}


@settings(deadline=None, max_examples=60)
@given(tables(), st.randoms())
def test_a_shuffled_table_gives_the_same_federation_up_to_order_within_clients(
    table: pl.DataFrame, chance: Any
) -> None:
    order = list(range(len(table)))
    chance.shuffle(order)
    one, other = (Federation.from_frame(t.drop("when"), **ROLES, test="held") for t in (table, table[order]))
    assert one.ids.tolist() == other.ids.tolist() == sorted(set(table.filter(~pl.col("held"))["user"]))
    assert one.vocabularies == other.vocabularies
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert without_order(held_by(one, a)) == without_order(held_by(other, b))
    timed = [Federation.from_frame(t, **ROLES, time="when", test="held") for t in (table, table[order])]
    assert same(*timed), "with times the order is theirs"


@settings(deadline=None, max_examples=60)
@given(tables())
def test_every_value_arrives(table: pl.DataFrame) -> None:
    federation = Federation.from_frame(table.drop("when"), **ROLES, test="held")
    seen = table.filter(~pl.col("held"))
    assert federation.vocabularies["item"].values == sorted(set(seen["item"]))
    assert federation.vocabularies["tags"].values == sorted({tag for tags in seen["tags"] for tag in tags})

    def known(name: str, value: str) -> str | None:
        return value if value in federation.vocabularies[name].values else None

    for part, out in ((federation.train, False), (federation.test, True)):
        found = held_by(federation, part)
        expected: dict[Any, list[tuple[Any, ...]]] = {name: [] for name in [*federation.ids.tolist(), None]}
        for row in table.filter(pl.col("held") == out).iter_rows(named=True):
            values = (
                row["y"], (float(row["age"]),), (known("item", row["item"]),), (float(row["ok"]),), (row["price"],),
                tuple(known("tags", tag) for tag in row["tags"]),
            )  # fmt: skip
            expected[row["user"] if row["user"] in expected else None].append(values)
        assert found == expected


def as_csv(table: pl.DataFrame, path: Path) -> Path:
    table.with_columns(pl.col(pl.List(pl.String)).list.join("|")).write_csv(path)
    return path


def in_folder(table: pl.DataFrame, folder: Path, suffix: str) -> Path:
    folder.mkdir()
    for (name,), part in table.group_by("user"):
        part = part.drop("user")  # noqa: PLW2901
        if suffix == ".csv":
            as_csv(part, folder / f"{name}.csv")
        else:
            part.write_parquet(folder / f"{name}.parquet")
    return folder


class HuggingFace:
    """As much of ``datasets.Dataset`` as is read."""

    def __init__(self, table: pl.DataFrame):
        self._table = table

    def to_polars(self) -> pl.DataFrame:
        return self._table


class Arrow:
    def __init__(self, table: pl.DataFrame):
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class OnlyPandas:
    def __init__(self, table: pl.DataFrame):
        self._table = table

    def to_pandas(self) -> pandas_like.DataFrame:
        return pandas_like.DataFrame.of(self._table)


@settings(deadline=None, max_examples=25)
@given(table=tables(), test=st.sampled_from([0.0, 0.5, "held"]))
def test_every_kind_of_source_gives_the_same_federation(
    tmp_path_factory: pytest.TempPathFactory, table: pl.DataFrame, test: Any
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    some = pl.DataFrame({"user": "ann", "tags": [["a"]], "held": False})  # of lists without any item pandas has no type
    table = pl.concat([some, table], how="diagonal").with_columns(
        pl.col("item").fill_null("a"), pl.col("age", "price", "y").fill_null(0), pl.col("ok").fill_null(True),
        pl.col("when").fill_null(START - dt.timedelta(days=1)),
    )  # fmt: skip
    table.write_parquet(folder / "table.parquet")
    parquet = folder / "table.parquet"
    texts = {"lists": {"tags": "|"}}
    one = Federation.from_frame(table, **ROLES, time="when", test=test)
    with patch.dict(sys.modules, pandas=pandas_like.module()):
        sources: dict[str, tuple[Any, dict[str, Any]]] = {
            "lazy": (table.lazy(), {}),
            "pandas": (pandas_like.DataFrame.of(table), {}),
            "parquet": (parquet, {}),
            "its path as a text": (str(parquet), {}),
            "csv": (as_csv(table, folder / "table.csv"), texts),
            "files of clients": (in_folder(table, folder / "parquet", ".parquet"), {}),
            "csv files of clients": (in_folder(table, folder / "csv", ".csv"), texts),
            "Hugging Face": (HuggingFace(table), {}),
            "Arrow": (Arrow(table), {}),
            "to_pandas": (OnlyPandas(table), {}),
        }
        for name, (source, options) in sources.items():
            assert same(one, Federation.from_frame(source, **ROLES, time="when", test=test, **options)), name


def test_real_pandas_gives_the_same_federation() -> None:
    pandas = pytest.importorskip("pandas")
    columns = {
        "user": ["ann", "bob", "ann"], "item": ["tea", "oil", "oil"], "tags": [["a"], [], ["b", "a"]],
        "age": [3, 4, 5], "price": [0.5, 1.5, 2.0], "ok": [True, False, True],
        "when": [START + dt.timedelta(days=day) for day in (2, 0, 1)], "y": [1.5, 2.0, 3.0],
    }  # fmt: skip
    for convert in (lambda f: f, lambda f: f.convert_dtypes(), lambda f: f.astype({"item": "category"})):
        frame = convert(pandas.DataFrame(columns))
        one, other = (Federation.from_frame(t, **ROLES, time="when", test=0.5) for t in (frame, pl.DataFrame(columns)))
        assert same(one, other)


@settings(deadline=None, max_examples=60)
@given(tables(), st.floats(0, 0.99), st.integers(0, 3))
def test_a_share_of_each_client_is_held_out_the_latest_by_time(table: pl.DataFrame, test: float, seed: int) -> None:
    table = table.with_columns(y=pl.col("when").dt.epoch("s").cast(pl.Float64) - START.timestamp()).drop("held")
    table = table.with_columns(y=pl.col("y") - pl.col("y").min())
    counts = dict(table.group_by("user").len().iter_rows())
    out = {name: min(n - 1, math.floor(test * n + 0.5)) for name, n in counts.items()}
    drawn = Federation.from_frame(table.drop("when"), **ROLES, test=test, seed=seed)
    assert drawn.ids.tolist() == sorted(counts), "everyone trains"
    assert dict(zip(drawn.ids.tolist(), drawn.test.sizes.tolist(), strict=True)) == out
    assert same(drawn, Federation.from_frame(table.drop("when"), **ROLES, test=test, seed=seed))
    latest = Federation.from_frame(table, **ROLES, time="when", test=test, seed=seed)
    for place, name in enumerate(latest.ids.tolist()):
        times = sorted(table.filter(pl.col("user") == name)["y"].to_list())
        stay = len(times) - out[name]
        assert [float(latest.train.label[i]) for i in samples_of(latest.train, place)] == times[:stay]
        assert [float(latest.test.label[i]) for i in samples_of(latest.test, place)] == times[stay:]


@settings(deadline=None, max_examples=40)
@given(tables(), st.sampled_from([0.0, 0.25, 0.5]))
def test_the_latest_of_all_samples_are_held_out(table: pl.DataFrame, test: float) -> None:
    count = round(test * len(table))
    table = table.with_columns(y=pl.Series(np.arange(len(table)))).drop("held")
    federation = Federation.from_frame(table, **ROLES, time="when", test=test, by="sample")
    expected = table.sort("when")["y"].to_list()[len(table) - count :]
    assert sorted(federation.test.label.tolist()) == sorted(expected)


def test_the_draw_depends_on_the_seed_and_takes_each_sample_as_often() -> None:
    table = pl.DataFrame({"user": ["a"] * 4 + ["b"] * 6, "x": [0.0] * 10, "y": np.arange(10.0)})
    times = Counter[float]()
    for seed in range(400):
        times.update(Federation.from_frame(table, **ROLES, test=0.5, seed=seed).test.label.tolist())
    assert sum(times.values()) == 400 * 5
    assert all(abs(times[sample] - 200) < 50 for sample in range(10)), "five standard deviations"


def test_a_text_or_a_number_can_say_when() -> None:
    table = pl.DataFrame({"user": ["a"] * 3, "x": [1.0, 2, 3], "y": [1.0, 2, 3]})
    times: list[Any] = [
        ["2024-02-01", "2023-05-01", "2024-01-09"], ["2024-02-01 10:00", "2024-02-01 09:59", "2024-02-01 09:59:30"],
        [7, -3, 2], [0.5, 0.1, 0.2], [dt.date(2024, 5, 1), dt.date(2023, 1, 1), dt.date(2024, 1, 1)],
        [dt.time(9), dt.time(7), dt.time(8)],
    ]  # fmt: skip
    for when in times:
        federation = Federation.from_frame(table.with_columns(t=pl.Series(when)), **ROLES, time="t", test=0.4)
        assert (federation.train.label.tolist(), federation.test.label.tolist()) == ([2.0, 3.0], [1.0])
        assert [*federation.train.features] == ["x"]


def simple(**columns: Any) -> pl.DataFrame:
    count = len(next(iter(columns.values())))
    return pl.DataFrame({"user": ["a", "b"] * (count // 2) + ["a"] * (count % 2), "y": [0.5] * count} | columns)


def made(
    *,
    test: Any = 0.0,
    source: Any = None,
    client: str = "user",
    label: str = "y",
    options: dict[str, Any] | None = None,
    **columns: Any,
) -> Federation:
    source = simple(**columns) if source is None else source
    return Federation.from_frame(source, client, label, test=test, **(options or {}))


def feature(federation: Federation, name: str) -> Any:
    column = federation.train.features[name]
    return column.tolist() if isinstance(column, Tensor) else column


def test_features_have_the_types_that_are_documented() -> None:
    federation = made(
        a=["x", "y"], b=[1, 2], c=[0.5, 1], d=[True, False], e=[["x"], []], f=[[1, 2], [3]],
        g=pl.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pl.Array(pl.Float32, 2)),
        h=pl.Series(["x", "y"], dtype=pl.Categorical), i=pl.Series(["x", "y"], dtype=pl.Enum(["y", "x"])),
        j=pl.Series(["1.5", "2"]).cast(pl.Decimal(scale=1)),
        k=pl.Series([["u", "v"], ["v", "v"]], dtype=pl.Array(pl.String, 2)),
        l=pl.Series([["u"], ["v"]], dtype=pl.List(pl.Categorical)),
    )  # fmt: skip
    kinds = {
        name: (type(column).__name__, (column.values if isinstance(column, Ragged) else column).dtype)
        for name, column in federation.train.features.items()
    }
    ids, floats = torch.int32, torch.float32
    assert kinds == {
        "a": ("Tensor", ids), "b": ("Tensor", floats), "c": ("Tensor", floats), "d": ("Tensor", floats),
        "e": ("Ragged", ids), "f": ("Ragged", floats), "g": ("Tensor", floats), "h": ("Tensor", ids),
        "i": ("Tensor", ids), "j": ("Tensor", floats), "k": ("Tensor", ids), "l": ("Ragged", ids),
    }  # fmt: skip
    assert feature(federation, "g") == [[1.0, 2.0], [3.0, 4.0]]
    assert feature(federation, "k") == [[1, 2], [2, 2]]
    assert feature(federation, "h") == feature(federation, "i") == [1, 2], "in the order of the texts"


def test_whole_numbers_are_ids_where_they_are_declared() -> None:
    empty = made(m=[[], []], options={"ids": ["m"]})
    assert empty.vocabularies["m"].size == 1
    federation = made(m=[700, 7, 700], n=[[7], [9, 700], []], o=[1, 2, 3], options={"ids": ["m", "n"]})
    assert sorted(federation.vocabularies) == ["m", "n"]
    assert federation.vocabularies["m"].values == [7, 700]
    assert federation.vocabularies["n"].values == [7, 9, 700]
    assert feature(federation, "o") == [1.0, 3.0, 2.0]
    shared = made(m=[700, 7, 700], n=[[7], [9, 700], []], options={"ids": [["m", "n"]]})
    assert shared.vocabularies["m"] is shared.vocabularies["n"]
    assert shared.vocabularies["m"].values == [7, 9, 700]
    texts = made(m=["x", "y", "y"], n=[["x"], ["z"], []], options={"ids": [["m", "n"]]})
    assert texts.vocabularies["n"].values == ["x", "y", "z"]
    mixed = made(
        m=pl.Series([1, 2], dtype=pl.UInt8),
        n=pl.Series([[3], []], dtype=pl.List(pl.Int32)),
        options={"ids": [("m", "n")]},
    )
    assert mixed.vocabularies["m"].values == [1, 2, 3]
    pairs = made(m=pl.Series([[1, 9], [9, 1]], dtype=pl.Array(pl.Int16, 2)), options={"ids": ["m"]})
    assert feature(pairs, "m") == [[1, 2], [2, 1]]


def test_clients_are_a_feature_if_they_are_named() -> None:
    for users, known in ((["b", "a", "b"], ["a", "b"]), ([70, 7, 70], [7, 70])):
        federation = made(x=[1, 2, 3], user=users, options={"features": ["user", "x"]})
        assert feature(federation, "user") == [1, 2, 2]
        assert federation.vocabularies["user"].values == known == federation.ids.tolist()
    friends = made(x=[["b", "c"], []], user=["a", "b"], options={"features": ["user", "x"], "ids": [["user", "x"]]})
    assert friends.vocabularies["x"].values == ["a", "b", "c"]
    assert "column for client" in one_sentence(lambda: made(x=[1, 2], options={"ids": ["user"]}))


def test_ids_that_training_does_not_know_or_sees_rarely_are_zero() -> None:
    columns = {"i": ["x", "x", "y", "z"], "h": [False, False, False, True]}
    federation = made(**columns, test="h")
    assert federation.vocabularies["i"].values == ["x", "y"]
    assert federation.test.features["i"].tolist() == [0]  # type: ignore[union-attr]
    rare = made(**columns, test="h", options={"min_count": 2})
    assert rare.vocabularies["i"].values == ["x"]
    assert sorted(feature(rare, "i")) == [0, 1, 1]
    assert made(i=["x", "y"], options={"min_count": 2}).vocabularies["i"].size == 1


def test_columns_of_numbers_can_be_one_feature() -> None:
    federation = made(a=[1, 2], b=[0.5, 1.5], c=[True, False], d=[4, 5], options={"dense": {"x": ["b", "a", "c"]}})
    assert feature(federation, "x") == [[0.5, 1.0, 1.0], [1.5, 2.0, 0.0]]
    assert sorted(federation.train.features) == ["d", "x"]


def test_missing_values_can_be_filled() -> None:
    federation = made(
        a=[1, None], b=[0.5, math.nan], c=[True, None], d=["x", None], e=[["x"], None], g=[None, None],
        options={"fill": {"a": 0.5, "b": 2, "c": False, "d": "none", "e": [], "g": 3.0}},
    )  # fmt: skip
    assert [feature(federation, name) for name in "abcg"] == [[1.0, 0.5], [0.5, 2.0], [1.0, 0.0], [3.0, 3.0]]
    assert federation.vocabularies["d"].values == ["none", "x"]
    assert feature(federation, "e").lengths.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "classes", "labels", "known"),
    [
        ([0.5, 2.0, 1.0], None, [0.5, 2.0, 1.0], None),
        ([3, 5, 1], False, [3.0, 5.0, 1.0], None),
        ([True, False, True], False, [1.0, 0.0, 1.0], None),
        ([2, 0, 1], None, [2, 0, 1], [0, 1, 2]),
        ([5, 3, 9], True, [1, 0, 2], [3, 5, 9]),
        ([5.0, 3.0, 9.0], True, [1, 0, 2], [3, 5, 9]),
        ([True, False, True], None, [1, 0, 1], [False, True]),
        (["no", "yes", "maybe"], None, [1, 2, 0], ["maybe", "no", "yes"]),
    ],
)
def test_labels_are_numbers_or_classes(values: list[Any], classes: bool | None, labels: list[Any], known: Any) -> None:
    table = pl.DataFrame({"user": ["a"] * 3, "x": [1.0] * 3, "y": values})
    federation = Federation.from_frame(table, **ROLES, test=0.0, classes=classes)
    assert federation.train.label.tolist() == labels
    assert federation.train.label.dtype == (torch.int64 if known else torch.float32)
    if known:
        assert federation.vocabularies["y"] == Vocabulary(known, unknown=False)
        assert federation.vocabularies["y"].size == len(known)
    else:
        assert "y" not in federation.vocabularies


def test_vocabularies_stay_with_the_federation_and_the_task() -> None:
    federation = made(item=["x", "y", "y"])
    for other in (federation.pooled(), federation.numbered(3), federation.to(torch.device("cpu"))):
        assert other.vocabularies == federation.vocabularies

    class Model(nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.item = nn.Embedding(rows, 1)

        def forward(self, item: Tensor) -> Tensor:
            return self.item(item).squeeze(-1)

    def task(rows: int) -> Task:
        return Task(federation, lambda: Model(rows), nn.MSELoss(reduction="none"), tables={"item.weight": "item"})

    assert task(3).vocabularies == federation.vocabularies
    assert task(3).pooled().vocabularies == federation.vocabularies
    assert "federation.vocabularies['item'].size" in one_sentence(task, 2)


def test_the_work_in_python_does_not_grow_with_the_rows() -> None:
    def calls(count: int) -> int:
        chance = np.random.default_rng(0)
        table = pl.DataFrame(
            {
                "user": pl.Series(np.arange(count) % 50).cast(pl.String),
                "item": pl.Series(np.arange(count) % 100).cast(pl.String),
                "tags": pl.Series([[1, 2], [], [3]] * (count // 3)),
                "when": chance.permutation(count),
                "x": chance.random(count),
                "y": chance.random(count),
            }
        )
        seen = 0

        def count_calls(*_: Any) -> None:
            nonlocal seen
            seen += 1

        sys.setprofile(count_calls)
        try:
            Federation.from_frame(table, **ROLES, time="when", ids=["tags"])
        finally:
            sys.setprofile(None)
        return seen

    calls(300)  # what is loaded and cached at first
    assert abs(calls(30_000) - calls(300)) < 200


USERS = column("user", strategy=st.sampled_from(["a", "b", "c"]), dtype=pl.String)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "ids": st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
        "dense": st.just({"d": ["a"]}),
        "lists": st.just({"b": "|"}),
        "classes": st.booleans(),
        "time": st.sampled_from(["a", "t"]),
        "test": st.sampled_from([0.0, 0.3, "t"]),
        "by": st.sampled_from(["within", "sample", "client"]),
        "min_count": st.integers(0, 3),
        "fill": st.dictionaries(
            st.sampled_from(["y", "a", "b"]), st.sampled_from([0, 0.5, "x", True, [], [1]]), max_size=2
        ),
    },
)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_table_is_a_federation_or_a_sentence(data: st.DataObject) -> None:
    kinds = st.sampled_from(
        [pl.Int64, pl.UInt8, pl.Float64, pl.String, pl.Boolean, pl.List(pl.String), pl.List(pl.Int32)]
    )
    anything = st.sampled_from([None, pl.Date, pl.UInt128, pl.Decimal(10, 2), pl.Array(pl.Int64, 2), pl.Null])
    types = {name: data.draw(st.one_of(kinds, anything)) for name in "yabt"}
    gaps = data.draw(st.integers(0, 4)) == 0
    columns = [USERS, *(column(name, dtype=kind, allow_null=gaps) for name, kind in types.items())]
    table = data.draw(dataframes(cols=columns, min_size=1, max_size=6))
    options = data.draw(OPTIONS)
    try:
        federation = Federation.from_frame(table, **ROLES, **options)
    except UserError:
        one_sentence(lambda: Federation.from_frame(table, **ROLES, **options), ends=(".", "?"))
        return
    assert len(federation.train) + len(federation.test) == len(table)
    for part in (federation.train, federation.test):
        features, label = part.batch(torch.arange(len(part)))
        assert all(len(values) == len(label) == len(part) for values in features.values())


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"x": [1, 2], "client": "usr"}, "unknown column for client 'usr'; did you mean 'user'?"),
    ({"x": [1, 2], "label": "z"}, "unknown column for label 'z'"),
    ({"x": [1, 2], "options": {"time": "t"}}, "unknown column for time 't'"),
    ({"x": [1, 2], "test": "t"}, "unknown column for test 't'"),
    ({"x": [1, 2], "label": "user"}, "client, label are columns user, user"),
    ({"x": []}, "no rows"),
    ({"source": pl.DataFrame({"user": ["a"], "y": [1.0]})}, "no column is left for features"),
    ({"x": [1.0, None, None]}, "column 'x' has missing values in 2 rows, first row 1"),
    ({"x": [1.0, math.nan]}, "missing values in 1 row, row 1"),
    ({"x": [None, None]}, "column 'x' has missing values in 2 rows"),
    ({"x": ["a", None]}, "column 'x' has missing values in 1 row, row 1; fill them (fill={'x': ...})"),
    ({"x": [["a"], ["b", None]]}, "column 'x' has lists with missing values in 1 row, row 1"),
    ({"x": [[0.5], [math.nan]]}, "lists with missing values in 1 row, row 1"),
    ({"x": pl.Series([[1, 2], [1, None]], dtype=pl.Array(pl.Int64, 2))}, "lists with missing values in 1 row, row 1"),
    ({"x": [["a"], None]}, "column 'x' has missing values in 1 row, row 1"),
    ({"x": [1.0, math.inf]}, "'x' row 1 is NaN or infinite"),
    ({"x": [[1.0, 2.0], [3.0, math.inf]]}, "'x' row 1 is NaN or infinite"),
    ({"x": [1.0, 2.0], "y": [2**64 - 1, 0], "options": {"classes": True}}, "beyond 64 bits"),
    ({"x": [1.0, 2.0], "y": [1.0, math.nan]}, "column 'y' has missing values in 1 row, row 1"),
    ({"x": [1.0, 2.0], "y": [1.0, math.inf]}, "label row 1 is NaN or infinite"),
    ({"x": [1.0, 2.0], "user": ["a", None]}, "column 'user' has missing values in 1 row, row 1"),
    ({"x": [1.0, 2.0], "user": ["a", " "]}, "client 'user' is empty in row 1"),
    ({"x": [1.0, 2.0], "user": [0.5, 1.5]}, "client 'user' holds Float64, expected texts or whole numbers"),
    ({"x": [1.0, 2.0], "user": [["a"], ["b"]]}, "client 'user' holds List"),
    ({"x": [dt.date(2024, 1, 1)] * 2}, "column 'x' holds times (Date)"),
    ({"x": [START] * 2}, "name it by time="),
    ({"x": [[[1]], [[2]]]}, "holds lists of lists"),
    ({"x": [{"a": 1}] * 2}, "holds values of type Struct"),
    ({"x": [b"a", b"b"]}, "holds values of type Binary"),
    ({"x": pl.Series([object(), object()], dtype=pl.Object)}, "holds values of type Object"),
    ({"x": [2**24 + 1, 0]}, "name it in ids=[...] if they are ids"),
    ({"x": [2**64 - 1, 0], "options": {"ids": ["x"]}}, "a whole number beyond 64 bits"),
    ({"x": [0.5, 1.0], "options": {"ids": ["x"]}}, "ids are texts or whole numbers"),
    ({"x": [1, 2], "options": {"ids": "x"}}, "write ids=['x']"),
    ({"x": [1, 2], "options": {"features": "x"}}, "write features=['x']"),
    ({"x": [1, 2], "options": {"features": ["z"]}}, "unknown column for features 'z'"),
    ({"x": [1, 2], "options": {"features": ["x", "x"]}}, "features names 'x' twice"),
    ({"x": [1, 2], "options": {"features": ["y"]}}, "which is the column for label"),
    ({"x": [1, 2], "z": [1, 2], "options": {"features": ["x"], "ids": ["z"]}}, "which features does not"),
    ({"x": [1, 2], "z": ["a", "b"], "options": {"ids": [["x", "z"]]}}, "of different types ('x' Int64, 'z' String)"),
    ({"x": [1, 2], "options": {"dense": {"d": "x"}}}, "expected a list of columns"),
    ({"x": [1, 2], "options": {"dense": ["x"]}}, "expected a dictionary"),
    ({"x": ["a", "b"], "options": {"dense": {"d": ["x"]}}}, "dense['d'] has column 'x' of type String"),
    ({"x": [[1], [2]], "options": {"dense": {"d": ["x"]}}}, "expected one number per row"),
    ({"x": [1, 2], "z": [1, 2], "options": {"dense": {"z": ["x"]}}}, "there is a column of that name"),
    ({"x": [1, 2], "options": {"lists": {"x": ""}}}, "expected the text between two items"),
    ({"x": [0.5, 2], "options": {"lists": {"x": "|"}}}, "which lists= cannot split"),
    ({"x": [1, None], "options": {"fill": {"x": "a"}}}, "fill['x'] is 'a' and column 'x' holds Int64"),
    ({"x": [1, None], "options": {"fill": {"x": math.nan}}}, "give a value of its type"),
    ({"x": [1, None], "options": {"fill": {"x": True}}}, "give a value of its type"),
    ({"x": ["a", None], "options": {"fill": {"x": 0}}}, "give a value of its type"),
    ({"x": [1, 2], "options": {"min_count": 0}}, "min_count is 0"),
    ({"source": simple(x=[1, 2]).rename({"x": "a b"})}, "column 'a b' cannot be an argument"),
    ({"source": simple(x=[1, 2]).rename({"x": "class"})}, "column 'class' cannot be an argument"),
    ({"source": simple(x=[1, 2]).rename({"x": "label"})}, "give it another name"),
    ({"x": [["a"], ["b"]], "x_length": [1, 2]}, "'x_length'"),
    ({"x": [1, 2], "y": [3, 5]}, "give classes=True if they are classes, or classes=False"),
    ({"x": [1, 2], "y": ["a", "b"], "options": {"classes": False}}, "leave classes=False out"),
    ({"x": [1, 2], "y": [0.5, 1], "options": {"classes": True}}, "broken numbers"),
    ({"x": [1, 2], "y": [[1], [2]]}, "label 'y' holds List"),
    ({"x": [1, 2], "y": [START] * 2}, "label 'y' holds Datetime"),
    ({"x": [1, 2], "h": [0, 2], "test": "h"}, "test 'h' holds Int64, expected true"),
    ({"x": [1, 2], "h": [1, 1], "test": "h"}, "no training sample"),
    ({"x": [1, 2], "h": ["a", "b"], "test": "h"}, "test 'h' holds String"),
    ({"x": [1, 2], "test": 1.5}, "test=1.5 is not a fraction"),
    ({"x": [1, 2], "options": {"by": "clients"}}, "unknown way to split"),
    ({"x": [1, 2], "t": [1, 2], "test": 0.5, "options": {"by": "client", "time": "t"}}, "by='client' holds out whole"),
    ({"x": [1, 2], "t": ["05/01/2024", "06/01/2024"], "options": {"time": "t"}}, "time 't' row 0 is '05/01/2024'"),
    ({"x": [1, 2], "t": ["2024-01-01", "soon"], "options": {"time": "t"}}, "time 't' row 1 is 'soon'"),
    ({"x": [1, 2], "t": ["now", "soon"], "options": {"time": "t"}}, "time 't' row 0 is 'now'"),
    ({"x": [1, 2], "t": [[1], [2]], "options": {"time": "t"}}, "time 't' holds List"),
    ({"x": [1, 2], "t": [START, None], "options": {"time": "t"}}, "column 't' has missing values in 1 row, row 1"),
    ({"source": {"user": ["a"], "y": [1.0]}}, "several tables or columns ('user', 'y')"),
    ({"source": [1, 2]}, "from_frame was given list, expected a polars or pandas DataFrame"),
]


@pytest.mark.parametrize(("given", "told"), BROKEN, ids=[told for _, told in BROKEN])
def test_what_cannot_become_a_federation_is_told_in_a_sentence(given: dict[str, Any], told: str) -> None:
    assert told in one_sentence(lambda: made(**given), ends=(".", "?"))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"x": ["a", 1]}, "column 'x' holds values of type int and str, expected one type"),
        ({"x": [["a"], [1]]}, "column 'x' holds values of type int and str, expected one type"),
        ({"x": [1, None]}, "column 'x' has missing values in 1 row, row 1"),
        ({"x": ["a", None]}, "column 'x' has missing values in 1 row, row 1"),
        ({7: [1, 2]}, "a column is called 7, expected a text"),
        ({"x": [START, START]}, "column 'x' holds times"),
    ],
)
def test_what_pandas_holds_beyond_is_told_in_a_sentence(columns: dict[Any, Any], told: str) -> None:
    frame = pandas_like.DataFrame({"user": ["a", "b"], "y": [0.5, 1.5]} | columns)
    with patch.dict(sys.modules, pandas=pandas_like.module()):
        assert told in one_sentence(lambda: Federation.from_frame(frame, **ROLES))
    frame.columns.append("user")
    with patch.dict(sys.modules, pandas=pandas_like.module()):
        assert "two columns are called 'user'" in one_sentence(lambda: Federation.from_frame(frame, **ROLES))


def test_pandas_is_not_imported() -> None:
    with patch.dict(sys.modules, {"pandas": None}), pytest.raises(UserError, match="was given DataFrame"):
        Federation.from_frame(pandas_like.DataFrame({"user": ["a"]}), **ROLES)


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("t.csv", "", "cannot be read as csv: empty CSV"),
        ("t.csv", "user,x,y\na,1,2,3\n", "cannot be read as csv"),
        ("t.csv", b"user,x,y\n\xff,1,2\n", "cannot be read as csv: invalid utf-8"),
        ("t.csv", b"\x1f\x8b\x08\x00", "is compressed, expected plain CSV"),
        ("t.csv", "user,x,y\na,1\n", "column 'y' has missing values"),
        ("t.parquet", "PAR1", "cannot be read as parquet"),
        ("t.xlsx", "", "ends in '.xlsx', expected .csv or .parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_a_sentence(tmp_path: Path, name: str, content: Any, told: str) -> None:
    path = write(tmp_path / name, content)
    assert told in one_sentence(lambda: Federation.from_frame(path, **ROLES))


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "has no .csv or .parquet file"),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x,z\n1,2\n"}, "differ in column 'y'"),
        ({"a.csv": "user,x,y\nu,1,2\n"}, "has a column 'user', expected none"),
        ({"a.csv": "x,y\n1,2\n", "a.parquet": b""}, "are named after one client"),
    ],
)
def test_a_folder_that_cannot_be_read_is_told_in_a_sentence(tmp_path: Path, files: dict[str, Any], told: str) -> None:
    if "a.parquet" in files:
        pl.DataFrame({"x": [1], "y": [2]}).write_parquet(tmp_path / "a.parquet")
    for name, content in files.items():
        if content:
            write(tmp_path / name, content)
    assert told in one_sentence(lambda: Federation.from_frame(tmp_path, **ROLES))
    assert "is not a file or folder" in one_sentence(lambda: Federation.from_frame(tmp_path / "nothing", **ROLES))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for path in (tmp_path / "alone.csv", tmp_path / "folder" / "ann.csv"):
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
    for path in (tmp_path / "alone.csv", tmp_path / "folder"):
        assert "is not a file or folder" in one_sentence(lambda path=path: Federation.from_frame(path, **ROLES))


def test_an_array_can_mark_the_test_samples() -> None:
    federation = made(x=[1, 2, 3], y=[1.0, 2.0, 3.0], test=[False, True, True])
    assert sorted(federation.test.label.tolist()) == [2.0, 3.0]
    assert "one boolean per sample (3)" in one_sentence(lambda: made(x=[1, 2, 3], test=[True]))


def test_files_of_clients_agree_on_types(tmp_path: Path) -> None:
    write(tmp_path / "ann.csv", "x,item,note,y\n1,01,,0.5\n")
    write(tmp_path / "bob.csv", "x,item,note,y\n1.5,tea,n,1\n")
    write(tmp_path / ".hidden.csv", "odd")
    write(tmp_path / "README.txt", "odd")
    write(tmp_path / "cy.csv", "x,item,note,y\n")
    federation = Federation.from_frame(tmp_path, **ROLES, test=0.0, fill={"note": "none"})
    assert federation.ids.tolist() == ["ann", "bob"]
    assert feature(federation, "x") == [1.0, 1.5]
    assert federation.vocabularies["item"].values == ["01", "tea"], "as it stands in the file, not as a number"
    assert federation.vocabularies["note"].values == ["n", "none"]
    assert federation.train.label.tolist() == [0.5, 1.0]
