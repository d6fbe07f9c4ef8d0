"""The client of a secure sum, as a machine: each method takes the server's message and returns the client's next."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fedslice.core.errors import Refused
from fedslice.privacy.ring import Elements
from fedslice.privacy.secagg import messages, prg, shares
from fedslice.privacy.secagg.keys import KEY, KeyPair, Signer, check_signature, derive, seal, unseal
from fedslice.privacy.secagg.messages import KEY_SECRET, SEED_SECRET, Setup
from fedslice.privacy.secagg.shares import Entropy


class Step(IntEnum):
    """The next thing that a client does."""

    ADVERTISE = 0
    SHARE = 1
    MASK = 2
    CHECK = 3
    REVEAL = 4
    OVER = 5


class Client:
    """One client in one secure sum.

    Each method may be called once, in the order of the phases. A message that is not what the protocol says is refused,
    and the machine stays where it was.

    Args:
        setup: The facts that both sides know.
        client: Its position in the cohort.
        signer: Its key for signatures, if keys are signed.
        entropy: A source of uniform bytes that nobody else knows.

    Example:
        >>> client = Client(setup, 3)
        >>> keys = client.advertise()  # then share(roster), mask(delivery, vectors), reveal(survivors)
    """

    def __init__(
        self, setup: Setup, client: int, signer: Signer | None = None, entropy: Entropy = secrets.token_bytes
    ) -> None:
        if not 0 <= client < setup.size:
            raise Refused(f"names client {client} in a cohort of {setup.size}")
        if setup.identities is not None and (signer is None or signer.public != setup.identities[client]):
            raise Refused(f"names another identity for client {client}")
        self.setup, self.client = setup, client
        self._signer, self._entropy = signer, entropy
        self._step = Step.ADVERTISE
        self._around = setup.graph.neighbours(client)  # who could be a neighbour; later who is one
        self._mask_secret = entropy(KEY)
        self._mask_pair, self._channel_pair = KeyPair(self._mask_secret), KeyPair(entropy(KEY))
        self._seed = entropy(KEY)
        self._mask_keys: dict[int, bytes] = {}
        self._channels: dict[int, bytes] = {}
        self._held: dict[int, NDArray[np.uint32]] = {}  # shares [2, 9] by owner
        self._survivors: NDArray[np.bool_] | None = None

    def advertise(self) -> messages.Keys:
        """Return the client's public keys."""
        self._enter(Step.ADVERTISE, self.setup.context)
        mask, channel = self._mask_pair.public, self._channel_pair.public
        text = self.setup.key_text(self.client, mask, channel)
        signature = b"" if self._signer is None else self._signer.sign(text)
        self._step = Step.SHARE
        return messages.Keys(self.setup.context, self.client, mask, channel, signature)

    def share(self, roster: messages.Roster) -> messages.Shares:
        """Return shares of the client's two secrets, sealed for each neighbour of the roster."""
        self._enter(Step.SHARE, roster.context)
        here = self._present(roster.present, self._around)
        if not len(here) == len(roster.mask_keys) == len(roster.channel_keys):
            raise Refused(f"has keys of {len(roster.mask_keys)} neighbours and names {len(here)}")
        self._enough(1 + len(here), "advertised keys")
        keys = [self._mask_pair.public, self._channel_pair.public, *roster.mask_keys, *roster.channel_keys]
        if len(set(keys)) != len(keys):
            raise Refused("has the same public key twice")
        self._check_keys(roster, here)
        context = self.setup.context
        channels = {
            int(v): self._channel_pair.agree(key, context + b"channel")
            for v, key in zip(here, roster.channel_keys, strict=True)
        }
        masks = {
            int(v): self._mask_pair.agree(key, context + b"mask")[: prg.SEED]
            for v, key in zip(here, roster.mask_keys, strict=True)
        }
        holders = np.concatenate([[self.client], here])
        made = shares.split([self._seed, self._mask_secret], holders + 1, self.setup.threshold, self._entropy)
        texts = [one.astype("<u4").tobytes() for one in made]
        sealed = [
            seal(channels[int(v)], self.client, text, self._envelope(self.client, int(v)))
            for v, text in zip(here, texts[1:], strict=True)
        ]
        commitments = [
            self.setup.commit(secret, self.client, int(holder), text[secret * shares.SHARE :][: shares.SHARE])
            for secret in (SEED_SECRET, KEY_SECRET)
            for holder, text in zip(holders, texts, strict=True)
        ]
        self._channels, self._mask_keys, self._around = channels, masks, here
        self._held[self.client] = made[0]
        self._step = Step.MASK
        return messages.Shares(
            context,
            self.client,
            _rows(sealed, messages.SEALED),
            _rows(commitments, messages.COMMITMENT).reshape(messages.SECRETS, len(holders), -1),
            self.setup.commit(SEED_SECRET, self.client, self.client, self._seed),
        )

    def mask(self, delivery: messages.Delivery, vectors: Mapping[str, Elements]) -> messages.Masked:
        """Return the client's vectors with its own mask and those with its neighbours.

        Args:
            delivery: The shares that neighbours sealed for this client. Those that cannot be opened are left out when
                shares are revealed; masks with their senders are added all the same.
            vectors: Elements [length] of each vector's ring, by name.
        """
        self._enter(Step.MASK, delivery.context)
        here = self._present(delivery.present, self._around)
        if delivery.sealed.shape != (len(here), messages.SEALED):
            raise Refused(f"has sealed shares of shape {delivery.sealed.shape} from {len(here)} neighbours")
        self._enough(1 + len(here), "shared their secrets")
        totals = self._copies(vectors)
        held = dict(self._held)
        for v, sealed in zip(here.tolist(), delivery.sealed, strict=True):
            try:
                text = unseal(self._channels[v], v, sealed.tobytes(), self._envelope(v, self.client))
            except Refused:
                continue
            held[v] = np.frombuffer(text, "<u4").astype(np.uint32).reshape(messages.SECRETS, shares.LIMBS)
        streams = [(own_mask_key(self._seed), 1)]
        streams += [(self._mask_keys[v], sign(self.client, v)) for v in here.tolist()]
        prg.add_streams(dict(enumerate(totals.values())), streams)
        rings = {name: vector.ring for name, vector in self.setup.vectors.items()}
        masked = {name: rings[name].reduce(total) for name, total in totals.items()}
        self._held, self._around = held, here
        self._step = Step.CHECK if self.setup.signed else Step.REVEAL
        return messages.Masked(self.setup.context, self.client, masked, rings)

    def check(self, survivors: messages.Survivors) -> messages.Check:
        """Return the client's signature of whose vectors arrived."""
        self._enter(Step.CHECK, survivors.context)
        self._plausible(survivors.flags)
        assert self._signer is not None
        signature = self._signer.sign(self.setup.survivor_text(survivors.flags))
        self._survivors = survivors.flags.copy()
        self._step = Step.REVEAL
        return messages.Check(self.setup.context, self.client, signature)

    def reveal(self, survivors: messages.Survivors, agreement: messages.Agreement | None = None) -> messages.Revealed:
        """Return for each client one share: of its seed if its vector arrived, else of its key.

        It is answered once. A server that was told another set of survivors before is refused, because both shares of
        one client would give its vector away.

        Args:
            survivors: The clients whose vectors arrived.
            agreement: The other survivors' signatures of this, if keys are signed.
        """
        self._enter(Step.REVEAL, survivors.context)
        self._plausible(survivors.flags)
        if self.setup.signed:
            self._agreed(survivors.flags, agreement)
        owners = [self.client, *self._around.tolist()]
        present = np.array([owner in self._held for owner in owners])
        kinds = np.where(survivors.flags[owners], SEED_SECRET, KEY_SECRET)
        given = [self._held[v][kind] for v, kind in zip(owners, kinds, strict=True) if v in self._held]
        self._survivors = survivors.flags.copy()
        self._step = Step.OVER
        self._held.clear()
        return messages.Revealed(self.setup.context, self.client, present, np.stack(given))

    def channel(self, neighbour: int, purpose: bytes) -> bytes:
        """Return a secret of this client and a neighbour that no share reveals."""
        return derive(self._channels[neighbour], self.setup.context + purpose)

    @property
    def neighbours(self) -> NDArray[np.int64]:
        """The neighbours that take part, as far as the server has told."""
        return self._around

    @property
    def seed(self) -> bytes:
        """The secret that the server learns if the client's vectors arrive."""
        return self._seed

    @property
    def survivors(self) -> NDArray[np.bool_] | None:
        """Flags of the clients whose vectors arrived [size], once this client has revealed its shares."""
        return self._survivors if self._step == Step.OVER else None

    def _enter(self, step: Step, context: bytes) -> None:
        if self._step != step:
            raise Refused(f"asks client {self.client} for {step.name.lower()}, expected {self._step.name.lower()}")
        if context != self.setup.context:
            raise Refused("belongs to another sum")

    def _present(self, flags: NDArray[np.bool_], among: NDArray[np.int64]) -> NDArray[np.int64]:
        if flags.shape != among.shape or flags.dtype != np.bool_:
            raise Refused(f"has flags of shape {flags.shape}, expected {among.shape}")
        return among[flags]

    def _enough(self, count: int, did: str) -> None:
        if count < self.setup.threshold:
            raise Refused(f"says that {count} neighbours {did}, expected {self.setup.threshold} at least")

    def _check_keys(self, roster: messages.Roster, here: NDArray[np.int64]) -> None:
        if self.setup.identities is None:
            return
        if len(roster.signatures) != len(here):
            raise Refused(f"has {len(roster.signatures)} signatures of {len(here)} neighbours")
        for v, mask, channel, signature in zip(
            here.tolist(), roster.mask_keys, roster.channel_keys, roster.signatures, strict=True
        ):
            check_signature(self.setup.identities[v], signature, self.setup.key_text(v, mask, channel))

    def _copies(self, vectors: Mapping[str, Elements]) -> dict[str, Elements]:
        """The vectors in the setup's order, to be changed in place."""
        if vectors.keys() != self.setup.vectors.keys():
            raise ValueError(f"vectors {sorted(vectors)}, expected {sorted(self.setup.vectors)}")
        for name, declared in self.setup.vectors.items():
            if vectors[name].shape != (declared.length,) or vectors[name].dtype != declared.ring.dtype:
                raise ValueError(f"vector {name!r} has another shape or type than it was declared with")
        return {name: vectors[name].copy() for name in self.setup.vectors}

    def _plausible(self, flags: NDArray[np.bool_]) -> None:
        """Check that survivors can be the survivors."""
        if flags.shape != (self.setup.size,) or flags.dtype != np.bool_:
            raise Refused(f"has flags of shape {flags.shape}, expected ({self.setup.size},)")
        if self._survivors is not None and not np.array_equal(self._survivors, flags):
            raise Refused("names other survivors than before")
        if not flags[self.client]:
            raise Refused(f"asks client {self.client}, whose vector it says is lost")
        others = np.setdiff1d(self.setup.graph.neighbours(self.client), self._around)
        if flags[others].any():
            raise Refused(f"names client {others[flags[others]][0]}, whose shares were not delivered")
        self._enough(1 + int(flags[self._around].sum()), "survive")

    def _agreed(self, flags: NDArray[np.bool_], agreement: messages.Agreement | None) -> None:
        """Check that enough clients were told of the same survivors."""
        if agreement is None or agreement.context != self.setup.context:
            raise Refused("comes without the survivors' signatures")
        signers = self._present(agreement.present, np.arange(self.setup.size))
        if len(signers) != len(agreement.signatures) or not flags[signers].all():
            raise Refused("has signatures of clients that do not survive")
        assert self.setup.identities is not None
        for v, signature in zip(signers.tolist(), agreement.signatures, strict=True):
            check_signature(self.setup.identities[v], signature, self.setup.survivor_text(flags))
        self._enough(len(signers), "signed the survivors")

    def _envelope(self, sender: int, receiver: int) -> bytes:
        return self.setup.context + sender.to_bytes(8, "little") + receiver.to_bytes(8, "little")


def own_mask_key(seed: bytes) -> bytes:
    """Return the key of a client's own mask."""
    return derive(seed, b"own mask", prg.SEED)


def sign(client: int, neighbour: int) -> int:
    """Return the sign with which a client adds its mask with a neighbour; the neighbour's is the opposite."""
    return 1 if client < neighbour else -1


def _rows(texts: list[bytes], width: int) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), width)
