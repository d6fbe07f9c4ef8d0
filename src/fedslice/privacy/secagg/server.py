"""The server of a secure sum, as a machine: it takes clients' messages one by one, and closes a phase when told to.

A client whose message does not come before its phase is closed, or is refused, is lost to the sum from then on.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from fedslice.core.errors import Refused
from fedslice.privacy.ring import Elements
from fedslice.privacy.secagg import messages, prg, shares
from fedslice.privacy.secagg.client import own_mask_key, sign
from fedslice.privacy.secagg.keys import KEY, SIGNATURE, KeyPair, check_signature
from fedslice.privacy.secagg.messages import KEY_SECRET, SEED_SECRET, Aborted, Setup


class Server:
    """The server of one secure sum.

    Args:
        setup: The facts that both sides know.
        threads: Threads that take masks off at the end.

    Example:
        >>> server = Server(setup)
        >>> for message in keys:
        ...     server.take_keys(message)  # raises Refused for a message that is not what it should be
        >>> rosters = server.close_keys()  # by client; raises Aborted if too few are left
    """

    def __init__(self, setup: Setup, threads: int = 1) -> None:
        self.setup, self._threads = setup, threads
        self._phase: type | None = messages.Keys
        self._live = np.ones(setup.size, dtype=np.bool_)  # whose messages of all closed phases were taken
        self._arrived = np.zeros(setup.size, dtype=np.bool_)  # in the open phase
        self._around = [setup.graph.neighbours(client) for client in range(setup.size)]  # those asked, phase by phase
        self._keys: dict[int, messages.Keys] = {}
        self._advertised: set[bytes] = set()
        self._shares: dict[int, messages.Shares] = {}
        self._holders: dict[int, NDArray[np.int64]] = {}  # of a client's shares: itself, then its roster
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, messages.Revealed] = {}
        self._sharers = self._survivors = self._arrived
        self._totals = {name: vector.ring.zeros(vector.length) for name, vector in setup.vectors.items()}
        self._probe = KeyPair(secrets.token_bytes(KEY))
        self._seeds: dict[int, bytes] = {}

    # --- keys ---

    def take_keys(self, message: messages.Keys) -> None:
        """Take a client's public keys."""
        client = self._expect(message)
        for key in (message.mask_key, message.channel_key):
            self._probe.agree(key, b"")  # refuses what is no key, or of low order
        own = {message.mask_key, message.channel_key}
        if len(own) < 2 or own & self._advertised:
            raise Refused("has a public key that was advertised before")
        if self.setup.identities is None:
            if message.signature:
                raise Refused("has a signature where none is expected")
        else:
            text = self.setup.key_text(client, message.mask_key, message.channel_key)
            check_signature(self.setup.identities[client], message.signature, text)
        self._keys[client] = message
        self._advertised |= own
        self._arrived[client] = True

    def close_keys(self) -> dict[int, messages.Roster]:
        """Return for each client the keys of its neighbours."""
        self._close(messages.Keys, messages.Shares, "advertised keys")
        return {client: self._roster(client) for client in np.flatnonzero(self._live).tolist()}

    def _roster(self, client: int) -> messages.Roster:
        around = self._around[client]
        present = self._live[around]
        found = [self._keys[v] for v in around[present].tolist()]
        self._around[client] = around[present]
        self._holders[client] = np.concatenate([[client], around[present]])
        return messages.Roster(
            self.setup.context,
            present,
            tuple(one.mask_key for one in found),
            tuple(one.channel_key for one in found),
            tuple(one.signature for one in found) if self.setup.signed else (),
        )

    # --- shares ---

    def take_shares(self, message: messages.Shares) -> None:
        """Take a client's sealed shares."""
        client = self._expect(message)
        count = len(self._around[client])
        expected = {
            "sealed": (message.sealed, (count, messages.SEALED)),
            "commitments": (message.commitments, (messages.SECRETS, 1 + count, messages.COMMITMENT)),
        }
        for name, (array, shape) in expected.items():
            if array.shape != shape or array.dtype != np.uint8:
                raise Refused(f"has {name} of shape {array.shape}, expected {shape}")
        if len(message.seed_commitment) != messages.COMMITMENT:
            raise Refused(f"has a digest of {len(message.seed_commitment)} bytes, expected {messages.COMMITMENT}")
        self._shares[client] = message
        self._arrived[client] = True

    def close_shares(self) -> dict[int, messages.Delivery]:
        """Return for each client what its neighbours sealed for it."""
        self._close(messages.Shares, messages.Masked, "shared their secrets")
        self._sharers = self._live.copy()
        place = {  # of a client in the sealed shares of each of its neighbours
            sender: {int(v): at for at, v in enumerate(self._around[sender])} for sender in self._shares
        }
        deliveries = {}
        for client in np.flatnonzero(self._live).tolist():
            around = self._around[client]
            present = self._live[around]
            senders = around[present]
            sealed = [self._shares[v].sealed[place[v][client]] for v in senders.tolist()]
            deliveries[client] = messages.Delivery(
                self.setup.context, present, np.array(sealed, np.uint8).reshape(len(sealed), messages.SEALED)
            )
        for client in deliveries:
            self._around[client] = self._around[client][deliveries[client].present]
        return deliveries

    # --- masked vectors ---

    def take_masked(self, message: messages.Masked) -> None:
        """Add a client's masked vectors to the sum."""
        client = self._expect(message)
        if message.vectors.keys() != self.setup.vectors.keys():
            raise Refused(f"has vectors {sorted(message.vectors)}, expected {sorted(self.setup.vectors)}")
        for name, declared in self.setup.vectors.items():
            vector = message.vectors[name]
            if vector.shape != (declared.length,) or vector.dtype != declared.ring.dtype:
                raise Refused(f"has a vector {name!r} of shape {vector.shape}, expected ({declared.length},)")
            if vector.size and int(vector.max()) > declared.ring.largest:
                raise Refused(f"has a vector {name!r} with elements of more than {declared.ring.bits} bits")
        for name, total in self._totals.items():
            np.add(total, message.vectors[name], out=total)
        self._arrived[client] = True

    def close_masked(self) -> messages.Survivors:
        """Return whose vectors arrived: the same message for every one of them."""
        self._close(messages.Masked, messages.Check if self.setup.signed else messages.Revealed, "sent their vectors")
        self._survivors = self._live.copy()
        for client in np.flatnonzero(self._survivors):
            self._remaining(int(client), "sent their vectors")
        return messages.Survivors(self.setup.context, self._survivors.copy())

    # --- the survivors, signed ---

    def take_check(self, message: messages.Check) -> None:
        """Take a client's signature of the survivors."""
        client = self._expect(message)
        assert self.setup.identities is not None
        if len(message.signature) != SIGNATURE:
            raise Refused(f"has a signature of {len(message.signature)} bytes, expected {SIGNATURE}")
        check_signature(self.setup.identities[client], message.signature, self.setup.survivor_text(self._survivors))
        self._signatures[client] = message.signature
        self._arrived[client] = True

    def close_check(self) -> messages.Agreement:
        """Return the signatures: the same message for every client that sent one."""
        self._close(messages.Check, messages.Revealed, "signed the survivors")
        signers = np.flatnonzero(self._live)
        return messages.Agreement(
            self.setup.context, self._live.copy(), tuple(self._signatures[int(v)] for v in signers)
        )

    # --- the sum ---

    def take_revealed(self, message: messages.Revealed) -> None:
        """Take a client's shares of others' secrets."""
        client = self._expect(message)
        owners = np.concatenate([[client], self._around[client]])
        if message.present.shape != owners.shape or message.present.dtype != np.bool_:
            raise Refused(f"has flags of shape {message.present.shape}, expected {owners.shape}")
        shape = (int(message.present.sum()), shares.LIMBS)
        if message.shares.shape != shape or message.shares.dtype != np.uint32:
            raise Refused(f"has shares of shape {message.shares.shape}, expected {shape}")
        for owner, share in zip(owners[message.present].tolist(), message.shares, strict=True):
            kind = SEED_SECRET if self._survivors[owner] else KEY_SECRET
            at = int(np.flatnonzero(self._holders[owner] == client)[0])
            digest = self.setup.commit(kind, owner, client, share.astype("<u4").tobytes())
            if digest != self._shares[owner].commitments[kind, at].tobytes():
                raise Refused(f"has a share of client {owner}'s secret that client {owner} did not make")
        self._revealed[client] = message
        self._arrived[client] = True

    def finish(self) -> dict[str, Elements]:
        """Return the sums of the survivors' vectors.

        Raises:
            Aborted: If some secret has too few shares.
        """
        self._close(messages.Revealed, None, "revealed shares")
        seeds, keys = self._combined()
        self._seeds = seeds
        streams = [(own_mask_key(seed), -1) for seed in seeds.values()]
        for lost, pair in keys.items():
            alive = self._around[lost][self._survivors[self._around[lost]]]
            for v in alive.tolist():
                key = pair.agree(self._keys[v].mask_key, self.setup.context + b"mask")[: prg.SEED]
                streams.append((key, -sign(v, lost)))
        self._unmask(streams)
        return {name: vector.ring.reduce(self._totals[name]) for name, vector in self.setup.vectors.items()}

    @property
    def survivors(self) -> NDArray[np.int64]:
        """The clients whose vectors are in the sum, once the vectors are closed."""
        return np.flatnonzero(self._survivors)

    @property
    def sharers(self) -> NDArray[np.int64]:
        """The clients whose shares were taken, once they are closed."""
        return np.flatnonzero(self._sharers)

    @property
    def live(self) -> NDArray[np.bool_]:
        """Flags of the clients whose messages of all closed phases were taken [size]."""
        return self._live

    @property
    def seeds(self) -> dict[int, bytes]:
        """The survivors' secrets, once the sum is known."""
        return self._seeds

    def _combined(self) -> tuple[dict[int, bytes], dict[int, KeyPair]]:
        """Return the seeds of the clients whose vectors arrived, and the keys of those lost before."""
        given: dict[int, tuple[list[int], list[NDArray[np.uint32]]]] = {}
        for client, message in self._revealed.items():
            owners = np.concatenate([[client], self._around[client]])[message.present]
            for owner, share in zip(owners.tolist(), message.shares, strict=True):
                points, found = given.setdefault(owner, ([], []))
                points.append(client + 1)
                found.append(share)
        alike: dict[tuple[int, ...], list[int]] = {}  # owners by the holders of the shares that are used
        for owner in np.flatnonzero(self._sharers).tolist():
            if not self._survivors[owner] and not self._survivors[self._around[owner]].any():
                continue  # nobody in the sum has a mask with it
            points, _ = given.get(owner, ([], []))
            if len(points) < self.setup.threshold:
                raise messages.too_few_shares(self.setup, owner, len(points))
            alike.setdefault(tuple(points[: self.setup.threshold]), []).append(owner)
        seeds, keys = {}, {}
        for holders, alike_owners in alike.items():
            stacked = np.stack([np.stack(given[owner][1][: self.setup.threshold]) for owner in alike_owners], axis=1)
            for owner, secret in zip(alike_owners, shares.combine(np.array(holders), stacked), strict=True):
                if self._survivors[owner]:
                    seeds[owner] = self._true_seed(owner, secret)
                else:
                    keys[owner] = self._true_pair(owner, secret)
        return seeds, keys

    def _true_seed(self, owner: int, secret: bytes | None) -> bytes:
        if (
            secret is None
            or self.setup.commit(SEED_SECRET, owner, owner, secret) != self._shares[owner].seed_commitment
        ):
            raise self._dishonest(owner)
        return secret

    def _true_pair(self, owner: int, secret: bytes | None) -> KeyPair:
        pair = None if secret is None else KeyPair(secret)
        if pair is None or pair.public != self._keys[owner].mask_key:
            raise self._dishonest(owner)
        return pair

    def _dishonest(self, owner: int) -> Aborted:
        return Aborted.of(self.setup, f"client {owner} of the cohort shared another secret than the one it uses")

    def _unmask(self, streams: list[tuple[bytes, int]]) -> None:
        """Add streams to the sum, on threads with sums of their own."""
        if self._threads < 2 or len(streams) < 2:
            prg.add_streams(dict(enumerate(self._totals.values())), streams)
            return

        def part(first: int) -> list[Elements]:
            own = [vector.ring.zeros(vector.length) for vector in self.setup.vectors.values()]
            prg.add_streams(dict(enumerate(own)), streams[first :: self._threads])
            return own

        with ThreadPoolExecutor(self._threads) as pool:
            for own in pool.map(part, range(self._threads)):
                for total, added in zip(self._totals.values(), own, strict=True):
                    np.add(total, added, out=total)

    # --- phases ---

    def _expect(
        self, message: messages.Keys | messages.Shares | messages.Masked | messages.Check | messages.Revealed
    ) -> int:
        """Check that a message belongs here, and return its client."""
        if type(message) is not self._phase:
            expected = "nothing" if self._phase is None else self._phase.__name__.lower()
            raise Refused(f"is {type(message).__name__.lower()}, expected {expected}")
        if message.context != self.setup.context:
            raise Refused("belongs to another sum")
        if not 0 <= message.client < self.setup.size or not self._live[message.client]:
            raise Refused(f"comes from client {message.client}, which does not take part")
        if self._arrived[message.client]:
            raise Refused(f"comes from client {message.client} again")
        return message.client

    def _close(self, phase: type, following: type | None, did: str) -> None:
        if self._phase is not phase:
            raise ValueError(f"the open phase is not that of {phase.__name__.lower()}")
        self._live = self._arrived
        if phase in (messages.Keys, messages.Shares):
            self._leave_out()
        if int(self._live.sum()) < self.setup.threshold:
            raise messages.too_few(self.setup, int(self._live.sum()), did)
        self._arrived = np.zeros_like(self._live)
        self._phase = following

    def _leave_out(self) -> None:
        """Go on without clients of which too few neighbours are left: what they sent would have to stay closed."""
        while True:
            few = [
                client
                for client in np.flatnonzero(self._live).tolist()
                if 1 + int(self._live[self._around[client]].sum()) < self.setup.threshold
            ]
            if not few:
                return
            self._live[few] = False

    def _remaining(self, client: int, did: str) -> None:
        count = 1 + int(self._live[self._around[client]].sum())
        if count < self.setup.threshold:
            raise messages.too_few_near(self.setup, client, count, did)
