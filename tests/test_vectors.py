"""Vectors in memory and in files: the same numbers, what a checkpoint counts on, and how much memory they take."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedslice.codecs.basis import Basis
from fedslice.core import vectors
from fedslice.core.errors import UserError
from fedslice.core.vectors import Vectors

SIZE, COUNT = 37, 5
Make = Callable[..., Vectors]


def drawn(count: int = COUNT, size: int = SIZE, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(0)).to(dtype)


def made(folder: Path | None = None, dtype: torch.dtype = torch.float32, most: int | None = COUNT) -> Vectors:
    return Vectors("measure=some", SIZE, most, dtype, folder, "give fewer")


def filled(into: Vectors, values: Tensor) -> Vectors:
    for value in values:
        into.append(value)
    return into


@pytest.fixture(params=["memory", "temporary file", "folder"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Vectors in each of the places where they may lie, read in small parts."""
    monkeypatch.setattr(vectors, "_AT_ONCE", 10)
    if request.param == "temporary file":
        monkeypatch.setattr(vectors, "free_memory", lambda: 0)
    return lambda **options: made(tmp_path if request.param == "folder" else None, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_and_blocks_are_those_of_the_matrix_to_the_bit_wherever_it_lies(
    make: Make, dtype: torch.dtype
) -> None:
    values = drawn(dtype=dtype)
    kept = filled(make(dtype=dtype), values)
    assert len(kept) == COUNT
    other = drawn(COUNT + 1)[-1]
    parts = zip(values.double().split(10, 1), other.double().split(10), strict=True)
    assert torch.equal(kept.products(other), sum(torch.stack([one @ part for one in rows]) for rows, part in parts))
    assert torch.equal(torch.cat(list(kept.blocks(8))), values.T)
    torch.testing.assert_close(kept.products(other), values.double() @ other.double())


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_a_basis_is_the_same_to_the_bit_wherever_its_updates_lie(
    make: Make, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedslice.codecs.basis._ROWS", 8)
    values = drawn()
    found, expected = Basis.of(filled(make(), values), rank), Basis.of(values.T, rank)
    assert found is not None
    assert expected is not None
    assert torch.equal(found.columns, expected.columns)
    assert torch.equal(found.sigma, expected.sigma)


def test_a_checkpoint_restores_them_and_they_go_on(make: Make) -> None:
    values = drawn(9)
    kept = filled(make(most=9), values[:4])
    state = {name: value.clone() for name, value in kept.state_dict().items()}
    filled(kept, values[4:])  # after the checkpoint, and lost
    again = make(most=9)
    again.load_state_dict(state)
    assert torch.equal(torch.cat(list(again.blocks(SIZE))), values[:4].T)
    assert torch.equal(torch.cat(list(filled(again, values[4:]).blocks(SIZE))), values.T)


def test_a_checkpoint_of_a_run_holds_checksums_alone_and_what_came_after_it_is_written_over(tmp_path: Path) -> None:
    values = drawn(6)
    kept = filled(made(tmp_path), values[:3])
    state = kept.state_dict()
    assert [tuple(value.shape) for value in state.values()] == [(3,)]
    filled(kept, values[4:])
    again = made(tmp_path)
    again.load_state_dict(state)
    assert torch.equal(torch.cat(list(filled(again, values[3:]).blocks(SIZE))), values.T)


def test_a_run_that_begins_again_begins_with_none(tmp_path: Path) -> None:
    filled(made(tmp_path), drawn())
    again = filled(made(tmp_path), drawn()[:1])
    assert (tmp_path / "some").stat().st_size == SIZE * 4
    assert len(again) == 1


def test_those_of_a_checkpoint_without_a_file_are_taken_into_one(tmp_path: Path) -> None:
    state = filled(made(), drawn()).state_dict()
    moved = made(tmp_path)
    moved.load_state_dict(state)
    assert torch.equal(torch.cat(list(moved.blocks(SIZE))), drawn().T)
    with pytest.raises(UserError, match="measure=some: the checkpoint counts on a file of its run"):
        made().load_state_dict(moved.state_dict())


@pytest.mark.parametrize("harm", ["changed", "short", "gone"])
def test_a_file_that_was_harmed_is_refused_where_it_is_needed(tmp_path: Path, harm: str) -> None:
    state, file = filled(made(tmp_path), drawn()).state_dict(), tmp_path / "some"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(raw if harm == "changed" else raw[:-4])
    first = 0 if harm == "gone" else 4
    with pytest.raises(UserError, match=rf"some has not the 5 vectors .* \(number {first} is missing or damaged"):
        made(tmp_path).load_state_dict(state)
    over = made(tmp_path)
    over.load_state_dict(state, read=False)
    assert len(over) == COUNT


def test_too_many_are_refused_before_the_first_with_the_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "free_memory", lambda: 6 * 2**30)
    monkeypatch.setattr(vectors, "free_disk", lambda _: 8 * 2**30)
    fits = 8 * 2**30 // (SIZE * 4)
    for folder in (None, tmp_path):
        made(folder, most=fits)
    taken = f"measure=some: {fits + 1:,} updates of 37 parameters take 8.0 GiB, where "
    with pytest.raises(UserError) as caught:
        made(most=fits + 1)
    assert str(caught.value).startswith(f"{taken}there are 3.0 GiB of memory to spare and 8.0 GiB in ")
    with pytest.raises(UserError) as caught:
        made(tmp_path, most=fits + 1)
    assert str(caught.value) == f"{taken}the disk of {tmp_path} has 8.0 GiB; give fewer."
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_written_some_of_them_needs_room_for_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(made(tmp_path), drawn()[:3])
    monkeypatch.setattr(vectors, "free_disk", lambda _: 2 * SIZE * 4)
    made(tmp_path, most=5)
    with pytest.raises(UserError):
        made(tmp_path, most=6)


def test_a_disk_that_fills_up_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\): the disk of .* has"):
        filled(made(tmp_path), drawn())


MEASURED = """
import resource, sys
from pathlib import Path
import torch
from fedslice.codecs.basis import Basis
from fedslice.core import vectors

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
torch.set_num_threads(1)
vectors.free_memory = lambda: 0
size, count, rank = 2**20, 32, 4
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
kept = vectors.Vectors("codec=subspace", size, count, torch.float32, folder, "")
one = torch.randn(size)
kept.append(one), kept.products(one), Basis.of(torch.randn(2**17, 2), 2)
before = peak()
for _ in range(count - 1):
    kept.append(torch.randn(size))
kept.products(one)
basis = Basis.of(kept, rank)
for _ in range(3):
    basis = basis.follow(torch.randn(size), 0.9, rank).basis
print(size * count * 4, size * rank * 4, peak() - before)
"""


@pytest.mark.parametrize("named", [True, False])
def test_in_a_file_they_take_no_memory_and_the_basis_lies_in_it_once(tmp_path: Path, named: bool) -> None:
    """128 MiB of updates and 16 of a basis; a block of 65,536 rows takes 8 MiB, and twice as much in float64."""
    words = [sys.executable, "-c", MEASURED, *([tmp_path] if named else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    updates, basis, grown = map(int, done.stdout.split())
    assert updates == 128 * 2**20
    assert grown < basis + 60 * 2**20
