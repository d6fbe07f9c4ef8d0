"""Random draws of clients that hide something, and the purposes of all draws of this package.

The counter-based numbers of :mod:`fedslice.core.rng` are a fast hash: whoever sees some of them can find their seed.
Answers that must be deniable come from SHAKE-128 of a seed that the server does not know; they too depend on their key
and on nothing else.
"""

import hashlib
import struct
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Draw(IntEnum):
    """The purpose of a draw; separate purposes are separate streams, also from those of the core."""

    ROUNDING = 101
    PERMANENT = 102
    INSTANTANEOUS = 103
    HEAT = 104
    UNION = 105
    CELLS = 106  # of the Bloom filter, known to everyone
    GRAPH = 107  # of neighbours, known to everyone


def hidden_bits(seed: int, draw: Draw, count: int, *key: int) -> NDArray[np.uint32]:
    """Return uniform numbers of 32 bits [count], of which no number of them tells the others.

    Args:
        seed: A secret, not negative and below 2^256.
        draw: Their purpose.
        count: Their number; more of them begin with the same ones.
        key: What else they depend on: client, round.
    """
    text = seed.to_bytes(32, "little") + struct.pack(f"<{1 + len(key)}q", draw, *key)
    return np.frombuffer(hashlib.shake_128(text).digest(4 * count), "<u4").astype(np.uint32)


def hidden_uniform(seed: int, draw: Draw, count: int, *key: int) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1) as :func:`hidden_bits` gives them [count]; they are multiples of 2^-32."""
    return hidden_bits(seed, draw, count, *key).astype(np.float64) * 2.0**-32
