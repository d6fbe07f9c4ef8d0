"""Clients' ids in order, and which samples are held out to test on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.core import rng
from fedslice.core.errors import UserError, unknown
from fedslice.data import columns
from fedslice.data.columns import Array


def clients_of(client: Any) -> tuple[Array, NDArray[np.int64]]:
    """The distinct ids in order, and for each sample its client's place among them."""
    ids = columns.array("client", client)
    if ids.ndim != 1:
        raise UserError(f"client has shape {ids.shape}; give one client id per sample.")
    given = ids
    if ids.dtype.kind in "SU" and isinstance(client, list | tuple):  # NumPy made a text of NaN, too
        given = columns.objects(client)
    if len(missing := np.flatnonzero(columns.missing(given))):
        raise UserError(
            f"client row {missing[0]} is missing ({given[missing[0]]}), expected one client id per sample; give it an "
            "id or leave the sample out."
        )
    try:
        if ids.dtype.kind == "O":
            set(ids)  # lists could be put in order, but nobody is called so
        names, place = np.unique(ids, return_inverse=True)
    except (TypeError, ValueError):
        kinds = " and ".join(sorted({type(one).__name__ for one in given}))
        raise UserError(
            f"client holds ids of type {kinds}, expected all numbers or all texts; convert them, for example with str."
        ) from None
    return names, place


def held_out(test: Any, by: str, owner: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Return True for the samples to test on: as ``test`` marks them, or a share of samples or of clients."""
    if not isinstance(test, int | float | np.number):
        mask = columns.array("test", test)
        if mask.shape != owner.shape or mask.dtype != np.bool_:
            raise UserError(
                f"test has shape {mask.shape} and type {mask.dtype}; give a fraction or one boolean per sample "
                f"({len(owner)})."
            )
        return mask
    if by not in ("sample", "client"):
        raise unknown("way to split, by=", by, ("sample", "client"))
    if not 0 <= test < 1:
        raise UserError(f"test={test} is not a fraction; give a number from 0 up to, not including, 1.")
    pool = np.arange(len(owner)) if by == "sample" else np.unique(owner)
    order = rng.generator(seed, rng.Purpose.SPLIT).permutation(len(pool))
    chosen = pool[order[: round(test * len(pool))]]
    if by == "client":
        return np.isin(owner, chosen)
    mask = np.zeros(len(owner), dtype=np.bool_)
    mask[chosen] = True
    return mask
