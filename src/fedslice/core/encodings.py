"""Encodings: how the entries of a message's field become bytes, and how many bytes they take.

========== ================================================== =================================================
encoding   for                                                bytes for n entries
========== ================================================== =================================================
Floats     values, scales, coefficients, sketches             n times the size of the type
Bits       signs, quantisation levels, flags                  ceil(n * width / 8)
Ids        held positions of one dimension, ascending         the smaller of packed integers and a bitmap
Counts     samples, labels, widths                            ceil(n * bits / 8)
Places     positions of sparse entries in a line of n         Golomb code: depends on the positions
========== ================================================== =================================================

Unpacking raises :class:`~fedslice.core.errors.Refused` for anything that packing cannot have made. The caller compares
the length of the data with :meth:`size` beforehand, so nothing is allocated for entries that are not there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.core.errors import Refused

_PHI = (math.sqrt(5) + 1) / 2


class Encoding(Protocol):
    """An encoding of entries that do not name positions."""

    @property
    def words(self) -> str:
        """A description of an entry, for a table."""
        ...

    def size(self, count: Tensor) -> Tensor:
        """Bytes of this many entries."""
        ...

    def pack(self, entries: Tensor) -> bytes:
        """One client's entries [n] as bytes."""
        ...

    def unpack(self, data: memoryview, count: int) -> Tensor:
        """The entries [n]."""
        ...


@dataclass(frozen=True)
class Floats:
    """Numbers of one floating-point type, as they are.

    Args:
        dtype: The type.
        negative: Whether a number below zero is valid.
        finite: Whether NaN and infinity are refused.
        most: Largest valid number, if there is one.
    """

    dtype: torch.dtype
    negative: bool = True
    finite: bool = True
    most: float | None = None

    @property
    def words(self) -> str:
        """A description of an entry, for a table."""
        return str(self.dtype).removeprefix("torch.")

    def size(self, count: Tensor) -> Tensor:
        """Bytes of this many entries."""
        return count * self.dtype.itemsize

    def pack(self, entries: Tensor) -> bytes:
        """One client's entries [n] as bytes."""
        return entries.to(self.dtype).cpu().contiguous().view(torch.uint8).numpy().tobytes()

    def unpack(self, data: memoryview, count: int) -> Tensor:
        """The entries [n]."""
        if not count:
            return torch.zeros(0, dtype=self.dtype)
        entries = torch.frombuffer(bytearray(data), dtype=self.dtype)
        if self.finite and not bool(torch.isfinite(entries).all()):
            raise Refused("holds a NaN or an infinity")
        if not self.negative and bool((entries < 0).any()):
            raise Refused(f"holds {float(entries.min()):g}, expected 0 or more")
        if self.most is not None and bool((entries > self.most).any()):
            raise Refused(f"holds {float(entries.max()):g}, expected at most {self.most:g}")
        return entries


@dataclass(frozen=True)
class Bits:
    """Whole numbers from 0 to ``most``, each in ``width`` bits; one run of bits over all entries, filled up with zeros.

    Args:
        width: Bits per entry, at most 16.
        most: Largest valid number; by default the largest that ``width`` bits can hold.
    """

    width: int = 1
    most: int | None = None

    @property
    def words(self) -> str:
        """A description of an entry, for a table."""
        return "1 bit" if self.width == 1 else f"{self.width} bits"

    def size(self, count: Tensor) -> Tensor:
        """Bytes of this many entries."""
        return (count * self.width + 7) // 8

    def pack(self, entries: Tensor) -> bytes:
        """One client's entries [n] as bytes."""
        return np.packbits(_to_bits(entries.cpu().numpy().astype(np.int64), self.width)).tobytes()

    def unpack(self, data: memoryview, count: int) -> Tensor:
        """The entries [n] as int64."""
        bits = _unpack_bits(data, count * self.width)
        entries = _from_bits(bits, self.width)
        if self.most is not None and entries.max(initial=0) > self.most:
            raise Refused(f"holds {entries.max()}, expected at most {self.most}")
        return torch.from_numpy(entries)


