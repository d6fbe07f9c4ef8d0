"""A secure sum without masks: the same sum, survivors, bytes and aborts as the protocol has, for simulations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedslice.privacy.ring import Elements
from fedslice.privacy.secagg import messages
from fedslice.privacy.secagg.messages import Setup

Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Lost:
    """The clients that are lost before they send the message of a phase, and whose masks must be removed or never made.

    Args:
        keys: Positions of clients that never advertise keys.
        shares: Of those that advertise keys and send nothing more.
        masked: Of those that share their secrets and send nothing more.
        check: Of those whose vector arrives, and that do not sign the survivors.
        reveal: Of those whose vector arrives, and that reveal nothing.
    """

    keys: frozenset[int] = frozenset()
    shares: frozenset[int] = frozenset()
    masked: frozenset[int] = frozenset()
    check: frozenset[int] = frozenset()
    reveal: frozenset[int] = frozenset()


@dataclass
class Outcome:
    """The result of a secure sum.

    Args:
        sums: Elements [length] of each vector.
        sharers: Positions of the clients that shared their secrets.
        survivors: Of those whose vectors arrived, which are in the sum.
        revealers: Of those that revealed shares.
        up: Bytes that each client sent [size], by phase.
        down: Bytes that each client was sent in answer, by phase; before the first one, the setup.
    """

    sums: dict[str, Elements] = field(default_factory=dict)
    sharers: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    survivors: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    revealers: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    up: dict[str, Counts] = field(default_factory=dict)
    down: dict[str, Counts] = field(default_factory=dict)


def plain_sum(setup: Setup, vectors: Mapping[str, Elements], lost: Lost = Lost()) -> Outcome:  # noqa: B008
    """Return what the protocol gives.

    Args:
        setup: The facts that both sides know.
        vectors: All clients' elements [size, length] of each vector.
        lost: The clients that are lost, by phase.

    Raises:
        Aborted: If the protocol aborts.
    """
    out = plain_outcome(setup, lost)
    for name, vector in setup.vectors.items():
        total = vector.ring.zeros(vector.length)
        for client in out.survivors.tolist():
            total += vectors[name][client]
        out.sums[name] = vector.ring.reduce(total)
    return out


def plain_outcome(setup: Setup, lost: Lost = Lost()) -> Outcome:  # noqa: B008
    """Return what the protocol comes to but for the sums, which whoever has the vectors can add up.

    Args:
        setup: The facts that both sides know.
        lost: The clients that are lost, by phase.

    Raises:
        Aborted: If the protocol aborts.
    """
    near = np.zeros((setup.size, setup.size), dtype=np.bool_)
    for client in range(setup.size):
        near[client, setup.graph.neighbours(client)] = True
    size_of, out = messages.flag_bytes, Outcome()
    signature = messages.SIGNATURE if setup.signed else 0

    advertised = ~_flags(setup, lost.keys)
    live = _open(setup, near, advertised, "advertised keys")
    roster = (near & live).sum(1)
    out.down["setup"] = np.full(setup.size, messages.SETUP_BYTES)
    out.up["keys"] = advertised * (2 * messages.KEY + signature)
    out.down["keys"] = live * (size_of(setup.graph.degree) + roster * (2 * messages.KEY + signature))

    shared = live & ~_flags(setup, lost.shares)
    width = messages.SECRETS * messages.COMMITMENT
    out.up["shares"] = shared * (roster * (messages.SEALED + width) + width + messages.COMMITMENT)
    sharers = _open(setup, near, shared, "shared their secrets")
    delivered = (near & sharers).sum(1)
    out.down["shares"] = sharers * (size_of(roster) + delivered * messages.SEALED)

    alive = sharers & ~_flags(setup, lost.masked)
    out.up["masked"] = alive * sum(vector.ring.size(vector.length) for vector in setup.vectors.values())
    _enough(setup, int(alive.sum()), "sent their vectors")
    for client in np.flatnonzero(alive).tolist():
        _near_enough(setup, client, 1 + int((near[client] & alive).sum()), "sent their vectors")
    out.down["masked"] = alive * size_of(setup.size)

    speaking = alive
    if setup.signed:
        speaking = alive & ~_flags(setup, lost.check)
        _enough(setup, int(speaking.sum()), "signed the survivors")
        out.up["check"] = speaking * signature
        out.down["check"] = speaking * (size_of(setup.size) + int(speaking.sum()) * signature)

    last = speaking & ~_flags(setup, lost.reveal)
    out.up["reveal"] = last * (size_of(1 + delivered) + (1 + delivered) * messages.SHARE)
    _enough(setup, int(last.sum()), "revealed shares")
    for owner in np.flatnonzero(sharers & (alive | (near & alive).any(1))).tolist():
        count = int(last[owner]) + int((near[owner] & last).sum())
        if count < setup.threshold:
            raise messages.too_few_shares(setup, owner, count)
    out.sharers, out.survivors, out.revealers = (np.flatnonzero(flags) for flags in (sharers, alive, last))
    return out


def _flags(setup: Setup, clients: frozenset[int]) -> Flags:
    flags = np.zeros(setup.size, dtype=np.bool_)
    flags[list(clients)] = True
    return flags


def _open(setup: Setup, near: NDArray[np.bool_], live: Flags, did: str) -> Flags:
    """Return who goes on: clients with enough neighbours, of which there must be enough."""
    while (few := live & (1 + (near & live).sum(1) < setup.threshold)).any():
        live = live & ~few
    _enough(setup, int(live.sum()), did)
    return live


def _enough(setup: Setup, count: int, did: str) -> None:
    if count < setup.threshold:
        raise messages.too_few(setup, count, did)


def _near_enough(setup: Setup, client: int, count: int, did: str) -> None:
    if count < setup.threshold:
        raise messages.too_few_near(setup, client, count, did)
