"""Real values as elements of a ring, so that the sum of a cohort's weighted values cannot wrap around.

A value is clipped to [-clip, clip], multiplied by its client's share of the largest weight, and rounded at random to
one of ``2 * levels + 1`` whole numbers: up or down with chances that make the mean exact. The sum of ``size`` such
numbers lies between ``-size * levels`` and ``size * levels``, and the ring has as many bits as these need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.privacy.draws import Draw
from fedslice.privacy.ring import Elements, Ring

_PIECE = 1 << 15  # values rounded at once: their draws stay in a core's cache


@dataclass(frozen=True)
class Quantizer:
    """Rounding of a cohort's values to ring elements.

    Args:
        clip: Largest magnitude of a value. Larger ones are clipped, and counted.
        size: Number of clients whose values are summed.
        bits: Bits of one client's value, 2 to 32: it has ``2**bits - 1`` levels.
        most_weight: Largest weight of a client; larger ones count as this one.

    Example:
        >>> quantizer = Quantizer(clip=0.1, size=50)
        >>> elements, clipped = quantizer.quantize(update, weight=1.0, key=(seed, round, client, 0))
    """

    clip: float
    size: int
    bits: int = 16
    most_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.clip < float("inf"):
            raise UserError(f"clip = {self.clip} is no magnitude; expected a positive number.", ["clip"])
        if not 0 < self.most_weight < float("inf"):
            raise UserError(f"most_weight = {self.most_weight} is no weight; expected a positive number.")
        if not 2 <= self.bits <= 32:
            raise UserError(f"bits = {self.bits} for a value; expected 2 to 32.", ["bits"])
        if self.size < 1:
            raise UserError(f"a sum of {self.size} clients; expected 1 at least.")

    @property
    def levels(self) -> int:
        """The number of levels on each side of zero."""
        return (1 << (self.bits - 1)) - 1

    @cached_property
    def ring(self) -> Ring:
        """The smallest ring in which no sum wraps around: its largest magnitude, and a bit for the sign."""
        return Ring((self.size * self.levels).bit_length() + 1)

    @property
    def step(self) -> float:
        """The worth of one level in the weighted sum."""
        return self.clip * self.most_weight / self.levels

    @property
    def variance(self) -> float:
        """Upper bound of the variance that rounding adds to the weighted sum, per client in it."""
        return self.step**2 / 4

    def share(self, weight: float) -> float:
        """Return a client's weight as it counts: a share of the largest one."""
        if not weight >= 0:
            raise ValueError(f"a weight of {weight}")
        return min(weight / self.most_weight, 1.0)

    def quantize(
        self, values: NDArray[Any], weight: float, key: tuple[int, ...], where: NDArray[np.int64] | None = None
    ) -> tuple[Elements, int]:
        """Return the elements of one client's values, and how many of them were clipped.

        Args:
            values: Finite numbers [n].
            weight: The client's weight.
            key: The key of the draws: a seed that the server does not know, round, client, number of the field.
            where: The place of each value in its field, on which its draw depends too; by default 0, 1, 2, ...
        """
        if not np.isfinite(values).all():
            raise ValueError("values to be rounded must be finite")
        made, clipped = self.ring.zeros(len(values)), 0
        scale, bound = self.share(weight) * self.levels / self.clip, self.share(weight) * self.levels
        for first in range(0, len(values), _PIECE):
            piece = values[first : first + _PIECE].astype(np.float64)
            places = np.arange(first, first + len(piece)) if where is None else where[first : first + _PIECE]
            if max(piece.max(), -piece.min()) > self.clip:
                clipped += int(np.count_nonzero(np.abs(piece) > self.clip))
            piece *= scale
            np.clip(piece, -bound, bound, out=piece)
            piece += rng.uniform(*_before(key), places)  # floor(x + u) is x on average
            np.floor(piece, out=piece)
            np.minimum(piece, self.levels, out=piece)  # x + u can round up to the next number
            made[first : first + _PIECE] = piece.astype(np.int64).astype(self.ring.dtype)
        return self.ring.reduce(made), clipped

    def value(self, total: Elements) -> NDArray[np.float64]:
        """Return the weighted sum [n] of the clipped values, from the sum of their elements."""
        return self.ring.signed(total).astype(np.float64) * self.step


def _before(key: tuple[int, ...]) -> tuple[int, ...]:
    seed, *rest = key
    return (seed, Draw.ROUNDING, *rest)
