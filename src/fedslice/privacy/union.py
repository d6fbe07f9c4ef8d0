"""Private set union: the rows that anyone holds, without saying who.

Billion-Scale Federated Learning on Mobile Clients: A Submodel Design with Tunable Privacy
    Chaoyue Niu, Fan Wu, Shaojie Tang, Lifeng Hua, Rongfei Jia, Chengfei Lv, Zhihua Wu, Guihai Chen. MobiCom 2020.

Each client puts a uniform ring element at each of its rows and zero elsewhere; the securely summed vector is uniform at
every row that anyone holds, however many do, and zero at the others.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.privacy.draws import Draw, hidden_bits
from fedslice.privacy.ring import Elements, Ring

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class RowUnion:
    """The union of row sets, with one cell per row.

    A row that is held is missed with chance ``2**-bits``; a row that nobody holds is never found.

    Args:
        rows: Number of rows of the table.
        bits: Bits of a cell.
    """

    rows: int
    bits: int = 32

    @property
    def ring(self) -> Ring:
        """The ring of the cells."""
        return Ring(self.bits)

    @property
    def cells(self) -> int:
        """Length of the vector that is summed."""
        return self.rows

    def mark(self, own: Rows, seed: int | None = None) -> Elements:
        """Return a client's cells [cells].

        Args:
            own: The client's rows.
            seed: A seed that the server does not know, different for each client and union, for runs that repeat; by
                default marks come from the operating system.
        """
        return _marked(self.ring, self.cells, own, seed)

    def found(self, total: Elements) -> Rows:
        """Return the rows that anyone holds, ascending, from the sum of all cells."""
        return np.flatnonzero(total)

    def false_negatives(self, held: int) -> float:
        """Return the expected number of rows that are held and missed, of ``held`` rows."""
        return held * 2.0**-self.bits


@dataclass(frozen=True)
class BloomUnion:
    """The union of row sets as a Bloom filter, for tables of which clients hold few rows.

    Each row has ``hashes`` cells, and is in the union if none of them is zero. A row that nobody holds is found if
    others fill all its cells.

    Args:
        rows: Number of rows of the table.
        cells: Cells of the filter.
        hashes: Cells of a row.
        seed: Known to everyone; which cells a row has.
        bits: Bits of a cell.
    """

    rows: int
    cells: int
    hashes: int
    seed: int
    bits: int = 32

    @classmethod
    def of(cls, rows: int, held: int, false_positives: float, seed: int, bits: int = 32) -> BloomUnion:
        """Return the smallest filter.

        Args:
            rows: Number of rows of the table.
            held: Rows that the union has at most.
            false_positives: Chance with which a row that nobody holds may be found then.
            seed: Known to everyone.
            bits: Bits of a cell.
        """
        if not 0 < false_positives < 1:
            raise UserError(f"false_positives = {false_positives} is no chance; expected a number between 0 and 1.")
        cells = max(1, math.ceil(-max(held, 1) * math.log(false_positives) / math.log(2) ** 2))
        return cls(rows, cells, max(1, round(-math.log2(false_positives))), seed, bits)

    @property
    def ring(self) -> Ring:
        """The ring of the cells."""
        return Ring(self.bits)

    def places(self, rows: Rows) -> Rows:
        """Return the cells of rows [n, hashes]."""
        return rng.integers(self.cells, self.seed, Draw.CELLS, rows[:, None], np.arange(self.hashes)[None])

    def mark(self, own: Rows, seed: int | None = None) -> Elements:
        """Return a client's cells [cells]; see :meth:`RowUnion.mark`."""
        return _marked(self.ring, self.cells, np.unique(self.places(own)), seed)

    def found(self, total: Elements) -> Rows:
        """Return the rows whose cells are all filled, ascending, from the sum of all cells."""
        filled, step = total != 0, 1 << 18
        pieces = [np.arange(first, min(first + step, self.rows)) for first in range(0, self.rows, step)]
        return np.concatenate([piece[filled[self.places(piece)].all(1)] for piece in pieces] or [np.zeros(0, np.int64)])

    def false_positives(self, held: int) -> float:
        """Return the chance that a row which nobody holds is found, where ``held`` rows are held."""
        filled = 1 - (1 - 1 / self.cells) ** (self.hashes * held)
        return float((filled * (1 - 2.0**-self.bits)) ** self.hashes)

    def false_negatives(self, held: int) -> float:
        """Return an upper bound of the expected number of rows that are held and missed, of ``held`` rows."""
        return held * self.hashes * 2.0**-self.bits


def _marked(ring: Ring, cells: int, places: Rows, seed: int | None) -> Elements:
    made = ring.zeros(cells)
    if seed is None:
        drawn = np.frombuffer(secrets.token_bytes(8 * len(places)), np.uint64)
    else:
        drawn = hidden_bits(seed, Draw.UNION, 2 * len(places)).view(np.uint64)
    made[places] = ring.reduce(drawn.astype(ring.dtype))
    return made
