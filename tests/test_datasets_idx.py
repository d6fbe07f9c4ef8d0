"""MNIST and Fashion-MNIST: the images that come out of good idx files, and the sentence that comes out of bad ones."""

import gzip
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedslice.core.errors import UserError
from fedslice.datasets import idx
from layouts import REAL_DATA, one_sentence


def packed(values: np.ndarray) -> bytes:
    """An idx file of bytes."""
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def some(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (samples, 28, 28), np.uint8), rng.integers(0, 10, samples).astype(np.uint8)


def write_idx(folder: Path, train: int = 12, test: int = 5, seed: int = 0, zipped: bool = False) -> Path:
    """The four files, and the folder they are in."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, samples, own in (("train", train, seed), ("t10k", test, seed + 1)):
        for name, values in zip(("images-idx3-ubyte", "labels-idx1-ubyte"), some(samples, own), strict=True):
            raw = packed(values)
            file = folder / f"{part}-{name}{'.gz' * zipped}"
            file.write_bytes(gzip.compress(raw, mtime=0) if zipped else raw)
    return folder


def sentence(path: Path) -> str:
    return one_sentence(idx.read, path)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("inner", ["", "mnist", "MNIST/raw"])
def test_values_are_those_that_were_written(tmp_path: Path, zipped: bool, inner: str) -> None:
    write_idx(tmp_path / inner, zipped=zipped)
    for found, (pixels, label) in zip(idx.read(tmp_path), (some(12, 0), some(5, 1)), strict=True):
        assert found.image.shape == (len(label), 1, 28, 28)
        assert found.image.dtype == np.uint8
        assert np.array_equal(found.image[:, 0], pixels)
        assert np.array_equal(found.label, label)


def test_each_set_is_found_beside_the_other(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", seed=0)
    write_idx(tmp_path / "fashion-mnist", seed=7)
    assert np.array_equal(idx.read(tmp_path, "MNIST")[0].image[:, 0], some(12, 0)[0])
    assert np.array_equal(idx.read(tmp_path, "Fashion-MNIST")[0].image[:, 0], some(12, 7)[0])


TRAIN, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
GOOD = packed(some(12, 0)[0])
BAD = {
    "other magic": (TRAIN, b"\x1f" + GOOD[1:], "begins with 1f 00 08 03"),
    "floats": (TRAIN, GOOD[:2] + b"\x0d" + GOOD[3:], "begins with 00 00 0d 03"),
    "labels for images": (TRAIN, packed(some(12, 0)[1]), "begins with 00 00 08 01"),
    "nothing": (TRAIN, b"", "begins with nothing and has 0 bytes"),
    "half a header": (TRAIN, GOOD[:9], "begins with 00 00 08 03 and has 9 bytes"),
    "cut short": (TRAIN, GOOD[:-1], "has 9,407 bytes after its header, expected 12 x 28 x 28"),
    "more than it says": (TRAIN, GOOD + b"x", "has 9,409 bytes after its header, expected 12 x 28 x 28"),
    "a size to fill the memory": (
        TRAIN,
        GOOD[:4] + b"\xff" * 12 + GOOD[16:],
        "has 9,408 bytes after its header, expected 4294967295 x 4294967295 x 4294967295",
    ),
    "no image": (TRAIN, packed(some(0, 0)[0]), "has 0 bytes after its header, expected 0 x 28 x 28 and more than none"),
    "other side": (TRAIN, packed(np.zeros((12, 14, 56), np.uint8)), "has images of 14 by 56 pixels, expected 28 by 28"),
    "fewer labels": (LABELS, packed(some(11, 0)[1]), "has 11 labels, expected one for each of the 12 images"),
    "label": (LABELS, packed(np.array([0, 9, 10] + [0] * 9, np.uint8)), "sample 3: the label is 10, expected 0 to 9"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("zipped", [False, True])
def test_what_is_wrong_is_named(tmp_path: Path, case: str, zipped: bool) -> None:
    name, raw, found = BAD[case]
    file = write_idx(tmp_path, zipped=zipped) / f"{name}{'.gz' * zipped}"
    file.write_bytes(gzip.compress(raw) if zipped else raw)
    told = sentence(tmp_path)
    assert told.startswith(f"{file}")
    assert found in told


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert sentence(tmp_path / "no") == f"{tmp_path / 'no'} is not a folder, expected the one that holds MNIST."
    assert sentence(tmp_path).startswith(f"{tmp_path} holds no {TRAIN} or {TRAIN}.gz; give the folder")
    (write_idx(tmp_path) / LABELS).unlink()
    assert sentence(tmp_path).startswith(f"{tmp_path / LABELS} is missing, plain or .gz")
    assert "unknown set of idx files 'mnist'" in one_sentence(idx.read, tmp_path, "mnist", ends=("?", "."))


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    file = write_idx(tmp_path, zipped=True) / f"{TRAIN}.gz"
    good = file.read_bytes()
    for raw in (good[:-20], b"no archive", good[:50] + bytes(50) + good[100:]):
        file.write_bytes(raw)
        assert sentence(tmp_path).startswith(f"{file} cannot be read as a gzip archive (")


def test_a_small_archive_of_very_much_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idx, "MAX_BYTES", 1 << 22)
    file = write_idx(tmp_path, zipped=True) / f"{TRAIN}.gz"
    file.write_bytes(gzip.compress(GOOD + bytes(1 << 24))[:-9])  # who unpacked it all would find its end missing
    assert sentence(tmp_path) == (
        f"{file} unpacks to more than 4,194,304 bytes, expected fewer; fetch the official file."
    )


def test_no_damage_gives_anything_but_images_or_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = write_idx(tmp_path) / TRAIN
    for _ in range(100):
        raw = bytearray(GOOD)
        raw[rng.integers(0, 16)] = rng.integers(0, 256)
        file.write_bytes(raw[: len(raw) - int(rng.integers(0, 3))])
        with suppress(UserError):
            assert len(idx.read(tmp_path)[0]) == 12


@pytest.mark.skipif(not (REAL_DATA / "mnist").is_dir(), reason="the official files are not here")
def test_the_official_files() -> None:
    train, test = idx.read(REAL_DATA)
    assert np.bincount(train.label).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert len(test) == 10_000
    assert train.image.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
