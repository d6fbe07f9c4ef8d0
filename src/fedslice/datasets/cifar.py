"""CIFAR-10 (Krizhevsky, 2009), the third image set of S3, in its binary and its python layout.

A binary record is the label's byte and 3,072 bytes of one image: red, then green, then blue, row by row. The python
files are pickles with the same bytes; they are read as data (`pickled`) and never unpickled.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.datasets import pickled
from fedslice.datasets.images import Images, checked, folder, load
from fedslice.errors import UserError

SHAPE = (3, 32, 32)

_PIXELS = 3 * 32 * 32
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = "test_batch"


def read(path: Path) -> tuple[Images, Images]:
    """Training and test images from the six files of either layout.

    The folder may hold them itself, or in cifar-10-batches-bin or cifar-10-batches-py, inside a folder cifar10 or not.
    """
    inner = [f"{outer}{layout}" for outer in ("", "cifar10/") for layout in ("cifar-10-batches-bin", "")]
    inner += [f"{outer}cifar-10-batches-py" for outer in ("", "cifar10/")]
    place = folder(path, inner, (f"{_TRAIN[0]}.bin", _TRAIN[0]), "CIFAR-10")
    parts = [_batch(place, name) for name in _TRAIN]
    train = Images(np.concatenate([part.image for part in parts]), np.concatenate([part.label for part in parts]))
    return train, _batch(place, _TEST)


def _batch(place: Path, name: str) -> Images:
    for file, taken in ((place / f"{name}.bin", _binary), (place / name, _python)):
        if file.is_file():
            return taken(file)
    raise UserError(f"{place / name}.bin is missing, expected it beside the other batches; fetch it.")


def _binary(file: Path) -> Images:
    raw = load(file)
    if not raw or len(raw) % (1 + _PIXELS):
        raise UserError(
            f"{file} has {len(raw):,} bytes, expected a multiple of {1 + _PIXELS:,}, a label and an image each; "
            "fetch it again."
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, 1 + _PIXELS)
    return _images(file, records[:, 1:], records[:, 0].astype(np.int64))


def _python(file: Path) -> Images:
    content = pickled.plain(f"{file}", load(file))
    found: dict[str, Any] = content if isinstance(content, dict) else {}
    data, labels = found.get("data"), found.get("labels")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or not len(data) or data.shape[1] != _PIXELS:
        raise UserError(f"{file} has no 'data' of {_PIXELS:,} bytes per image; fetch the official file.")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(_small(one) for one in labels):
        raise UserError(
            f"{file} has no 'labels', one class number for each of its {len(data):,} images; fetch it again."
        )
    return _images(file, data, np.array(labels, np.int64))


def _small(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**31


def _images(file: Path, pixels: NDArray[np.uint8], label: NDArray[np.int64]) -> Images:
    return Images(pixels.reshape(-1, *SHAPE), checked(f"{file}", label))
