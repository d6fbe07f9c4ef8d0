"""Heat as tables and figures show it (FedSubAvg, table 1 and figure 5), against plain counting."""

from io import StringIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

from fedslice.console import inspect_tables
from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.measure import describe, histogram
from fedslice.measure.heat import corrections
from fedslice.task import Task
from toys import index_set, recommender, squared


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(300, 1)

    def forward(self, item: object) -> object:
        return self.item(item).squeeze(-1)


def with_heat(heat: list[int]) -> Task:
    """Row m is named by the first ``heat[m]`` clients; a last row, by everyone, so that all of them exist."""
    pairs = [(c, m) for m, n in enumerate([*heat, max(heat)]) for c in range(n)]
    client, item = (np.array(column) for column in zip(*pairs, strict=True))
    data = Federation.from_arrays(client=client, features={"item": item}, label=np.zeros(len(item)), test=0.0)
    return Task(data, Looked(), squared, tables={"item.weight": "item"})


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(any))
def test_bins_double_and_hold_every_row_once(heat: list[int]) -> None:
    task = with_heat(heat)
    (found,) = histogram(task)
    assert (found["tables"], found["features"]) == (["item.weight"], ["item"])
    bins, every = found["bins"], [*heat, max(heat)]
    assert [(b["from"], b["to"]) for b in bins[:5]] == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16)][: len(bins)]
    assert all(b["rows"] == sum(b["from"] <= n <= b["to"] for n in every) for b in bins)
    assert sum(b["rows"] for b in bins) == sum(n > 0 for n in every)
    assert bins[-1]["from"] <= max(heat) <= bins[-1]["to"]


def test_the_padding_row_is_in_no_bin() -> None:
    task = recommender(ragged=True)
    for group, table in zip(histogram(task), describe(task)["tables"], strict=True):
        assert group["bins"] == table["histogram"]
        assert sum(b["rows"] for b in group["bins"]) == table["rows_held"]
    clients = range(len(task.federation))
    named = set().union(*(index_set(task, "item.weight", c) for c in clients)) - {0}
    assert sum(b["rows"] for b in histogram(task)[0]["bins"]) == len(named)


def test_a_sequence_without_any_item_leaves_no_bin() -> None:
    data = Federation.from_arrays(
        client=[0, 1],
        features={"item": np.array([0, 0]), "history": Ragged.from_lists([[], []])},
        label=[0.0, 1.0],
        test=0.0,
    )

    class Read(Looked):
        def forward(self, item: object, history: object, history_length: object) -> object:
            return self.item(item).squeeze(-1)

    task = Task(data, Read(), squared, tables={"item.weight": ("item", "history")})
    assert histogram(task)[0]["bins"] == []


def test_the_histogram_is_for_machines() -> None:
    out = StringIO()
    for part in inspect_tables(describe(recommender())):
        Console(file=out, width=80).print(part)
    assert "heat dispersion" in out.getvalue()
    assert "histogram" not in out.getvalue()


def test_corrections_are_clients_by_heat() -> None:
    """N/n_m, 0 where nobody holds the row, 1 for the padding row, which everyone does."""
    task = recommender(items=40, seed=3)
    clients = range(len(task.federation))
    found = corrections(task)
    assert set(found) == {"item.weight", "tag.weight"}
    for table, factor in found.items():
        heat = [sum(m in index_set(task, table, c) for c in clients) for m in range(task.shapes[table][0])]
        assert 0 in heat or table == "tag.weight"
        assert factor.tolist() == pytest.approx([len(clients) / n if n else 0.0 for n in heat])
    assert float(found["item.weight"][0]) == 1.0
