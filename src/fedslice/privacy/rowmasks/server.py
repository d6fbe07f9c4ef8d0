"""The server of sums per row, as a machine beside that of the secure sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

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
    RowSums,
    Sharing,
    incidence,
    recovery,
    row_sums,
)
from fedslice.privacy.secagg.client import sign
from fedslice.privacy.secagg.server import Server


class RowServer:
    """The server of one table's rows, beside the machine of the secure sum.

    Args:
        setup: The facts that both sides know.
        server: The machine.
        named: The rows that each client of the cohort named [size], ascending; none for those that are lost.
    """

    def __init__(self, setup: RowSetup, server: Server, named: Sequence[Rows]) -> None:
        if not server.setup.graph.complete:
            raise UserError("masks per row need the complete graph: clients that share a row must be neighbours.")
        self.setup, self._machine = setup, server
        self.rows, self._holds = incidence(named)
        self._open = np.zeros(len(self.rows), dtype=np.bool_)
        self._totals = {n: v.ring.zeros((len(self.rows), v.width)) for n, v in setup.vectors.items()}
        self._taken: dict[int, MaskedRows] = {}
        self._revealed: dict[int, RevealedRows] = {}

    def share(self) -> dict[int, Sharing]:
        """Return for each client who else names its rows, once the shares of secrets are closed."""
        sharers = self._machine.sharers
        self._holds = self._holds & np.isin(np.arange(self._machine.setup.size), sharers)
        self._open = self._holds.sum(1) >= self.setup.least
        return {
            client: Sharing(
                self._machine.setup.context, self._holds[np.ix_(self._holds[:, client], sharers[sharers != client])]
            )
            for client in sharers.tolist()
        }

    def take_masked(self, message: MaskedRows) -> None:
        """Take a client's masked rows; after them the machine of the secure sum takes its masked vectors."""
        client = self._expect(message, self._taken)
        self._check(message.vectors, int((self._open & self._holds[:, client]).sum()))
        self._taken[client] = message

    def take_revealed(self, message: RevealedRows) -> None:
        """Take what takes the masks with lost clients off; after it the machine takes the client's shares."""
        client = self._expect(message, self._revealed)
        keys, some = self._recovery(client)
        if message.keys.shape != (int(keys.sum()), ROW_KEY) or message.keys.dtype != np.uint8:
            raise Refused(f"has keys of shape {message.keys.shape}, expected ({int(keys.sum())}, {ROW_KEY})")
        self._check(message.masks, int(some.sum()))
        self._revealed[client] = message

    def finish(self) -> RowSums:
        """Return the sums of the rows that are open, once the secure sum is finished."""
        for client, seed in self._machine.seeds.items():
            at = np.flatnonzero(self._open & self._holds[:, client])
            for name, total in self._totals.items():
                total[at] += self._taken[client].vectors[name]
            add_rows(self.setup, self._totals, self.rows[at], own_rows_key(seed, self.setup), -1, at)
        revealers = np.flatnonzero(self._machine.live)
        for client in revealers.tolist():
            self._take_off(client, self._revealed[client])
        size = self._machine.setup.size
        alive, last = (np.isin(np.arange(size), some) for some in (self._machine.survivors, revealers))
        return row_sums(self.setup, self.rows, self._holds, alive, last, self._totals)

    def _take_off(self, client: int, message: RevealedRows) -> None:
        keys, some = self._recovery(client)
        sent = np.flatnonzero(self._open & self._holds[:, client])
        for name, total in self._totals.items():
            total[sent[some]] -= message.masks[name]
        for lost, key in zip(self._lost[keys].tolist(), message.keys, strict=True):
            at = sent[self._holds[sent, lost]]
            add_rows(self.setup, self._totals, self.rows[at], key.tobytes(), -sign(client, lost), at)

    def _recovery(self, client: int) -> tuple[Flags, Flags]:
        """Return the flags of the keys and of the rows that a client reveals."""
        sent = np.flatnonzero(self._open & self._holds[:, client])
        stays = self._holds[np.ix_(sent, self._machine.survivors)].sum(1) >= self.setup.least
        return recovery(self._holds[np.ix_(sent, self._lost)], stays)

    @property
    def _lost(self) -> NDArray[np.int64]:
        return np.setdiff1d(self._machine.sharers, self._machine.survivors)

    def _expect(self, message: MaskedRows | RevealedRows, before: Mapping[int, object]) -> int:
        if message.context != self._machine.setup.context:
            raise Refused("belongs to another sum")
        if not 0 <= message.client < self._machine.setup.size or not self._machine.live[message.client]:
            raise Refused(f"comes from client {message.client}, which does not take part")
        if message.client in before:
            raise Refused(f"comes from client {message.client} again")
        return message.client

    def _check(self, vectors: Mapping[str, Elements], count: int) -> None:
        if vectors.keys() != self.setup.vectors.keys():
            raise Refused(f"has rows of {sorted(vectors)}, expected {sorted(self.setup.vectors)}")
        for name, declared in self.setup.vectors.items():
            given, shape = vectors[name], (count, declared.width)
            if given.shape != shape or given.dtype != declared.ring.dtype:
                raise Refused(f"has rows of {name!r} of shape {given.shape}, expected {shape}")
            if given.size and int(given.max()) > declared.ring.largest:
                raise Refused(f"has rows of {name!r} with elements of more than {declared.ring.bits} bits")
