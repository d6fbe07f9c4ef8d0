"""Whole numbers modulo a power of two, and their bytes: each number in exactly as many bits as the ring has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.core.errors import Refused, UserError

Elements = NDArray[Any]  # of the ring's unsigned type
_WORD = 64  # numbers in a group, which then fills as many 64-bit words as a number has bits


@dataclass(frozen=True)
class Ring:
    """Integers modulo ``2**bits``.

    Elements live in the smallest unsigned type that holds them. Sums may wrap around in that type: its modulus is a
    multiple of the ring's, so :meth:`reduce` at the end gives the sum in the ring.

    Args:
        bits: 1 to 64.
    """

    bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 64:
            raise UserError(f"a ring of {self.bits} bits is not possible; expected 1 to 64.")

    @classmethod
    def for_sum(cls, most: int) -> Ring:
        """Return the smallest ring in which sums from 0 to ``most`` cannot wrap around."""
        return cls(max(1, most.bit_length()))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of elements."""
        return np.dtype(f"u{next(size for size in (1, 2, 4, 8) if self.bits <= 8 * size)}")

    @property
    def largest(self) -> int:
        """The largest element."""
        return (1 << self.bits) - 1

    def zeros(self, shape: int | tuple[int, ...]) -> Elements:
        """Return zeros."""
        return np.zeros(shape, self.dtype)

    def reduce(self, values: Elements) -> Elements:
        """Return the elements that equal ``values`` modulo ``2**bits``; values of the ring's type change in place."""
        if values.dtype != self.dtype:
            values = values.astype(self.dtype)
        if self.bits != 8 * self.dtype.itemsize:
            values &= self.dtype.type(self.largest)
        return values

    def signed(self, values: Elements) -> NDArray[np.int64]:
        """Return the representatives between ``-2**(bits-1)`` and ``2**(bits-1) - 1``."""
        shift = 64 - self.bits
        return (values.astype(np.uint64) << np.uint64(shift)).view(np.int64) >> np.int64(shift)

    def size(self, count: int) -> int:
        """Bytes of this many packed elements."""
        return (count * self.bits + 7) // 8

    def pack(self, values: Elements) -> bytes:
        """Return elements [n] as bytes, the lowest bit first, the last byte filled up with zeros."""
        if self.bits == 8 * self.dtype.itemsize:
            return values.astype(self.dtype.newbyteorder("<")).tobytes()
        groups = -(-len(values) // _WORD)
        padded = np.zeros(groups * _WORD, np.uint64)
        padded[: len(values)] = values
        column = np.ascontiguousarray(padded.reshape(groups, _WORD).T)  # the same number of all groups, side by side
        words = np.zeros((self.bits, groups), np.uint64)
        for number in range(_WORD):
            word, shift = divmod(number * self.bits, 64)
            words[word] |= column[number] << np.uint64(shift)
            if shift + self.bits > 64:
                words[word + 1] |= column[number] >> np.uint64(64 - shift)
        return words.T.astype("<u8").tobytes()[: self.size(len(values))]

    def unpack(self, data: bytes | memoryview, count: int) -> Elements:
        """Return the elements [count] of :meth:`pack`.

        Raises:
            Refused: If the data are not as long as these elements, or end in bits that are not zero.
        """
        if len(data) != self.size(count):
            raise Refused(f"has {len(data)} bytes for {count} numbers of {self.bits} bits, expected {self.size(count)}")
        if self.bits == 8 * self.dtype.itemsize:
            return np.frombuffer(data, self.dtype.newbyteorder("<")).astype(self.dtype)
        spare = 8 * len(data) - count * self.bits
        if spare and data[-1] >> (8 - spare):
            raise Refused("has a last byte that is not filled up with zeros")
        groups = -(-count // _WORD)
        whole = np.zeros(groups * self.bits * 8, np.uint8)
        whole[: len(data)] = np.frombuffer(data, np.uint8)
        words = np.ascontiguousarray(whole.view("<u8").astype(np.uint64).reshape(groups, self.bits).T)
        column = np.empty((_WORD, groups), np.uint64)
        for number in range(_WORD):
            word, shift = divmod(number * self.bits, 64)
            column[number] = words[word] >> np.uint64(shift)
            if shift + self.bits > 64:
                column[number] |= words[word + 1] << np.uint64(64 - shift)
        column &= np.uint64(self.largest)
        return column.T.reshape(-1)[:count].astype(self.dtype)
