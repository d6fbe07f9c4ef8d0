"""The whole protocol between one server and its clients, in one process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from fedslice.privacy.ring import Elements
from fedslice.privacy.secagg.client import Client
from fedslice.privacy.secagg.keys import Signer
from fedslice.privacy.secagg.messages import SETUP_BYTES, Setup
from fedslice.privacy.secagg.plain import Lost, Outcome
from fedslice.privacy.secagg.server import Server
from fedslice.privacy.secagg.shares import Entropy

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass
class Played(Outcome):
    """The result of a secure sum that was played.

    Args:
        seconds: Wall time of each phase: all clients' work, then the server's.
        received: Every message that the server took, in order.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    received: list[Any] = field(default_factory=list)


def play(
    setup: Setup,
    vectors: Mapping[str, Elements],
    lost: Lost = Lost(),  # noqa: B008
    signers: Sequence[Signer] | None = None,
    entropy: Entropy = secrets.token_bytes,
    threads: int = 1,
) -> Played:
    """Return what the protocol gives, played message by message.

    Args:
        setup: The facts that both sides know.
        vectors: All clients' elements [size, length] of each vector.
        lost: The clients that are lost, by phase.
        signers: The clients' keys for signatures, if keys are signed.
        entropy: A source of uniform bytes.
        threads: Threads on which clients run side by side, and on which the server takes masks off.

    Raises:
        Aborted: If too few clients remain.
    """
    server, out = Server(setup, threads), Played()
    everyone = range(setup.size)
    out.down["setup"] = np.full(setup.size, SETUP_BYTES)
    with ThreadPoolExecutor(threads) as pool:

        def phase(
            name: str, clients: Iterable[int], send: Callable[[int], Any], take: Callable[[Any], None], close: Any
        ) -> Any:
            """Let clients send, the server take, and close the phase."""
            began = time.perf_counter()
            named = list(clients)
            out.up[name], out.down[name] = np.zeros(setup.size, np.int64), np.zeros(setup.size, np.int64)
            for message in pool.map(send, named) if threads > 1 else map(send, named):
                take(message)
                out.up[name][message.client] = message.nbytes
                out.received.append(message)
            answer = close()
            for client in np.flatnonzero(server.live):
                found = answer[int(client)] if name in ("keys", "shares") else answer
                out.down[name][client] = getattr(found, "nbytes", 0)
            out.seconds[name] = time.perf_counter() - began
            return answer

        def still(gone: frozenset[int]) -> list[int]:
            return [int(client) for client in np.flatnonzero(server.live) if int(client) not in gone]

        began = time.perf_counter()
        clients: list[Client] = [
            Client(setup, client, None if signers is None else signers[client], entropy) for client in everyone
        ]
        out.seconds["setup"] = time.perf_counter() - began
        rosters = phase("keys", still(lost.keys), lambda c: clients[c].advertise(), server.take_keys, server.close_keys)
        deliveries = phase(
            "shares",
            still(lost.shares),
            lambda c: clients[c].share(rosters[c]),
            server.take_shares,
            server.close_shares,
        )
        survivors = phase(
            "masked",
            still(lost.masked),
            lambda c: clients[c].mask(deliveries[c], {name: own[c] for name, own in vectors.items()}),
            server.take_masked,
            server.close_masked,
        )
        agreement = None
        if setup.signed:
            agreement = phase(
                "check", still(lost.check), lambda c: clients[c].check(survivors), server.take_check, server.close_check
            )
        out.sums = phase(
            "reveal",
            still(lost.reveal),
            lambda c: clients[c].reveal(survivors, agreement),
            server.take_revealed,
            server.finish,
        )
    out.sharers, out.survivors, out.revealers = server.sharers, server.survivors, np.flatnonzero(server.live)
    del out.down["reveal"]
    return out
