"""Vectors of one length that are collected in the course of a run: in memory, or in a file where they fill it."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.core.slice import Values
from fedslice.room import free_disk, free_memory, gib

_SHARE = 0.5  # of the memory that is free: the rest is for training
_AT_ONCE = 1 << 20  # values that are read and taken to float64 together
_CHECKSUMS = "checksums"


class Vectors:
    """Vectors are appended one by one, and read again: all in turn, or as columns of a matrix, block by block.

    With a ``folder``, which is that of a run, they lie in a file there: a checkpoint then holds no more than their
    checksums, and whoever continues from it reads the file up to the last vector that the checkpoint knows of. Without,
    they are kept in memory if they take at most half of what is free, else in a file without a name in the directory
    for temporary files (TMPDIR), and every checkpoint holds all of them. Numbers are the same to the bit in all cases.

    Args:
        label: The part of a run that collects them, as in ``measure=trajectory``; the file has its name.
        size: The length of a vector.
        most: How many there will be, ``None`` if nobody knows. Too many for memory and disk are refused at once.
        dtype: The type in which they are kept.
        folder: Where the file lies. It may be made later, but before the first vector comes.
        remedy: What a refusal says at its end.
    """

    def __init__(
        self, label: str, size: int, most: int | None, dtype: torch.dtype, folder: Path | None, remedy: str
    ) -> None:
        self._label, self.size, self._dtype, self._remedy = label, size, dtype, remedy
        self._path = None if folder is None else folder / label.rpartition("=")[2]
        self._bytes = size * dtype.itemsize
        self._kept: list[Tensor] = []
        self._checksums: list[int] = []
        self._file: BinaryIO | None = None
        need = self._bytes * (most or 0)
        self._in_memory = folder is None and need <= _SHARE * free_memory()
        if not self._in_memory and need > self._room():
            raise UserError(f"{self._told(most or 0)}, where {self._where()}; {remedy}.")

    def __len__(self) -> int:
        return len(self._kept) if self._in_memory else len(self._checksums)

    def append(self, vector: Tensor) -> None:
        """Keep one more."""
        own = vector.detach().to("cpu", self._dtype).contiguous()
        if self._in_memory:
            self._kept.append(own)
            return
        left = memoryview(own.view(torch.uint8).numpy().data)
        checksum, at = zlib.crc32(left), self._bytes * len(self)
        try:
            while left:
                written = os.pwrite(self._opened(), left, at)
                left, at = left[written:], at + written
        except OSError as error:
            raise UserError(
                f"{self._told(len(self) + 1)}, which cannot be written ({error.strerror}): {self._where()}; "
                f"{self._remedy}."
            ) from None
        self._checksums.append(checksum)

    def products(self, vector: Tensor) -> Tensor:
        """The inner product of each with a vector [vectors], in float64."""
        wide = vector.detach().to("cpu", torch.float64)
        out = torch.zeros(len(self), dtype=torch.float64)
        for number in range(len(self)):
            for first in range(0, self.size, _AT_ONCE):
                last = min(first + _AT_ONCE, self.size)
                out[number] += self._part(number, first, last).double() @ wide[first:last]
        return out

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """Return the matrix [size, vectors] whose columns they are, by blocks of ``rows`` rows."""
        for first in range(0, self.size, rows):
            last = min(first + rows, self.size)
            yield torch.stack([self._part(number, first, last) for number in range(len(self))]).T

    def clear(self) -> None:
        """Begin again with none. A file in a run's folder stays: an older checkpoint may know of it."""
        self._kept, self._checksums, self._file = [], [], None

    def state_dict(self) -> Values:
        """The vectors by their numbers, or their checksums once the file is safe on the disk."""
        if self._path is None:
            return {str(n): self._part(n, 0, self.size) for n in range(len(self))}
        if len(self):
            os.fsync(self._opened())
        return {_CHECKSUMS: torch.tensor(self._checksums, dtype=torch.int64)}

    def load_state_dict(self, state: Mapping[str, Tensor], read: bool = True) -> None:
        """Continue with those saved; ``read=False`` if none of them will be asked for any more."""
        self.clear()
        if _CHECKSUMS not in state:
            for n in range(len(state)):
                self.append(state[str(n)])
            return
        if self._path is None:
            raise UserError(
                f"{self._label}: the checkpoint counts on a file of its run; continue the run in its folder."
            )
        self._checksums = state[_CHECKSUMS].tolist()
        if not read or not self._checksums:
            return
        found = self._path.stat().st_size // self._bytes if self._path.exists() else 0
        for number, checksum in enumerate(self._checksums):
            if number >= found or checksum != self._checksum(number):
                raise UserError(
                    f"{self._path} has not the {len(self):,} vectors that its checkpoint knows of (number {number} is "
                    "missing or damaged); restore both from a copy, or delete the run and start over."
                )

    def _checksum(self, number: int) -> int:
        crc = 0
        for first in range(0, self.size, _AT_ONCE):
            part = self._part(number, first, min(first + _AT_ONCE, self.size))
            crc = zlib.crc32(part.view(torch.uint8).numpy().data, crc)
        return crc

    def _part(self, number: int, first: int, last: int) -> Tensor:
        """Some values of one of them."""
        if self._in_memory:
            return self._kept[number][first:last]
        out = torch.empty(last - first, dtype=self._dtype)
        left, at = memoryview(out.view(torch.uint8).numpy().data), self._bytes * number + first * self._dtype.itemsize
        while left:
            read = os.preadv(self._opened(), [left], at)
            if not read:
                raise RuntimeError(f"{self._path or 'the temporary file'} of {self._label} was cut short")
            left, at = left[read:], at + read
        return out

    def _opened(self) -> int:
        """The file; a new one, or the old one emptied, where nothing is known of yet."""
        if self._file is None:
            if self._path is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            else:
                self._path.parent.mkdir(exist_ok=True)
                self._file = self._path.open("r+b" if self._checksums else "w+b", buffering=0)
        return self._file.fileno()

    def _room(self) -> float:
        """Bytes that the file may have."""
        if self._path is None:
            return free_disk(Path(tempfile.gettempdir()))
        return free_disk(self._path) + (self._path.stat().st_size if self._path.exists() else 0)

    def _told(self, count: int) -> str:
        return f"{self._label}: {count:,} updates of {self.size:,} parameters take {gib(count * self._bytes)}"

    def _where(self) -> str:
        if self._path is not None:
            return f"the disk of {self._path.parent} has {gib(self._room())}"
        memory, disk = gib(_SHARE * free_memory()), gib(self._room())
        return f"there are {memory} of memory to spare and {disk} in {tempfile.gettempdir()}"
