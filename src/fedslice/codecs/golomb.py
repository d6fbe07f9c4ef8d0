"""Golomb coding of the places of a sparse vector's entries (Sattler et al. 2019, section IV, equations 11 and 12).

If each place is taken with chance p, gaps between taken places are geometric, and the best code writes a gap as a
quotient by 2^b in unary and a remainder of b bits. All quotients stand before all remainders: as many bits as in turn,
and neither writing nor reading needs a loop.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.errors import UserError

Bits = NDArray[np.uint8]
_PHI = (math.sqrt(5) + 1) / 2


def remainder_bits(share: float) -> int:
    """b* = 1 + ⌊log2(ln(φ − 1) / ln(1 − p))⌋, where φ is the golden ratio; none if most places are taken."""
    if share >= _PHI - 1:
        return 0
    return max(0, 1 + math.floor(math.log2(math.log(_PHI - 1) / math.log1p(-share))))


def count(taken: Tensor, position: Tensor, sizes: Tensor, share: float) -> Tensor:
    """[clients]: the bits that :func:`write` makes of the places ``taken`` [clients, places] out of ``sizes``.

    ``position`` is each place's number among those that the client has; it broadcasts.
    """
    clients, place = taken.nonzero(as_tuple=True)
    at = position.expand_as(taken)[clients, place]
    before = torch.cat([at.new_full((1,), -1), at[:-1]])
    first = torch.cat([clients.new_full((1,), -1), clients[:-1]]) != clients
    skipped = at - before.masked_fill(first, -1) - 1
    b = remainder_bits(share)
    lengths = torch.frexp(sizes.double()).exponent.long()
    return lengths.index_add(0, clients, (skipped >> b) + 1 + b)


def write(places: NDArray[np.int64], size: int, share: float) -> Bits:
    """Ascending places below ``size``: how many they are, the quotients, the remainders."""
    b = remainder_bits(share)
    skipped = np.diff(places, prepend=-1) - 1
    ends = np.cumsum((skipped >> b) + 1)  # of the quotients in unary: ones, then a zero
    quotients = np.ones(ends[-1] if len(ends) else 0, dtype=np.uint8)
    quotients[ends - 1] = 0
    remainders = _bits(skipped & ((1 << b) - 1), b)
    return np.concatenate([_bits(np.array([len(places)]), size.bit_length()), quotients, remainders])


def read(bits: Bits, size: int, share: float, what: str) -> tuple[NDArray[np.int64], int]:
    """The places at the head of ``bits``, and how many bits they took."""
    b, head = remainder_bits(share), size.bit_length()
    number = int(_numbers(bits[:head], head)[0]) if 0 < head <= len(bits) else 0
    ends = np.flatnonzero(bits[head:] == 0)[:number] + 1
    used = head + (int(ends[-1]) if len(ends) else 0)
    if len(bits) < head or len(ends) < number or len(bits) < used + number * b:
        raise UserError(f"payload is cut short at the places of {what!r}; it was refused.")
    quotients = np.diff(ends, prepend=0) - 1
    skipped = (quotients << b) + _numbers(bits[used : used + number * b], b)
    places = np.cumsum(skipped + 1) - 1
    if number and places[-1] >= size:
        raise UserError(f"payload has place {places[-1]} of {size} in {what!r}; it was refused.")
    return places, used + number * b


def _bits(numbers: NDArray[np.int64], width: int) -> Bits:
    """Each number in so many bits, the highest first."""
    return ((numbers[:, None] >> np.arange(width - 1, -1, -1)) & 1).astype(np.uint8).flatten()


def _numbers(bits: Bits, width: int) -> NDArray[np.int64]:
    """The inverse."""
    if not width:
        return np.zeros(1, dtype=np.int64)
    return bits.reshape(-1, width).astype(np.int64) @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64))
