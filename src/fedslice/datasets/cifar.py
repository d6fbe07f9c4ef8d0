"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), image sets of FedDD and FLSS, in their binary and their python layout.

A binary record is the label's byte and 3,072 bytes of one image: red, then green, then blue, row by row; in CIFAR-100
the byte of a coarse class comes before that of the fine one, which is the label. The python files are pickles with the
same bytes; they are read as data (`pickled`) and never unpickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.core.errors import UserError, unknown
from fedslice.datasets import packed, pickled
from fedslice.datasets.images import Images, checked, folder

SHAPE = (3, 32, 32)
MAX_BYTES = 1 << 28
"""Limit of a file; the largest official one, the python file of CIFAR-100, has 155 million bytes."""

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    """The files of a set: their folder, their names, and the place of the labels."""

    folders: tuple[str, str]  # of the binary and of the python files
    outer: str
    train: tuple[str, ...]
    test: str
    classes: int
    key: str  # of the labels in a python file
    before: int = 0  # bytes of a binary record before the label


_LAYOUTS = {
    "CIFAR-10": _Layout(
        folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
        outer="cifar10/",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test="test_batch",
        classes=10,
        key="labels",
    ),
    "CIFAR-100": _Layout(
        folders=("cifar-100-binary", "cifar-100-python"),
        outer="cifar100/",
        train=("train",),
        test="test",
        classes=100,
        key="fine_labels",
        before=1,
    ),
}


def read(path: Path, name: str = "CIFAR-10") -> tuple[Images, Images]:
    """Training and test images of ``name`` ("CIFAR-10" or "CIFAR-100") from the files of either layout.

    The folder may hold them itself, or in the folder that the official archive has, inside a folder cifar10 or
    cifar100 or not.
    """
    if name not in _LAYOUTS:
        raise unknown("set of CIFAR files", name, _LAYOUTS)
    layout = _LAYOUTS[name]
    binary, python = layout.folders
    inner = [f"{outer}{one}" for outer in ("", layout.outer) for one in (binary, "")]
    inner += [f"{outer}{python}" for outer in ("", layout.outer)]
    place = folder(path, inner, (f"{layout.train[0]}.bin", layout.train[0]), name)
    train = Images.joined([_batch(place, batch, layout) for batch in layout.train])
    return train, _batch(place, layout.test, layout)


def _batch(place: Path, name: str, layout: _Layout) -> Images:
    for file, taken in ((place / f"{name}.bin", _binary), (place / name, _python)):
        if file.is_file():
            pixels, label = taken(file, layout)
            return Images(pixels.reshape(-1, *SHAPE), checked(f"{file}", label, layout.classes))
    raise UserError(f"{place / name}.bin is missing, expected it beside the other batches; fetch it.")


_Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]


def _binary(file: Path, layout: _Layout) -> _Batch:
    raw = packed.file(file, MAX_BYTES)
    record = layout.before + 1 + _PIXELS
    if not raw or len(raw) % record:
        raise UserError(
            f"{file} has {len(raw):,} bytes, expected a multiple of {record:,}, a label and an image each; "
            "fetch it again."
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return records[:, -_PIXELS:], records[:, layout.before].astype(np.int64)


def _python(file: Path, layout: _Layout) -> _Batch:
    content = pickled.plain(f"{file}", packed.file(file, MAX_BYTES))
    found: dict[str, Any] = content if isinstance(content, dict) else {}
    data, labels = found.get("data"), found.get(layout.key)
    if not isinstance(data, np.ndarray) or data.ndim != 2 or not len(data) or data.shape[1] != _PIXELS:
        raise UserError(f"{file} has no 'data' of {_PIXELS:,} bytes per image; fetch the official file.")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(_small(one) for one in labels):
        raise UserError(
            f"{file} has no {layout.key!r}, one class number for each of its {len(data):,} images; fetch it again."
        )
    return data, np.array(labels, np.int64)


def _small(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**31
