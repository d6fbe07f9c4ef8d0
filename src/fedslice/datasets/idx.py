"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017), two image sets of FedDD, in their idx files.

An idx file is two zero bytes, a byte for the type of its values (8: unsigned bytes), a byte for the number of
dimensions, each dimension's size as a big-endian 32-bit number, and the values.
"""

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedslice.core.errors import UserError, unknown
from fedslice.datasets import packed
from fedslice.datasets.images import Images, checked, folder

SIDE = 28
CLASSES = 10
MAX_BYTES = 1 << 26
"""Limit of an unpacked file; the largest official one has 47 million bytes."""

_FOLDERS = {"MNIST": ("mnist", "MNIST/raw", ""), "Fashion-MNIST": ("fashion-mnist", "FashionMNIST/raw", "")}
_PARTS = ("train", "t10k")
_UNSIGNED_BYTE = 8


def read(path: Path, name: str = "MNIST") -> tuple[Images, Images]:
    """Training and test images of ``name`` ("MNIST" or "Fashion-MNIST") from the four files, plain or gzip.

    The folder may hold them in a subfolder mnist or fashion-mnist, or as torchvision puts them.
    """
    if name not in _FOLDERS:
        raise unknown("set of idx files", name, _FOLDERS)
    first = f"{_PARTS[0]}-images-idx3-ubyte"
    place = folder(path, _FOLDERS[name], (first, f"{first}.gz"), name)
    train, test = (_part(place, part) for part in _PARTS)
    return train, test


def _part(place: Path, part: str) -> Images:
    images = _file(place, f"{part}-images-idx3-ubyte")
    labels = _file(place, f"{part}-labels-idx1-ubyte")
    pixels, classes = _values(images, 3), _values(labels, 1)
    if pixels.shape[1:] != (SIDE, SIDE):
        raise UserError(
            f"{images} has images of {pixels.shape[1]} by {pixels.shape[2]} pixels, expected {SIDE} by {SIDE}; "
            "fetch the official file."
        )
    if len(pixels) != len(classes):
        raise UserError(
            f"{labels} has {len(classes):,} labels, expected one for each of the {len(pixels):,} images in "
            f"{images.name}; fetch both again."
        )
    return Images(pixels[:, None], checked(f"{labels}", classes.astype(np.int64), CLASSES))


def _file(place: Path, name: str) -> Path:
    for file in (place / name, place / f"{name}.gz"):
        if file.is_file():
            return file
    raise UserError(f"{place / name} is missing, plain or .gz, expected it beside the other files; fetch it.")


def _values(file: Path, dimensions: int) -> NDArray[np.uint8]:
    """The values in their shape; what the header claims is compared with what is there before it is used."""
    raw = packed.file(file, MAX_BYTES)
    start = 4 + 4 * dimensions
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if len(raw) < start or raw[:4] != magic:
        raise UserError(
            f"{file} begins with {raw[:4].hex(' ') or 'nothing'} and has {len(raw):,} bytes, expected the idx header "
            f"{magic.hex(' ')} with {dimensions} size{'s' * (dimensions > 1)}; fetch the official file."
        )
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if not shape[0] or len(raw) - start != math.prod(shape):
        raise UserError(
            f"{file} has {len(raw) - start:,} bytes after its header, expected {' x '.join(map(str, shape))} and more "
            "than none, as the header says; fetch it again."
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
