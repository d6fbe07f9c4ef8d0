"""Messages of sums per row, and the setup that both sides know before them."""

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
    """One of the vectors that are summed at each row.

    Args:
        ring: The ring of its elements.
        width: Elements of a row.
    """

    ring: Ring
    width: int


@dataclass(frozen=True)
class RowSetup:
    """The facts about sums per row that both sides know.

    Args:
        table: Name of the table, or of the tables that share row ids.
        vectors: The vectors of each row, by name: values, and for instance a one from each client that has any.
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
    """The other clients that name a client's rows, for the client."""

    context: bytes
    flags: Flags  # [rows of the client, its neighbours in the delivery]

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return flag_bytes(self.flags.size)


@dataclass(frozen=True)
class MaskedRows:
    """The rows of a client that enough clients name, under masks, for the server."""

    context: bytes
    client: int
    vectors: Mapping[str, Elements]  # [rows, width]

    def nbytes(self, setup: RowSetup) -> int:
        """Bytes of the body."""
        return setup.size(len(next(iter(self.vectors.values()))))


@dataclass(frozen=True)
class RevealedRows:
    """The keys and masks of a client that take its masks with lost clients off, for the server.

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
        shared: Flags of the lost clients with which it shares each row that it sent [rows, lost].
        stays: Flags of the rows that stay open [rows].

    Returns:
        For which lost clients it reveals the key [lost], and for which rows the sum of its masks with the other lost
        clients [rows].
    """
    keys: Flags = np.any(shared, 0) & ~np.any(shared & ~stays[:, None], 0)
    return keys, np.any(shared & ~keys, 1) & stays


@dataclass(frozen=True)
class RowSums:
    """All that the server learns of rows.

    Args:
        rows: Rows that anyone named, ascending [n].
        sharers: Number of clients whose values arrived that named each [n].
        open: Flags of the rows whose sums are known [n].
        few: Flags of the rows that nobody sent, because too few clients named them [n].
        late: Flags of the rows that were sent, and have too few clients left [n].
        stuck: Flags of the rows that kept a mask, because two clients were lost one after the other [n].
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
        setup: The facts that both sides know.
        rows: Rows that anyone named [n].
        holds: Flags of the clients that named them and shared their secrets [n, clients].
        alive: Flags of the clients whose values arrived [clients].
        last: Flags of those that revealed what takes masks off [clients].
        totals: Sums over those whose values arrived [n, width] of each vector; only those of open rows are read.
    """
    sharers = holds[:, alive].sum(1)
    few = holds.sum(1) < setup.least
    late = ~few & (sharers < setup.least)
    stuck = ~few & ~late & holds[:, ~alive].any(1) & holds[:, alive & ~last].any(1)
    known = ~(few | late | stuck)
    sums = {name: vector.ring.reduce(totals[name][known]) for name, vector in setup.vectors.items()}
    return RowSums(rows, sharers, known, few, late, stuck, sums)
