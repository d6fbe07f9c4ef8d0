"""Messages of a secure sum, and the setup that both sides know before them.

Clients are named by their position in the cohort. Each message is a record of numbers and arrays, and ``nbytes`` is the
length of its body: flags take a bit, ring elements as many as their ring has.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedslice.core.errors import UserError
from fedslice.privacy.ring import Elements, Ring
from fedslice.privacy.secagg.graph import COMPLETE, Graph, complete, sparse

COMMITMENT = 16  # bytes
SECRETS = 2  # of a client: the seed of its own mask, and the key of its masks with others
SEED_SECRET, KEY_SECRET = range(SECRETS)
KEY, SHARE, TAG, SIGNATURE = 32, 36, 16, 64  # bytes
SEALED = SECRETS * SHARE + TAG
SETUP_BYTES = 16 + 4 + 4 + 4 + 8  # session, size, degree, threshold, seed of the graph


class Aborted(UserError):
    """A secure sum that ends without a result, because too few clients remain or some did not keep to the protocol."""

    @classmethod
    def of(cls, setup: Setup, reason: str) -> Aborted:
        """Return the error with its sentence."""
        return cls(f"secure aggregation of round {setup.round} ended without a sum: {reason}.")


@dataclass(frozen=True)
class Vector:
    """One of the vectors that are summed.

    Args:
        ring: The ring of its elements.
        length: Number of elements.
    """

    ring: Ring
    length: int


@dataclass(frozen=True)
class Setup:
    """The facts about a secure sum that both sides know.

    Args:
        round: The round that it belongs to.
        session: 16 bytes that are different for every sum.
        graph: The cohort and its neighbours.
        threshold: Number of shares that combine a client's secret, of those that the client and its neighbours hold.
        vectors: The vectors that are summed, by name.
        identities: The clients' public keys for signatures [size], if advertised keys are signed. They must not come
            from the server of this sum.
    """

    round: int
    session: bytes
    graph: Graph
    threshold: int
    vectors: Mapping[str, Vector]
    identities: tuple[bytes, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.session) != 16:
            raise UserError(f"a session has {len(self.session)} bytes, expected 16.")
        holders = self.graph.degree + 1
        if not holders // 2 < self.threshold <= holders or self.threshold < 2:
            raise UserError(
                f"threshold {self.threshold} of {holders} holders of a secret is not safe; expected more than half of "
                "them, at least 2, at most all.",
                ["threshold"],
            )
        if self.signed and not self.graph.complete:
            raise UserError("signed keys need the complete graph: else the server could choose a client's neighbours.")
        if self.identities is not None and len(set(self.identities)) != self.size:
            raise UserError(f"{len(set(self.identities))} different identities for {self.size} clients.")

    @property
    def size(self) -> int:
        """Number of clients."""
        return self.graph.size

    @property
    def signed(self) -> bool:
        """True if keys are signed and the check of the survivors takes place."""
        return self.identities is not None

    @cached_property
    def context(self) -> bytes:
        """A digest that goes into every key, sealed text, commitment and signature of this sum."""
        text = struct.pack("<16sqqqq", self.session, self.round, self.size, self.graph.degree, self.threshold)
        for name, vector in self.vectors.items():
            text += struct.pack("<qqq", len(name.encode()), vector.ring.bits, vector.length) + name.encode()
        return hashlib.sha256(text + b"".join(self.identities or ())).digest()

    def commit(self, secret: int, owner: int, holder: int, share: bytes) -> bytes:
        """Return the digest by which the server recognises a share, or a seed (which its own client holds)."""
        place = struct.pack("<bqq", secret, owner, holder)
        return hashlib.sha256(self.context + place + share).digest()[:COMMITMENT]

    def key_text(self, client: int, mask_key: bytes, channel_key: bytes) -> bytes:
        """Return what a client signs when it advertises its keys."""
        return self.context + b"keys" + struct.pack("<q", client) + mask_key + channel_key

    def survivor_text(self, flags: NDArray[np.bool_]) -> bytes:
        """Return what a client signs when it is told whose vectors arrived."""
        return self.context + b"survivors" + np.packbits(flags).tobytes()


def make_setup(
    round: int,
    session: bytes,
    size: int,
    vectors: Mapping[str, Vector],
    threshold: int | None = None,
    corrupt: float = 0.1,
    lost: float = 0.1,
    everyone: bool = False,
    identities: tuple[bytes, ...] | None = None,
) -> Setup:
    """Return the setup of a cohort: all pairs up to a hundred clients, a sparse graph above.

    Args:
        round: The round.
        session: 16 bytes that are different for every sum.
        size: Number of clients.
        vectors: The vectors that are summed, by name.
        threshold: Clients that must remain, if everyone is a neighbour of everyone; by default more than half.
        corrupt: Largest share of clients that collude with the server, for the sparse graph.
        lost: Largest share of clients that are lost, for the sparse graph.
        everyone: Whether everyone is a neighbour of everyone in larger cohorts too.
        identities: Keys for signatures, which need everyone too.
    """
    if size <= COMPLETE or everyone or identities is not None or threshold is not None:
        graph, needed = complete(size, threshold)
    else:
        graph, needed = sparse(size, int.from_bytes(session[:7], "little"), corrupt, lost)
    return Setup(round, session, graph, needed, vectors, identities)


@dataclass(frozen=True)
class Keys:
    """The public keys of a client, for the server."""

    context: bytes
    client: int
    mask_key: bytes
    channel_key: bytes
    signature: bytes = b""

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return 2 * KEY + len(self.signature)


@dataclass(frozen=True)
class Roster:
    """The public keys of a client's neighbours that advertised some, for the client."""

    context: bytes
    present: NDArray[np.bool_]  # [neighbours]
    mask_keys: tuple[bytes, ...]  # of those present
    channel_keys: tuple[bytes, ...]
    signatures: tuple[bytes, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return flag_bytes(len(self.present)) + len(self.mask_keys) * 2 * KEY + len(self.signatures) * SIGNATURE


@dataclass(frozen=True)
class Shares:
    """The shares of a client's secrets, sealed for its neighbours, with digests of all of them, for the server."""

    context: bytes
    client: int
    sealed: NDArray[np.uint8]  # [neighbours present, SEALED]
    commitments: NDArray[np.uint8]  # [2, 1 + neighbours present, 16], the client's own share first
    seed_commitment: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return self.sealed.nbytes + self.commitments.nbytes + COMMITMENT


@dataclass(frozen=True)
class Delivery:
    """The sealed shares that neighbours made for a client, for the client."""

    context: bytes
    present: NDArray[np.bool_]  # [neighbours of the roster]
    sealed: NDArray[np.uint8]  # [those present, SEALED]

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return flag_bytes(len(self.present)) + self.sealed.nbytes


@dataclass(frozen=True)
class Masked:
    """The vectors of a client under masks, for the server."""

    context: bytes
    client: int
    vectors: Mapping[str, Elements]
    rings: Mapping[str, Ring]

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return sum(self.rings[name].size(len(vector)) for name, vector in self.vectors.items())


@dataclass(frozen=True)
class Survivors:
    """The clients whose vectors arrived, for these clients."""

    context: bytes
    flags: NDArray[np.bool_]  # [size]

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return flag_bytes(len(self.flags))


@dataclass(frozen=True)
class Check:
    """The signature of a client under the survivors, for the server."""

    context: bytes
    client: int
    signature: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return SIGNATURE


@dataclass(frozen=True)
class Agreement:
    """The signatures of the survivors, for these clients."""

    context: bytes
    present: NDArray[np.bool_]  # [size]
    signatures: tuple[bytes, ...]  # of those present

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return flag_bytes(len(self.present)) + len(self.signatures) * SIGNATURE


@dataclass(frozen=True)
class Revealed:
    """A share for the client itself and for each neighbour whose shares were delivered, for the server.

    It is a share of the seed if the owner's vector arrived, else of its key.
    """

    context: bytes
    client: int
    present: NDArray[np.bool_]  # [1 + neighbours of the delivery], false where the sealed shares were no shares
    shares: NDArray[np.uint32]  # [those present, 9]

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return flag_bytes(len(self.present)) + self.shares.nbytes


def too_few(setup: Setup, count: int, did: str) -> Aborted:
    """Return the error for too few clients."""
    return Aborted.of(setup, f"{count} clients {did}, {setup.threshold} are needed")


def too_few_near(setup: Setup, client: int, count: int, did: str) -> Aborted:
    """Return the error for a client with too few neighbours."""
    return Aborted.of(setup, f"{count} around client {client} of the cohort {did}, {setup.threshold} are needed")


def too_few_shares(setup: Setup, owner: int, count: int) -> Aborted:
    """Return the error for a secret that cannot be combined."""
    needed = setup.threshold
    return Aborted.of(setup, f"{count} clients revealed a share for client {owner} of the cohort, {needed} are needed")


Number = TypeVar("Number", int, NDArray[np.int64])


def flag_bytes(count: Number) -> Number:
    """Bytes of this many flags."""
    return (count + 7) // 8
