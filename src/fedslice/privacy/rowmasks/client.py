"""The client of sums per row, as a machine beside that of the secure sum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedslice.core.errors import Refused, UserError
from fedslice.privacy.ring import Elements
from fedslice.privacy.rowmasks.masks import add_rows, own_rows_key
from fedslice.privacy.rowmasks.messages import (
    ROW_KEY,
    Flags,
    MaskedRows,
    RevealedRows,
    Rows,
    RowSetup,
    Sharing,
    recovery,
)
from fedslice.privacy.secagg.client import Client, sign


class RowClient:
    """One client whose rows are summed, beside its machine for the secure sum.

    Args:
        setup: The facts that both sides know.
        client: Its machine, which has shared its secrets.
        rows: The rows that it named [n], ascending.
    """

    def __init__(self, setup: RowSetup, client: Client, rows: Rows) -> None:
        if not client.setup.graph.complete:
            raise UserError("masks per row need the complete graph: clients that share a row must be neighbours.")
        self.setup, self.rows = setup, rows
        self._machine = client
        self._sharing: Flags | None = None
        self._neighbours = client.neighbours
        self._open = self._revealed = np.zeros(len(rows), dtype=np.bool_)
        self._over = False

    def mask(self, sharing: Sharing, values: Mapping[str, Elements]) -> MaskedRows:
        """Return the rows that enough clients name, under masks.

        Args:
            sharing: The other clients that name them.
            values: Elements [n, width] of each vector, at all rows that the client named.
        """
        self._belongs(sharing.context)
        if self._sharing is not None:
            raise Refused("asks for rows a second time")
        self._neighbours = self._machine.neighbours
        shape = (len(self.rows), len(self._neighbours))
        if sharing.flags.shape != shape or sharing.flags.dtype != np.bool_:
            raise Refused(f"has flags of shape {sharing.flags.shape}, expected {shape}")
        for name, vector in self.setup.vectors.items():
            if values[name].shape != (len(self.rows), vector.width) or values[name].dtype != vector.ring.dtype:
                raise ValueError(f"rows of {name!r} have another shape or type than they were declared with")
        self._open = 1 + sharing.flags.sum(1) >= self.setup.least
        self._sharing = sharing.flags[self._open]
        sent = self.rows[self._open]
        totals = {name: values[name][self._open] for name in self.setup.vectors}
        add_rows(self.setup, totals, sent, own_rows_key(self._machine.seed, self.setup), 1)
        for at, neighbour in enumerate(self._neighbours.tolist()):
            both = np.flatnonzero(self._sharing[:, at])
            if both.size:
                add_rows(self.setup, totals, sent[both], self._key(neighbour), self._sign(neighbour), both)
        return MaskedRows(self._machine.setup.context, self._machine.client, self._reduced(totals))

    def reveal(self) -> RevealedRows:
        """Return what takes the masks with lost clients off, once the machine has revealed its shares."""
        survivors = self._machine.survivors
        if survivors is None or self._sharing is None or self._over:
            raise Refused("asks for masks of rows before shares are revealed, or a second time")
        self._over = True
        stays = 1 + (self._sharing & survivors[self._neighbours]).sum(1) >= self.setup.least
        lost = ~survivors[self._neighbours]
        keys, some = recovery(self._sharing[:, lost], stays)
        names = self._neighbours[lost]
        sent = self.rows[self._open]
        totals = {n: vector.ring.zeros((len(sent), vector.width)) for n, vector in self.setup.vectors.items()}
        for neighbour, known, shared in zip(names.tolist(), keys, self._sharing[:, lost].T, strict=True):
            at = np.flatnonzero(shared & some)
            if not known and at.size:
                add_rows(self.setup, totals, sent[at], self._key(neighbour), self._sign(neighbour), at)
        given = [self._key(neighbour) for neighbour in names[keys].tolist()]
        self._revealed = self._open.copy()
        self._revealed[self._open] = stays
        return RevealedRows(
            self._machine.setup.context,
            self._machine.client,
            np.frombuffer(b"".join(given), np.uint8).reshape(len(given), ROW_KEY),
            self._reduced({name: total[some] for name, total in totals.items()}),
        )

    @property
    def kept(self) -> Flags:
        """Flags of its rows that the server has not learned, as far as the client knows [n]: all until it reveals."""
        return ~self._revealed

    def _key(self, neighbour: int) -> bytes:
        return self._machine.channel(neighbour, b"rows" + self.setup.table.encode())[:ROW_KEY]

    def _sign(self, neighbour: int) -> int:
        return sign(self._machine.client, neighbour)

    def _reduced(self, totals: Mapping[str, Elements]) -> dict[str, Elements]:
        return {name: self.setup.vectors[name].ring.reduce(total) for name, total in totals.items()}

    def _belongs(self, context: bytes) -> None:
        if context != self._machine.setup.context:
            raise Refused("belongs to another sum")