@dataclass(frozen=True)
class Counts:
    """Whole numbers from 0 to ``most``, each in as many bytes as ``bits`` fill.

    Args:
        bits: Bits per number: 8, 16, 32 or 64.
        most: Largest valid number; by default the largest that the bits can hold (for 64 bits, 2**63 - 1).
    """

    bits: int = 32
    most: int | None = None

    @property
    def words(self) -> str:
        """A description of an entry, for a table."""
        return f"{self.bits}-bit count"

    def size(self, count: Tensor) -> Tensor:
        """Bytes of this many entries."""
        return count * (self.bits // 8)

    def pack(self, entries: Tensor) -> bytes:
        """One client's entries [n] as bytes."""
        return entries.cpu().numpy().astype(f"<u{self.bits // 8}").tobytes()

    def unpack(self, data: memoryview, count: int) -> Tensor:  # noqa: ARG002
        """The entries [n] as int64."""
        entries = np.frombuffer(data, dtype=f"<u{self.bits // 8}")
        most = min((1 << 63) - 1, (1 << self.bits) - 1 if self.most is None else self.most)
        if entries.max(initial=0) > most:
            raise Refused(f"holds {entries.max()}, expected at most {most}")
        return torch.from_numpy(entries.astype(np.int64))


@dataclass(frozen=True)
class Ids:
    """Ascending positions below an extent. A prefix, or all positions, is known from the number alone."""

    words = "ascending ids"

    @staticmethod
    def width(extent: int) -> int:
        """Bits of one packed position."""
        return max(1, (extent - 1).bit_length())

    def size(self, count: Tensor, prefix: Tensor, extent: Tensor | int) -> Tensor:
        """Bytes of this many positions, which are the first ones where ``prefix`` says so."""
        if isinstance(extent, int):
            packed = ((count * self.width(extent) + 7) // 8).clamp(max=(extent + 7) // 8)
        else:
            width = (extent - 1).clamp(min=1).double().log2().floor().long() + 1  # exact below 2^53
            packed = torch.minimum((count * width + 7) // 8, (extent + 7) // 8)
        return packed * ~(prefix | (count == extent))

    def pack(self, ids: Tensor, extent: int) -> bytes:
        """One client's positions as bytes."""
        own = ids.cpu().numpy()
        if self._bitmap(len(own), extent):
            flags = np.zeros(extent, dtype=np.uint8)
            flags[own] = 1
            return np.packbits(flags).tobytes()
        return np.packbits(_to_bits(own, self.width(extent))).tobytes()

    def unpack(self, data: memoryview, count: int, prefix: bool, extent: int) -> Tensor:
        """The positions [count]."""
        if prefix or count == extent:
            return torch.arange(count)
        if self._bitmap(count, extent):
            ids = np.flatnonzero(_unpack_bits(data, extent))
        else:
            width = self.width(extent)
            ids = _from_bits(_unpack_bits(data, count * width), width)
        if len(ids) != count or (count and (ids[-1] >= extent or bool(np.any(np.diff(ids) <= 0)))):
            raise Refused(f"does not hold {count} ascending positions below {extent}")
        return torch.from_numpy(ids.astype(np.int64))

    def _bitmap(self, count: int, extent: int) -> bool:
        return (extent + 7) // 8 < (count * self.width(extent) + 7) // 8


@dataclass(frozen=True)
class Places:
    """Positions of the entries of a sparse line, Golomb coded (Sattler et al. 2019, section IV, equations 11 and 12).

    If each position is taken with chance p, the gaps between taken positions are geometric, and the best code writes a
    gap as a quotient by 2^b in unary and a remainder of b bits. All quotients stand before all remainders: as many bits
    as in turn, and neither packing nor unpacking needs a loop.

    Args:
        share: The chance p.
    """

    share: float

    words = "Golomb code"

    @property
    def remainder(self) -> int:
        """b = 1 + floor(log2(ln(phi - 1) / ln(1 - p))), with the golden ratio phi; 0 if most positions are taken."""
        if self.share >= _PHI - 1:
            return 0
        return max(0, 1 + math.floor(math.log2(math.log(_PHI - 1) / math.log1p(-self.share))))

    def bits(self, taken: Tensor, position: Tensor) -> Tensor:
        """[clients]: bits that name the positions ``taken`` [clients, places].

        ``position`` is each place's number in the client's own line, which padding interrupts; it broadcasts.
        """
        clients, place = taken.nonzero(as_tuple=True)
        at = position.expand_as(taken)[clients, place]
        before = torch.cat([at.new_full((1,), -1), at[:-1]])
        first = torch.cat([clients.new_full((1,), -1), clients[:-1]]) != clients
        skipped = at - before.masked_fill(first, -1) - 1
        total = torch.zeros(len(taken), dtype=torch.int64, device=taken.device)
        return total.index_add_(0, clients, (skipped >> self.remainder) + 1 + self.remainder)

    def most_bits(self, number: int, extent: int) -> int:
        """Upper bound of the bits that name ``number`` positions below ``extent``."""
        return number * (1 + self.remainder) + (extent >> self.remainder)

    def pack(self, taken: Tensor) -> bytes:
        """One client's line [n] of flags as bytes."""
        b = self.remainder
        places = np.flatnonzero(taken.cpu().numpy())
        skipped = np.diff(places, prepend=-1) - 1
        ends = np.cumsum((skipped >> b) + 1)  # of the quotients in unary: ones, then a zero
        quotients = np.ones(ends[-1] if len(ends) else 0, dtype=np.uint8)
        quotients[ends - 1] = 0
        return np.packbits(np.concatenate([quotients, _to_bits(skipped & ((1 << b) - 1), b)])).tobytes()

    def unpack(self, data: memoryview, extent: int, number: int, length: int) -> Tensor:
        """A line [extent] of flags from ``length`` bits that name ``number`` positions."""
        b = self.remainder
        bits = _unpack_bits(data, length)
        head = length - number * b
        if head < number:
            raise Refused(f"has {length} bits, too few for {number} positions")
        ends = np.flatnonzero(bits[:head] == 0) + 1
        if len(ends) != number or (number and int(ends[-1]) != head) or (not number and head):
            raise Refused(f"does not hold {number} positions")
        quotients = np.diff(ends, prepend=0) - 1
        places = np.cumsum((quotients << b) + _from_bits(bits[head:], b, number) + 1) - 1
        if number and places[-1] >= extent:
            raise Refused(f"holds position {places[-1]}, expected below {extent}")
        taken = np.zeros(extent, dtype=np.bool_)
        taken[places] = True
        return torch.from_numpy(taken)


def _to_bits(numbers: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Each number in ``width`` bits, the highest first."""
    return ((numbers[:, None] >> np.arange(width - 1, -1, -1)) & 1).astype(np.uint8).flatten()


def _from_bits(bits: NDArray[np.uint8], width: int, count: int | None = None) -> NDArray[np.int64]:
    """The inverse of :func:`_to_bits`; numbers of no bits are zero."""
    if not width:
        return np.zeros(count or 0, dtype=np.int64)
    if width == 1:
        return bits.astype(np.int64)
    return bits.reshape(-1, width).astype(np.int64) @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64))


def _unpack_bits(data: memoryview, count: int) -> NDArray[np.uint8]:
    """The first ``count`` bits; those that fill the last byte must be zero."""
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))
    if bits[count:].any():
        raise Refused("has a last byte that is not filled up with zeros")
    return bits[:count]
