"""Shared by the readers of image sets: samples, classes, and the folders of the files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedslice.core.errors import UserError


@dataclass(frozen=True, eq=False)
class Images:
    """Images as they are stored, one byte per pixel and channel, and the class of each."""

    image: NDArray[np.uint8]  # [samples, channels, height, width]
    label: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.label)

    def take(self, index: NDArray[np.int64]) -> Images:
        """The chosen samples, in the given order."""
        return Images(self.image[index], self.label[index])

    @classmethod
    def joined(cls, parts: Sequence[Images]) -> Images:
        """The samples of all parts, end to end."""
        return cls(np.concatenate([part.image for part in parts]), np.concatenate([part.label for part in parts]))


def folder(path: Path, inner: Iterable[str], sign: Iterable[str], name: str) -> Path:
    """The first of ``path / inner`` that holds one of the files in ``sign``."""
    signs = list(sign)
    for place in [path / one for one in inner]:
        if any((place / file).is_file() for file in signs):
            return place
    if not path.is_dir():
        raise UserError(f"{path} is not a folder, expected the one that holds {name}.")
    raise UserError(f"{path} holds no {' or '.join(signs)}; give the folder with the official files of {name}.")


def checked(place: str, label: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Labels, after they were seen to be classes."""
    wrong = np.flatnonzero((label < 0) | (label >= classes))
    if len(wrong):
        raise UserError(
            f"{place}, sample {wrong[0] + 1}: the label is {label[wrong[0]]}, expected 0 to {classes - 1}; "
            "fetch the file again."
        )
    return label
