"""Masks of rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedslice.privacy.ring import Elements
from fedslice.privacy.rowmasks.messages import ROW_KEY, Rows, RowSetup
from fedslice.privacy.secagg.keys import derive
from fedslice.privacy.secagg.prg import row_stream


def own_rows_key(seed: bytes, setup: RowSetup) -> bytes:
    """Return the key of a client's own masks."""
    return derive(seed, b"own rows " + setup.table.encode(), ROW_KEY)


def add_rows(
    setup: RowSetup,
    totals: Mapping[str, Elements],
    rows: Rows,
    key: bytes,
    sign: int,
    at: NDArray[np.int64] | None = None,
) -> None:
    """Add masks to rows, in place.

    Args:
        setup: The facts that both sides know.
        totals: Elements [n, width] of each vector.
        rows: Ids of the rows whose masks are added [k].
        key: The key of the masks.
        sign: -1 to subtract them.
        at: Their places in ``totals`` [k], each once; by default they are all there is.
    """
    place = slice(None) if at is None else at
    for number, (name, vector) in enumerate(setup.vectors.items()):
        mask = row_stream(key, number, rows, vector.width, vector.ring)
        if sign > 0:
            totals[name][place] += mask
        else:
            totals[name][place] -= mask
