"""Tiny ImageNet (Le and Yang, 2015), an image set of FLSS: 200 classes of 64 by 64 pixels, one JPEG file per image.

``wnids.txt`` names the classes, ``train/<class>/images`` holds the training images of each, ``val/images`` those to
test on, and each line of ``val/val_annotations.txt`` begins with a file and its class. The official test images have
no labels and are not read. Pillow decodes the images, after the size in a file's header was seen to be right.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedslice.core.errors import UserError
from fedslice.datasets import lines, packed
from fedslice.datasets.images import Images, folder

SHAPE = (3, 64, 64)
CLASSES = 200
ARCHIVE = "tiny-imagenet-200.zip"
MAX_IMAGES = 200_000
"""The official set has 110,000: far more are a mistake or made to fill the memory."""
MAX_FILE_BYTES = 1 << 22
"""Limit of a file; the largest that is read, the annotations, has 300 thousand bytes."""

_NAME = "Tiny ImageNet"
_INNER = ("", "tiny-imagenet-200", "tiny-imagenet", "tiny-imagenet/tiny-imagenet-200")
_SIGN, _ANNOTATIONS = "wnids.txt", "val/val_annotations.txt"
_TRAIN = re.compile(r"train/([^/]+)/images/[^/]+\.JPEG")
_CLASS, _FILE = re.compile(r"n[0-9]{8}"), re.compile(r"\w+\.JPEG")

_Listed = list[tuple[str, int]]  # file and class of each image


def read(path: Path) -> tuple[Images, Images]:
    """Training and validation images from the official zip, the folder in it, or a folder that holds either of them.

    The folder may hold them in a subfolder tiny-imagenet. A class is its place in wnids.txt.
    """
    with _opened(path) as files:
        classes = _classes(files)
        train, test = _train(files, classes), _validation(files, classes)
        if not train or len(train) + len(test) > MAX_IMAGES:
            raise UserError(
                f"{files.place} has {len(train):,} training and {len(test):,} validation images, expected some and at "
                f"most {MAX_IMAGES:,}; fetch the official set."
            )
        return _decoded(files, train), _decoded(files, test)


@dataclass(frozen=True)
class _Files:
    """Files of the set by their names below the place where wnids.txt lies."""

    place: str
    images: Sequence[str]  # every training image
    holds: Callable[[str], bool]
    read: Callable[[str], bytes]

    def load(self, name: str) -> bytes:
        """A file's bytes."""
        if not self.holds(name):
            raise UserError(f"{self.place}/{name} is missing, expected it in the official layout; fetch it.")
        return self.read(name)

    def lines(self, name: str) -> Iterator[tuple[int, str]]:
        """A text file's lines, numbered from 1."""
        return enumerate(self.load(name).decode("latin-1").rstrip("\r\n").split("\n"), start=1)


@contextmanager
def _opened(path: Path) -> Iterator[_Files]:
    zipped = [file for file in (path, *(path / inner / ARCHIVE for inner in _INNER)) if file.is_file()]
    if not zipped:
        root = folder(path, _INNER, (_SIGN,), _NAME)
        names = [file.relative_to(root).as_posix() for file in root.glob("train/*/images/*.JPEG")]
        yield _Files(
            f"{root}",
            names,
            lambda name: (root / name).exists(),
            lambda name: packed.file(root / name, MAX_FILE_BYTES),
        )
        return
    with packed.opened(zipped[0]) as archive:
        listed = archive.namelist()
        top = next((name.removesuffix(_SIGN) for name in listed if name.split("/")[-1] == _SIGN), None)
        if top is None:
            raise UserError(f"{zipped[0]} holds no {_SIGN}; give the official archive of {_NAME}, {ARCHIVE}.")
        inside = {name.removeprefix(top) for name in listed if name.startswith(top)}
        yield _Files(
            f"{zipped[0]}",
            [*inside],
            inside.__contains__,
            lambda name: packed.member(archive, top + name, MAX_FILE_BYTES),
        )


def _classes(files: _Files) -> dict[str, int]:
    found: dict[str, int] = {}
    for line, text in files.lines(_SIGN):
        name = text.strip()
        if _CLASS.fullmatch(name) is None or name in found or len(found) == CLASSES:
            expected = f"up to {CLASSES} different ids of classes such as n01443537"
            raise lines.bad_line(
                f"{files.place}/{_SIGN}", line, f"found {lines.show(name.encode('latin-1'))}", expected
            )
        found[name] = len(found)
    return found


def _train(files: _Files, classes: dict[str, int]) -> _Listed:
    listed: _Listed = []
    for name in files.images:
        if (found := _TRAIN.fullmatch(name)) is None:
            continue
        if found[1] not in classes:
            raise UserError(f"{files.place}/{name} is of a class that {_SIGN} does not name; fetch the set again.")
        listed.append((name, classes[found[1]]))
    return sorted(listed)


def _validation(files: _Files, classes: dict[str, int]) -> _Listed:
    listed: _Listed = []
    for line, text in files.lines(_ANNOTATIONS):
        name, kind = [*text.split("\t"), "", ""][:2]
        if _FILE.fullmatch(name) is None or kind not in classes:
            raise lines.bad_line(
                f"{files.place}/{_ANNOTATIONS}",
                line,
                f"found {lines.show(text.encode('latin-1'))}",
                f"a .JPEG file and one of the classes in {_SIGN}, separated by a tab",
            )
        listed.append((f"val/images/{name}", classes[kind]))
    return listed


def _decoded(files: _Files, listed: _Listed) -> Images:
    image = np.empty((len(listed), *SHAPE), np.uint8)
    for place, (name, _) in enumerate(listed):
        image[place] = _pixels(f"{files.place}/{name}", files.load(name)).transpose(2, 0, 1)
    return Images(image, np.array([kind for _, kind in listed], np.int64))


def _pixels(place: str, raw: bytes) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """[height, width, channel]; a grey image has three equal channels."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError("reading Tiny ImageNet's JPEG files needs Pillow; install it (pip install pillow).") from None
    try:
        with Image.open(io.BytesIO(raw), formats=["JPEG"]) as picture:
            if picture.size != SHAPE[:0:-1]:
                raise UserError(
                    f"{place} has {picture.width} by {picture.height} pixels, expected {SHAPE[2]} by {SHAPE[1]}; "
                    "fetch the official set."
                )
            return np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{place} cannot be decoded as a JPEG file ({error}); fetch the set again.") from error
