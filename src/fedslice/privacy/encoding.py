"""Ring elements as entries of a message's field."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedslice.privacy.ring import Elements, Ring

_SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}  # types that PyTorch has, by their bytes


@dataclass(frozen=True)
class RingElements:
    """Elements of the ring of integers modulo ``2**bits``, each in exactly so many bits.

    Args:
        bits: 1 to 64.
    """

    bits: int

    @property
    def ring(self) -> Ring:
        """The ring."""
        return Ring(self.bits)

    @property
    def words(self) -> str:
        """A description of an entry, for a table."""
        return f"{self.bits} bits modulo 2^{self.bits}"

    def size(self, count: Tensor) -> Tensor:
        """Bytes of this many entries."""
        return (count * self.bits + 7) // 8

    def pack(self, entries: Tensor) -> bytes:
        """One client's entries [n] as bytes."""
        return self.ring.pack(to_elements(entries, self.ring))

    def unpack(self, data: memoryview, count: int) -> Tensor:
        """The entries [n]."""
        return to_entries(self.ring.unpack(data, count))


def to_entries(elements: Elements) -> Tensor:
    """Return elements as a tensor of as many bytes, without a copy; large ones look negative."""
    return torch.from_numpy(elements.view(_SIGNED[elements.dtype.itemsize]))


def to_elements(entries: Tensor, ring: Ring) -> Elements:
    """Return what :func:`to_entries` was given."""
    found: Elements = entries.contiguous().numpy().view(ring.dtype)
    return found
