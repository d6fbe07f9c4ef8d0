"""Masks from keys: a stream of ring elements that looks uniform to everyone without the key.

The stream is AES-128 of a counter, ``field (4 bytes) | row (8 bytes) | block (4 bytes)``. A ring has a power of two of
elements, so bytes of the stream are elements without bias. Masks of whole vectors run through the blocks of row 0 in
counter mode; masks of single rows name the rows' own blocks, so that a row's mask depends on its id and on nothing
else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.privacy.ring import Elements, Ring
from fedslice.privacy.secagg.library import AES, CTR, ECB, Cipher

SEED = 16  # bytes of a key
_BLOCK = 16  # bytes of AES
_PIECE = 1 << 18  # bytes made at once: input, output and sum stay in a core's cache
_MOST = _BLOCK << 32  # bytes of a field, or of a row, that the counter can tell apart


class _Scratch(threading.local):
    """A piece of zeros and the place for their encryption, for each thread."""

    def __init__(self) -> None:
        self.zeros = memoryview(bytes(_PIECE))
        self.made = bytearray(_PIECE + _BLOCK)  # the library asks for a block more than it writes


_scratch = _Scratch()


def add_streams(totals: Mapping[int, Elements], streams: Iterable[tuple[bytes, int]]) -> None:
    """Add masks to vectors, in place.

    Args:
        totals: Vectors [n] of elements, by number of field.
        streams: Keys of 16 bytes, each with +1 to add its stream or -1 to subtract it.
    """
    listed = list(streams)
    for field, total in totals.items():
        if total.nbytes > _MOST:
            raise ValueError(f"a field of {total.nbytes} bytes is longer than a stream")
        start = field.to_bytes(4, "big") + bytes(_BLOCK - 4)
        running = [(Cipher(AES(key), CTR(start)).encryptor().update_into, sign) for key, sign in listed]
        step = _PIECE // total.itemsize
        for first in range(0, len(total), step):
            piece = total[first : first + step]
            zeros = _scratch.zeros[: piece.nbytes]
            mask = np.frombuffer(_scratch.made, total.dtype, len(piece))
            for encrypt, sign in running:
                encrypt(zeros, _scratch.made)
                (np.add if sign > 0 else np.subtract)(piece, mask, out=piece)


def row_stream(key: bytes, field: int, rows: NDArray[np.int64], width: int, ring: Ring) -> Elements:
    """Return the masks of rows.

    Args:
        key: 16 bytes.
        field: Number of the field.
        rows: Ids [n], not negative.
        width: Elements of a row.
        ring: The ring of its elements.

    Returns:
        Elements [n, width], not reduced.
    """
    blocks = -(-width * ring.dtype.itemsize // _BLOCK)
    counter = np.zeros((len(rows), blocks, 4), ">u4")
    counter[..., 0] = field
    counter[..., 1] = (rows >> 32)[:, None]
    counter[..., 2] = (rows & 0xFFFFFFFF)[:, None]
    counter[..., 3] = np.arange(blocks)
    made = encrypted(key, counter)
    return made.view(ring.dtype).reshape(len(rows), blocks * _BLOCK // ring.dtype.itemsize)[:, :width]


def row_keys(key: bytes, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return a key [n, 16] for each row, which tells nothing about ``key`` or about other rows."""
    counter = np.zeros((len(rows), 4), ">u4")
    counter[:, 0] = 0xFFFFFFFF  # no field has this number
    counter[:, 1], counter[:, 2] = rows >> 32, rows & 0xFFFFFFFF
    return encrypted(key, counter).reshape(len(rows), SEED)


def encrypted(key: bytes, blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """Return AES of each block of 16 bytes, in one line."""
    made = bytearray(blocks.nbytes + _BLOCK)
    if blocks.nbytes:
        Cipher(AES(key), ECB()).encryptor().update_into(np.ascontiguousarray(blocks).view(np.uint8).reshape(-1), made)
    return np.frombuffer(made, np.uint8, blocks.nbytes)
