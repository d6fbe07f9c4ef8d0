"""Clients' ids in order, and which samples are held out to test on."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from fedslice.core import rng
from fedslice.core.errors import UserError, unknown
from fedslice.data import columns
from fedslice.data.columns import Array

Ints = NDArray[np.int64]
By = Literal["within", "sample", "client"]

_WITHIN = 1002  # a stream beside those in which samples are dealt to clients (fedslice.data.ways)


def clients_of(client: Any) -> tuple[Array, Ints]:
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


def by_client(owner: Ints, clients: int) -> Ints:
    """All samples, those of the first client first, in their order within each: a counting sort, in linear time."""
    samples = np.arange(len(owner))
    table = coo_array((np.ones(len(owner), np.bool_), (owner, samples)), shape=(clients, len(owner)))
    return np.asarray(table.tocsr().indices, np.int64)


def held_out(test: Any, by: By, owner: Ints, seed: int, order: Ints | None = None) -> NDArray[np.bool_]:
    """Return True for the samples to test on.

    Args:
        test: A boolean for each sample, or a share. Of n samples, ``test * n`` are held out, rounded.
        by: Of what the share is taken: ``"within"`` each client's samples, of which at least one stays;
            all clients' samples (``"sample"``); or the clients, who then do not train (``"client"``).
        owner: The client of each sample.
        seed: The seed of the draw.
        order: All samples from the earliest to the latest. The latest are then held out, and nothing is drawn.
    """
    if not isinstance(test, int | float | np.number):
        mask = columns.array("test", test)
        if mask.shape != owner.shape or mask.dtype != np.bool_:
            raise UserError(
                f"test has shape {mask.shape} and type {mask.dtype}; give a fraction or one boolean per sample "
                f"({len(owner)})."
            )
        return mask
    if by not in get_args(By):
        raise unknown("way to split, by=", by, get_args(By))
    if not 0 <= test < 1:
        raise UserError(f"test={test} is not a fraction; give a number from 0 up to, not including, 1.")
    if by == "client" and order is not None:
        raise UserError("time orders samples and by='client' holds out whole clients; leave one of them out.")
    if by == "within":
        return _of_each(float(test), owner, seed, order)
    pool = np.arange(len(owner)) if by == "sample" else np.unique(owner)
    count = round(test * len(pool))
    if order is not None:
        chosen = order[len(order) - count :]
    else:
        chosen = pool[rng.generator(seed, rng.Purpose.SPLIT).permutation(len(pool))[:count]]
    if by == "client":
        return np.isin(owner, chosen)
    mask = np.zeros(len(owner), dtype=np.bool_)
    mask[chosen] = True
    return mask


def _of_each(test: float, owner: Ints, seed: int, order: Ints | None) -> NDArray[np.bool_]:
    """The latest samples of each client, or some at random: ``test * n`` of n, halves up, but never all."""
    if order is None:
        order = np.argsort(rng.bits(seed, rng.Purpose.SPLIT, _WITHIN, np.arange(len(owner))), kind="stable")
    sizes = np.bincount(owner)
    order = order[by_client(owner[order], len(sizes))]
    kept = sizes - np.minimum(np.floor(test * sizes + 0.5).astype(np.int64), np.maximum(sizes - 1, 0))
    first = np.cumsum(sizes) - sizes
    mask = np.zeros(len(owner), dtype=np.bool_)
    mask[order] = np.arange(len(owner)) >= np.repeat(first + kept, sizes)
    return mask
