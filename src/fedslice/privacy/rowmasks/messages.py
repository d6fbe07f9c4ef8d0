"""What client and server of sums per row send each other, and what both know before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedslice.core.errors import UserError
from fedslice.privacy.ring import Elements, Ring
from fedslice.privacy.secagg.messages import flag_bytes

ROW_KEY = 16  # bytes
Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class RowVector:
    """What is summed at each row.

    Args:
        ring: Where elements come from.
        width: Elements of a row.
    """

    ring: Ring
    width: int


@dataclass(frozen=True)
class RowSetup:
    """What both sides know before rows are summed.

    Args:
        table: Name of the table, or of the tables that share row ids.
        vectors: What is summed at each row, by name: values, and the number of clients that have any.
        least: Clients over which a row is summed at least, 2 or more.
    """

    table: str
    vectors: Mapping[str, RowVector]
    least: int = 3

    def __post_init__(self) -> None:
        if self.least < 2:
            raise UserError(
                f"least = {self.least}: a sum over one client is its value; expected 2 at least.", ["least"]
            )

    def size(self, rows: int) -> int:
        """Bytes of this many rows."""
        return sum(vector.ring.size(rows * vector.width) for vector in self.vectors.values())


@dataclass(frozen=True)
class Sharing:
    """Server: who else names the client's rows."""

    context: bytes
    flags: Flags  # [rows of the client, its neighbours in the delivery]

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return flag_bytes(self.flags.size)


@dataclass(frozen=True)
class MaskedRows:
    """Client: its rows that enough clients name, under masks."""

    context: bytes
    client: int
    vectors: Mapping[str, Elements]  # [rows, width]

    def nbytes(self, setup: RowSetup) -> int:
        """Bytes of the body."""
        return setup.size(len(next(iter(self.vectors.values()))))


@dataclass(frozen=True)
class RevealedRows:
    """Client: what takes the masks with lost clients off.

    Where all rows that it shares with a lost client stay open, that is the key of these masks; else the sum of the
    masks at the rows that do.
    """

    context: bytes
    client: int
    keys: NDArray[np.uint8]  # [clients, 16]
    masks: Mapping[str, Elements]  # [rows, width]

    def nbytes(self, setup: RowSetup) -> int:
        """Bytes of the body."""
        return self.keys.nbytes + setup.size(len(next(iter(self.masks.values()))))


def recovery(shared: Flags, stays: Flags) -> tuple[Flags, Flags]:
    """Return what one client reveals.

    Args:
        shared: Which of its sent rows it shares with which lost clients [rows, lost].
        stays: Which of the rows stay open [rows].

    Returns:
        For which lost clients it reveals the key [lost], and for which rows the sum of its masks with the other lost
        clients [rows].
    """
    keys: Flags = np.any(shared, 0) & ~np.any(shared & ~stays[:, None], 0)
    return keys, np.any(shared & ~keys, 1) & stays


@dataclass(frozen=True)
class RowSums:
    """What the server learns of rows.

    Args:
        rows: Rows that anyone named, ascending [n].
        sharers: How many of the clients whose values arrived named each [n].
        open: Which rows' sums are known [n].
        few: Which rows nobody sent, because too few clients named them [n].
        late: Which rows were sent, and have too few clients left [n].
        stuck: Which rows kept a mask because two clients were lost, one after the other [n].
        sums: The sums of each vector at the open rows [open rows, width].
    """

    rows: Rows
    sharers: NDArray[np.int64]
    open: Flags
    few: Flags
    late: Flags
    stuck: Flags
    sums: Mapping[str, Elements]


def incidence(named: Sequence[Rows]) -> tuple[Rows, Flags]:
    """Return the rows that anyone named, ascending [n], and who named them [n, clients]."""
    rows = np.unique(np.concatenate([np.zeros(0, np.int64), *named]))
    holds = np.zeros((len(rows), len(named)), dtype=np.bool_)
    for client, own in enumerate(named):
        holds[np.searchsorted(rows, own), client] = True
    return rows, holds


def row_sums(
    setup: RowSetup, rows: Rows, holds: Flags, alive: Flags, last: Flags, totals: Mapping[str, Elements]
) -> RowSums:
    """Return the sums of the rows that are open.

    Args:
        setup: What both sides know.
        rows: Rows that anyone named [n].
        holds: Which clients named them and shared their secrets [n, clients].
        alive: Whose values arrived [clients].
        last: Of these, who revealed what takes masks off [clients].
        totals: Sums over those whose values arrived [n, width] of each vector; only those of open rows are read.
    """
    sharers = holds[:, alive].sum(1)
    few = holds.sum(1) < setup.least
    late = ~few & (sharers < setup.least)
    stuck = ~few & ~late & holds[:, ~alive].any(1) & holds[:, alive & ~last].any(1)
    known = ~(few | late | stuck)
    sums = {name: vector.ring.reduce(totals[name][known]) for name, vector in setup.vectors.items()}
    return RowSums(rows, sharers, known, few, late, stuck, sums)
