"""The names that the protocol takes from the package ``cryptography``, which is an extra."""

from fedslice.core.errors import UserError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise UserError("secure aggregation needs the package 'cryptography': pip install 'fedslice[privacy]'.") from None

__all__ = [
    "AES",
    "CTR",
    "ECB",
    "HKDF",
    "SHA256",
    "ChaCha20Poly1305",
    "Cipher",
    "Ed25519PrivateKey",
    "Ed25519PublicKey",
    "InvalidSignature",
    "InvalidTag",
    "X25519PrivateKey",
    "X25519PublicKey",
]
