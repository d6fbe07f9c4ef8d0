"""Sums per row without masks: the same sums, open rows and bytes as the protocol has, for simulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedslice.privacy.ring import Elements
from fedslice.privacy.rowmasks.messages import ROW_KEY, Rows, RowSetup, RowSums, incidence, recovery, row_sums
from fedslice.privacy.secagg.messages import flag_bytes
from fedslice.privacy.secagg.plain import Outcome


@dataclass(frozen=True)
class RowOutcome:
    """The result of sums per row.

    Args:
        found: All that the server learns.
        up: Bytes that each client sent [size], by phase.
        down: Bytes that each client was sent, by phase.
    """

    found: RowSums
    up: Mapping[str, NDArray[np.int64]]
    down: Mapping[str, NDArray[np.int64]]


def plain_rows(
    setup: RowSetup, named: Sequence[Rows], values: Mapping[str, Sequence[Elements]], outcome: Outcome
) -> RowOutcome:
    """Return what the protocol gives.

    Args:
        setup: The facts that both sides know.
        named: The rows that each client named [size], ascending.
        values: Elements [rows of the client, width] of each vector and client.
        outcome: The result of the secure sum beside which rows are summed.
    """
    size = len(named)
    rows, holds = incidence(named)
    sharers, alive, last = (
        np.isin(np.arange(size), some) for some in (outcome.sharers, outcome.survivors, outcome.revealers)
    )
    holds &= sharers
    sent = holds[holds.sum(1) >= setup.least]
    stays = sent[:, alive].sum(1) >= setup.least
    totals = {name: vector.ring.zeros((len(rows), vector.width)) for name, vector in setup.vectors.items()}
    for client in np.flatnonzero(alive).tolist():
        at = np.searchsorted(rows, named[client])
        for name, total in totals.items():
            total[at] += values[name][client]
    up = {phase: np.zeros(size, np.int64) for phase in ("masked", "reveal")}
    for client in np.flatnonzero(alive).tolist():
        up["masked"][client] = setup.size(int(sent[:, client].sum()))
    lost = sent[:, sharers & ~alive]
    for client in np.flatnonzero(last).tolist():
        own = sent[:, client]
        keys, some = recovery(lost[own], stays[own])
        up["reveal"][client] = ROW_KEY * int(keys.sum()) + setup.size(int(some.sum()))
    down = sharers * flag_bytes(holds.sum(0) * (int(sharers.sum()) - 1))
    return RowOutcome(row_sums(setup, rows, holds, alive, last, totals), up, {"shares": down})
