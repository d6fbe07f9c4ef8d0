"""The store: what is put is what is got, in memory or on disk, and after a checkpoint."""

import os
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.core.store import Store
from fedslice.local import Moon
from fedslice.recipe import Recipe
from fedslice.runs import checkpoint
from fedslice.select import Uniform
from fedslice.training import population
from fedslice.training.experiment import Experiment
from toys import assert_same, mlp, run, training

CLIENTS, SHAPE = 9, (2, 3)
ROW = 6 * 4  # bytes

Puts = list[tuple[list[int], int]]
puts: st.SearchStrategy[Puts] = st.lists(
    st.tuples(st.lists(st.integers(0, CLIENTS - 1), unique=True), st.integers(0, 1000)), max_size=6
)
limits = st.sampled_from([0, 2 * ROW, 5 * ROW, CLIENTS * ROW])


def values(clients: list[int], seed: int) -> Tensor:
    return torch.randn(len(clients), *SHAPE, generator=torch.Generator().manual_seed(seed))


def filled(store: Store, done: Puts) -> dict[int, Tensor]:
    """Put everything; what each client should remember then."""
    expected = {}
    for clients, seed in done:
        new = values(clients, seed)
        store.put("a", torch.tensor(clients, dtype=torch.int64), new)
        expected |= dict(zip(clients, new, strict=True))
    return expected


def assert_holds(store: Store, expected: dict[int, Tensor]) -> None:
    memory = store.get("a", torch.arange(CLIENTS))
    assert (memory is None) == (not expected)
    if memory is not None:
        assert memory[1].tolist() == [client in expected for client in range(CLIENTS)]
        for client, value in expected.items():
            assert torch.equal(memory[0][client], value)


@given(puts, limits)
@settings(max_examples=40)
def test_it_remembers_the_last_of_each_client(done: Puts, limit: int) -> None:
    store = Store(CLIENTS, limit=limit)
    assert_holds(store, filled(store, done))


@given(puts, puts, limits, limits)
@settings(max_examples=40)
def test_a_checkpoint_restores_it_whatever_the_limits(before: Puts, after: Puts, limit: int, other: int) -> None:
    store, again = Store(CLIENTS, limit=limit), Store(CLIENTS, limit=other)
    expected = filled(store, before)
    again.load_state_dict(store.state_dict())
    assert_same(again.state_dict(), store.state_dict())
    assert_holds(again, expected | filled(again, after))
    assert_holds(store, expected)  # the two share nothing


@given(puts, st.lists(st.integers(0, CLIENTS - 1), unique=True), puts, limits)
@settings(max_examples=40)
def test_what_is_forgotten_is_as_if_it_had_never_been_put(
    before: Puts, gone: list[int], after: Puts, limit: int
) -> None:
    store, again = Store(CLIENTS, limit=limit), Store(CLIENTS, limit=limit)
    expected = filled(store, before)
    store.forget("a", torch.tensor(gone, dtype=torch.int64))
    left = {client: value for client, value in expected.items() if client not in gone}
    assert_holds(store, left)
    again.load_state_dict(store.state_dict())
    assert_holds(again, left)
    for one in (store, again):
        assert_holds(one, left | filled(one, after))


def test_names_are_forgotten_by_their_beginnings() -> None:
    store, who = Store(CLIENTS), torch.tensor([1, 4])
    ids, mine = torch.tensor([[0, 5], [2, 2]]), torch.tensor([[True, True], [True, False]])
    for name in ("a/w", "a/b", "ab/w"):
        store.put(name, who, values([1, 4], 0))
        store.put_rows(name, who, ids, mine, values([1, 4], 1))
    store.forget("a", torch.tensor([4, 7]))
    for name in ("a/w", "a/b", "ab/w"):
        memory, rows = store.get(name, who), store.get_rows(name, who)
        assert memory is not None
        assert memory[1].tolist() == [True, name == "ab/w"]
        assert rows is not None
        assert rows[0].counts.tolist() == [2, int(name == "ab/w")]
    store.forget("a/w", torch.tensor([1]))
    assert store.get("a/w", who) is None
    assert store.get_rows("a/w", who) is None
    again = Store(CLIENTS)
    again.load_state_dict(store.state_dict())
    assert_same(again.state_dict(), store.state_dict())
    assert again.get("a/w", who) is None
    assert again.get("a/b", who) is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool, torch.uint8])
def test_every_type_goes_to_disk(dtype: torch.dtype) -> None:
    store, some = Store(4, limit=0), torch.tensor([[0, 1], [1, 1]]).to(dtype)
    store.put("a", torch.tensor([3, 1]), some)
    memory = store.get("a", torch.tensor([1, 3]))
    assert memory is not None
    assert memory[0].dtype == dtype
    assert torch.equal(memory[0], some.flip(0))


def mapped(store: Store) -> bool:
    """Does an array of the store lie in a file that is mapped into this process?"""
    first = store.state_dict()["a/rows"].data_ptr()
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if start <= first < end:
                return "(deleted)" in line
    return False


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of what is mapped")
def test_only_what_exceeds_the_limit_lies_on_disk_and_no_file_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = Store(CLIENTS, limit=2 * ROW)
    store.put("a", torch.tensor([4, 2]), values([4, 2], 0))
    assert not mapped(store)
    store.put("a", torch.tensor([7]), values([7], 1))
    assert mapped(store)
    assert list(tmp_path.iterdir()) == []
    assert_holds(store, dict(zip((4, 2, 7), [*values([4, 2], 0), *values([7], 1)], strict=True)))


def test_a_full_disk_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(
        UserError, match=r"remember as 'a' takes .* no room for \(No space left on device\); let TMPDIR"
    ):
        Store(CLIENTS, limit=0).put("a", torch.tensor([1]), values([1], 0))


def test_nobody_puts_nothing() -> None:
    store, nobody = Store(CLIENTS), torch.zeros(0, dtype=torch.int64)
    store.put("a", nobody, values([], 0))
    store.put_rows("b", nobody, torch.zeros(0, 2), torch.zeros(0, 2), torch.zeros(0, 2, 3))
    assert store.get("a", torch.arange(3)) is None
    assert store.get_rows("b", torch.arange(3)) is None
    assert store.state_dict() == {}


def test_a_run_is_the_same_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also when it resumes from a checkpoint of a run that was in memory."""
    task, recipe = mlp(), Recipe(local=training(Moon, mu=1, iterations=2), select=Uniform(cohort=3))
    whole, first = run(task, recipe, rounds=4), run(task, recipe, rounds=2)
    checkpoint.save(tmp_path / "state", *first.state_dict())
    monkeypatch.setattr(population, "Store", partial(Store, limit=16))
    second = Experiment(task, recipe, rounds=4)
    second.load_state_dict(*checkpoint.load(tmp_path / "state"))
    second.run()
    assert_same(second.model, whole.model)
    assert_same(second.population.memories.state_dict(), whole.population.memories.state_dict())
