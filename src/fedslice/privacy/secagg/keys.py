"""Keys of one secure sum: agreement (X25519, HKDF), sealed shares (ChaCha20-Poly1305), signatures (Ed25519).

All keys of agreement are made for one sum and thrown away after it.
"""

from __future__ import annotations

from fedslice.core.errors import Refused
from fedslice.privacy.secagg.library import (
    HKDF,
    SHA256,
    ChaCha20Poly1305,
    Ed25519PrivateKey,
    Ed25519PublicKey,
    InvalidSignature,
    InvalidTag,
    X25519PrivateKey,
    X25519PublicKey,
)

KEY = 32  # bytes of a public or secret key, and of a seed
TAG = 16  # bytes by which a sealed text is longer
SIGNATURE = 64  # bytes


class KeyPair:
    """A pair of X25519 keys.

    Args:
        secret: 32 uniform bytes; the pair follows from them.
    """

    def __init__(self, secret: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def agree(self, public: bytes, context: bytes) -> bytes:
        """Return the 32 bytes that only the holders of both secret keys can compute, different for each context.

        Raises:
            Refused: If ``public`` is no key, or a point of low order, with which the result would be known to everyone.
        """
        if len(public) != KEY:
            raise Refused(f"has a public key of {len(public)} bytes, expected {KEY}")
        try:
            point = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise Refused("has a public key of low order") from None
        return derive(point, context)


def derive(secret: bytes, context: bytes, length: int = KEY) -> bytes:
    """Return bytes that follow from a secret and tell nothing about it or about those of another context."""
    key: bytes = HKDF(SHA256(), length, None, context).derive(secret)
    return key


def seal(key: bytes, sender: int, text: bytes, context: bytes) -> bytes:
    """Return a text encrypted and authenticated. A key seals one text per sender."""
    sealed: bytes = ChaCha20Poly1305(key).encrypt(sender.to_bytes(12, "little"), text, context)
    return sealed


def unseal(key: bytes, sender: int, sealed: bytes, context: bytes) -> bytes:
    """Return what :func:`seal` was given.

    Raises:
        Refused: If key, sender or context differ, or the text was changed.
    """
    try:
        text: bytes = ChaCha20Poly1305(key).decrypt(sender.to_bytes(12, "little"), sealed, context)
    except InvalidTag:
        raise Refused("has a sealed text that was not sealed for this client in this sum") from None
    return text


class Signer:
    """A client's lasting key for signatures.

    Args:
        secret: 32 uniform bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(secret)
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text."""
        signature: bytes = self._private.sign(text)
        return signature


def check_signature(public: bytes, signature: bytes, text: bytes) -> None:
    """Check that the holder of a public key signed a text.

    Raises:
        Refused: If not.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        raise Refused("has a signature that its key does not verify") from None
