"""What every way to send values answers."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedslice import wire
from fedslice.messages import Message, Step, Upload
from fedslice.parts import Part, World
from fedslice.slice import Shapes, Slice, Values


class Codec(Part):
    """How values travel, and in which space the server sums them.

    A codec whose codes are linear may have them summed as they are: ``decode`` then returns an upload over a
    space of its own (any names and shapes), and ``lift`` takes the mean of it back to the model once.

    A simulation encodes a chunk and counts bytes; ``pack`` makes the bytes of one client's message, as many as were
    counted, and ``unpack`` is what a server makes of them: the client's part of what ``decode`` returns.
    """

    keeps_zeros: ClassVar[bool] = False  # does a zero update arrive as zero? Then it need not be computed
    exact: ClassVar[bool] = False  # does every value arrive as it was?
    carries_values: ClassVar[bool] = False  # can it send values as well as differences?
    sums_codes: ClassVar[bool] = False  # are codes summed, and only the sum decoded?

    _shapes: Shapes
    _dtype: torch.dtype

    def setup(self, world: World) -> None:
        """Learn the model's shapes and precision."""
        self._shapes, self._dtype = world.task.shapes, world.dtype

    def encode(self, t: int, upload: Upload) -> Message:
        """Client side: from values to what is sent."""
        raise NotImplementedError

    def decode(self, t: int, message: Message) -> Upload:  # noqa: ARG002
        """Server side: what one adds up."""
        return message.upload

    def lift(self, t: int, mean: Step) -> Step:  # noqa: ARG002
        """From the space of the sum to the model."""
        return mean

    def down_bytes(self, t: int, down: Slice, itemsize: int, clients: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Bytes of the download, per client. A client names its coordinates itself, so no ids come down.

        ``clients`` says who they are, which matters if only steps that a client has missed come down; without it,
        everyone is taken for the one who has missed most.
        """
        return down.numbers() * itemsize

    def pack(self, message: Message, place: int) -> tuple[wire.Header, bytes]:
        """The message of one client of a chunk, as bytes; the header is framing and not counted."""
        one = message.one(place)
        header, ids = wire.pack_slice(one.upload.slice, 0)
        return header, ids + self.write(one)

    def unpack(self, t: int, client: int, header: wire.Header, payload: bytes) -> tuple[Slice, Values]:
        """Where a client's values of round ``t`` belong, and the values; what cannot be is refused."""
        reader = wire.Reader(payload)
        part = wire.unpack_slice(header, reader, self.space(t))
        values = self.read(client, part, reader)
        reader.end()
        return part, values

    def space(self, t: int) -> Shapes:  # noqa: ARG002
        """The shapes of what is sent in round ``t``."""
        return self._shapes

    def write(self, message: Message) -> bytes:
        """What follows the ids in a message of one client: the values as they are."""
        return wire.pack_values(message.upload.values)

    def read(self, client: int, part: Slice, reader: wire.Reader) -> Values:  # noqa: ARG002
        """The values of a client from what :meth:`write` wrote."""
        return wire.unpack_values(part, reader, self._dtype)
