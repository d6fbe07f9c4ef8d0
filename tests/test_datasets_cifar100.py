"""CIFAR-100 in both layouts: the fine class is the label."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedslice.datasets import cifar
from layouts import one_sentence


def some(part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels, coarse and fine labels."""
    rng, samples = np.random.default_rng(len(part)), {"train": 200, "test": 4}[part]
    coarse, fine = (rng.integers(0, most, samples).astype(np.uint8) for most in (20, 100))
    return rng.integers(0, 256, (samples, 3072), np.uint8), coarse, fine


def binary(pixels: np.ndarray, coarse: np.ndarray, fine: np.ndarray) -> bytes:
    return np.concatenate([coarse[:, None], fine[:, None], pixels], 1).tobytes()


def python(pixels: np.ndarray, coarse: np.ndarray, fine: np.ndarray) -> bytes:
    content = {"data": pixels, "coarse_labels": coarse.tolist(), "fine_labels": fine.tolist(), "filenames": ["a"]}
    return pickle.dumps(content, protocol=2)


LAYOUTS: dict[str, tuple[str, str, Callable[..., bytes]]] = {
    "binary": ("cifar-100-binary", ".bin", binary),
    "python": ("cifar-100-python", "", python),
}


def write(folder: Path, layout: str) -> Path:
    inner, end, made = LAYOUTS[layout]
    place = folder / inner
    place.mkdir(parents=True)
    for part in ("train", "test"):
        (place / f"{part}{end}").write_bytes(made(*some(part)))
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("outer", ["", "cifar100"])
def test_values_are_those_that_were_written(tmp_path: Path, layout: str, outer: str) -> None:
    write(tmp_path / outer, layout)
    for path in (tmp_path, tmp_path / outer / LAYOUTS[layout][0]):
        for part, found in zip(("train", "test"), cifar.read(path, "CIFAR-100"), strict=True):
            pixels, _, fine = some(part)
            assert found.image.shape == (len(fine), 3, 32, 32)
            assert np.array_equal(found.image.reshape(len(fine), -1), pixels)
            assert np.array_equal(found.label, fine)


PIXELS, COARSE, FINE = some("test")
BAD = {
    "record": ("binary", binary(PIXELS, COARSE, FINE)[:-1], "has 12,295 bytes, expected a multiple of 3,074"),
    "CIFAR-10's records": ("binary", bytes(3073), "has 3,073 bytes, expected a multiple of 3,074"),
    "class": (
        "binary",
        binary(PIXELS, COARSE, FINE * 0 + np.uint8(100)),
        "sample 1: the label is 100, expected 0 to 99",
    ),
    "coarse only": ("python", pickle.dumps({"data": PIXELS, "coarse_labels": [1] * 4}, 2), "has no 'fine_labels'"),
    "CIFAR-10's labels": ("python", pickle.dumps({"data": PIXELS, "labels": [1] * 4}, 2), "has no 'fine_labels'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_named(tmp_path: Path, case: str) -> None:
    layout, raw, found = BAD[case]
    write(tmp_path, layout)
    file = tmp_path / LAYOUTS[layout][0] / f"test{LAYOUTS[layout][1]}"
    file.write_bytes(raw)
    told = one_sentence(cifar.read, tmp_path, "CIFAR-100")
    assert told.startswith(f"{file}")
    assert found in told


def test_what_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    assert one_sentence(cifar.read, tmp_path, "CIFAR-100").startswith(f"{tmp_path} holds no train.bin or train; give")
    write(tmp_path, "binary")
    assert one_sentence(cifar.read, tmp_path).startswith(f"{tmp_path} holds no data_batch_1.bin"), "that is CIFAR-10"
    (tmp_path / "cifar-100-binary" / "test.bin").unlink()
    assert "cifar-100-binary/test.bin is missing" in one_sentence(cifar.read, tmp_path, "CIFAR-100")
    assert "unknown set of CIFAR files 'CIFAR-20'" in one_sentence(cifar.read, tmp_path, "CIFAR-20", ends=("?",))
