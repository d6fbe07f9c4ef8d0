"""The header of every message: its purpose, its round, its client, and the numbers that vary.

A header is the same for all recipes, so it is read before anything is known of the body.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from fedslice.core.errors import Refused

# What stands at the beginning of every message, see Header: how it is packed, and what it says.
HEADER = {
    "magic": ("2s", "that this is a message"),
    "version": ("B", "of the form of messages"),
    "kind": ("B", "what the message is for"),
    "schema": ("8s", "a digest of recipe and model"),
    "round": ("i", "the round that it belongs to"),
    "client": ("Q", "the client's number"),
    "draw": ("H", "which of the client's appearances in the round"),
    "model_round": ("i", "up: the last round whose download the client kept"),
    "upload_round": ("i", "the last round whose upload was taken, as far as the sender knows"),
    "layout": ("I", "which set of fields the round has"),
    "declined": ("B", "whether the client has no update, because it is not finite, or no part in a sum"),
    "numbers": ("H", "how many numbers of varying entries follow"),
}
_HEADER = struct.Struct("<" + "".join(code for code, _ in HEADER.values()))
HEADER_BYTES = _HEADER.size
_MAGIC = b"fs"
NUMBER = 8  # bytes of a number that varies
VERSION = 1


class Kind(IntEnum):
    """The purpose of a message."""

    HELLO = 1  # client: its number, if it has one
    WELCOME = 2  # server: the client's number and the shared seed; asks for facts
    ENROL = 3  # client: facts that some part declares
    INVITE = 4  # server: a round, and which upload was taken last
    REQUEST = 5  # client: which coordinates, and which rounds it has seen
    DOWNLOAD = 6  # server: values, and what parts send besides
    UPLOAD = 7  # client: codes, and what parts report
    LEAVE = 8  # client: takes its facts back
    EXAMINE = 9  # server: asks for scores
    PREVIEW = 10  # server: what a download would be, to be tested
    SCORES = 11  # client: what its own model is worth on its own test samples
    SUM = 12  # server: asks for the next message of a secure sum
    PART = 13  # client: that message; or none, if it takes no part


@dataclass(frozen=True)
class Header:
    """The beginning of the messages of a chunk of clients.

    Args:
        kind: What they are for.
        round: The round that they belong to.
        clients: Numbers of the clients [clients].
        draws: Tells apart the appearances of a client that is drawn more than once in a round [clients].
        model_round: Up: the last round whose download the client kept, -1 for none. Down: this round [clients].
        upload_round: Down: the last round of which the server took this client's upload, -1 for none. Up: the last of
            which the client knows that it was taken [clients].
        layout: Which of several sets of fields the codec uses in this round; in a secure sum, the step of it.
        declined: Whose message has no body, because the client's update is not finite [clients].
    """

    kind: Kind
    round: int
    clients: Tensor
    draws: Tensor
    model_round: Tensor
    upload_round: Tensor
    layout: int = 0
    declined: Tensor | None = None

    def one(self, client: int) -> Header:
        """The header of one client's message."""
        some = slice(client, client + 1)
        declined = None if self.declined is None else self.declined[some]
        return Header(
            self.kind,
            self.round,
            self.clients[some],
            self.draws[some],
            self.model_round[some],
            self.upload_round[some],
            self.layout,
            declined,
        )

    def pack(self, client: int, fingerprint: bytes, declined: bool, numbers: int) -> bytes:
        """Return the header of one client's message, which this many numbers follow."""
        return _HEADER.pack(
            _MAGIC,
            VERSION,
            self.kind,
            fingerprint,
            self.round,
            int(self.clients[client]),
            int(self.draws[client]),
            int(self.model_round[client]),
            int(self.upload_round[client]),
            self.layout,
            declined,
            numbers,
        )


class Opened(NamedTuple):
    """A message whose header is read and whose body is not."""

    head: Header
    numbers: tuple[int, ...]
    payload: memoryview


def open_message(data: bytes, fingerprint: bytes) -> Opened:
    """Read the header of a message.

    Raises:
        Refused: If these bytes do not begin like a message of this schema.
    """
    if len(data) < _HEADER.size:
        raise Refused(f"has {len(data)} bytes, a header alone has {_HEADER.size}")
    magic, version, kind, schema, t, client, draw, model, upload, layout, declined, count = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise Refused("does not begin like a message")
    if version != VERSION:
        raise Refused(f"has version {version}, expected {VERSION}")
    if kind not in Kind._value2member_map_:
        raise Refused(f"is of the unknown kind {kind}")
    if schema != fingerprint:
        raise Refused("has another schema: recipe or model differ between client and server")
    if client >= 1 << 63 or t < 0 or model < -1 or upload < -1 or declined > 1:
        raise Refused("has a header with a number out of range")
    if declined and kind not in (Kind.UPLOAD, Kind.PART):
        raise Refused(f"declines an update, and is of kind {Kind(kind).name.lower()}")
    end = _HEADER.size + NUMBER * count
    if end > len(data):
        raise Refused(f"ends inside its header, after {len(data)} of {end} bytes")
    numbers = struct.unpack_from(f"<{count}Q", data, _HEADER.size)
    head = Header(
        Kind(kind),
        t,
        torch.tensor([client]),
        torch.tensor([draw]),
        torch.tensor([model]),
        torch.tensor([upload]),
        layout,
        torch.tensor([bool(declined)]),
    )
    return Opened(head, numbers, memoryview(data)[end:])
