"""Shamir's secret sharing of 32 bytes over the field of 2^31 - 1, for many secrets at once.

A secret is nine numbers of 30 bits; each is the value at 0 of a polynomial of degree ``threshold - 1`` whose other
coefficients are uniform. A share is the nine values at the holder's point. Fewer than ``threshold`` shares are uniform
whatever the secret is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

PRIME = (1 << 31) - 1
SECRET = 32  # bytes
_LIMB = 30  # bits
LIMBS = -(-8 * SECRET // _LIMB)
SHARE = 4 * LIMBS  # bytes
_HALF = np.uint64(16)  # bits of the lower half of a factor: products of 31 and 16 bits can be added without overflow
_P = np.uint64(PRIME)

Entropy = Callable[[int], bytes]


def split(secrets: list[bytes], points: NDArray[np.int64], threshold: int, entropy: Entropy) -> NDArray[np.uint32]:
    """Return the shares of secrets.

    Args:
        secrets: Texts of 32 bytes.
        points: The holders' points, at which the polynomials are evaluated: different numbers from 1 to PRIME - 1.
        threshold: Shares that are needed to combine a secret.
        entropy: A source of uniform bytes.

    Returns:
        Shares [holders, secrets, 9].
    """
    rest = _uniform((threshold - 1) * len(secrets) * LIMBS, entropy).reshape(threshold - 1, -1)
    coefficients = np.concatenate([_limbs(secrets).reshape(1, -1), rest])
    powers = np.ones((len(points), threshold), np.uint64)
    for degree in range(1, threshold):
        powers[:, degree] = powers[:, degree - 1] * points.astype(np.uint64) % _P
    return _product(powers, coefficients).reshape(len(points), len(secrets), LIMBS).astype(np.uint32)


def combine(points: NDArray[np.int64], shares: NDArray[np.uint32]) -> list[bytes | None]:
    """Return the secrets whose shares these are, none where they are shares of no text of 32 bytes.

    Args:
        points: The holders' points [threshold].
        shares: Their shares [threshold, secrets, 9].
    """
    limbs = _product(_weights(points)[None], shares.reshape(len(points), -1).astype(np.uint64))
    return _texts(limbs.reshape(-1, LIMBS))


def _weights(points: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Lagrange's weights [n] of the value at 0: the product over j != i of x_j / (x_j - x_i)."""
    x = points.astype(np.int64) % PRIME
    above, below = np.ones(len(x), np.int64), np.ones(len(x), np.int64)
    for shift in range(1, len(x)):
        other = np.roll(x, shift)
        above, below = above * other % PRIME, below * ((other - x) % PRIME) % PRIME
    inverse = np.array([pow(int(one), -1, PRIME) for one in below], np.int64)
    weights: NDArray[np.uint64] = (above * inverse % PRIME).astype(np.uint64)
    return weights


def _product(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The product of two matrices in the field; up to 2^17 terms cannot overflow."""
    high, low = left >> _HALF, left & np.uint64(0xFFFF)
    product: NDArray[np.uint64] = (((high @ right) % _P << _HALF) + low @ right) % _P
    return product


def _uniform(count: int, entropy: Entropy) -> NDArray[np.uint64]:
    """Uniform elements of the field: 31 bits each, and again where they are all ones."""
    drawn = np.frombuffer(entropy(4 * count), "<u4") & np.uint32(PRIME)
    while (again := np.flatnonzero(drawn == PRIME)).size:
        drawn[again] = np.frombuffer(entropy(4 * again.size), "<u4") & np.uint32(PRIME)
    return drawn.astype(np.uint64)


def _limbs(secrets: list[bytes]) -> NDArray[np.uint64]:
    """[secrets, 9] numbers of 30 bits."""
    bits = np.unpackbits(np.frombuffer(b"".join(secrets), np.uint8).reshape(-1, SECRET), axis=1, bitorder="little")
    padded = np.pad(bits, ((0, 0), (0, LIMBS * _LIMB - bits.shape[1]))).reshape(len(secrets), LIMBS, _LIMB)
    return padded.astype(np.uint64) @ (np.uint64(1) << np.arange(_LIMB, dtype=np.uint64))


def _texts(limbs: NDArray[np.uint64]) -> list[bytes | None]:
    """The inverse of :func:`_limbs`, none for numbers that it does not make."""
    bits = (limbs[:, :, None] >> np.arange(31, dtype=np.uint64) & np.uint64(1)).astype(np.uint8)
    line = bits[:, :, :_LIMB].reshape(len(limbs), -1)
    beyond = np.concatenate([bits[:, :, _LIMB], line[:, 8 * SECRET :]], axis=1)
    packed = np.packbits(line[:, : 8 * SECRET], axis=1, bitorder="little")
    return [None if over.any() else row.tobytes() for row, over in zip(packed, beyond, strict=True)]
