"""The interface of every codec."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedslice.core.encodings import Floats
from fedslice.core.message import Body, Field, Fields, OnSlice
from fedslice.messages import Step, Upload
from fedslice.parts import Part, World
from fedslice.slice import Shapes, Slice


class Codec(Part):
    """How values travel, and in which space the server sums them.

    A codec declares the fields of a client's message, computes their entries on the client (``encode``) and the update
    from them on the server (``decode``). It never touches bytes: :mod:`fedslice.core.message` packs, unpacks, sizes and
    checks all fields.

    A codec whose codes are linear may have them summed as they are: ``decode`` then returns an upload over a space of
    its own (any names and shapes), and ``lift`` takes the mean of it back to the model once.
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

    def fields(self, t: int, part: Slice) -> Fields:
        """The fields of a message about these coordinates in round ``t``."""
        raise NotImplementedError

    def encode(self, t: int, upload: Upload) -> Body:
        """Return the entries of every field of a chunk of clients; runs on the client."""
        raise NotImplementedError

    def decode(self, t: int, frame: Upload, body: Body) -> Upload:
        """Return what the server adds up; runs on the server.

        Args:
            t: The round.
            frame: The clients, their weights and the coordinates of the messages, without values.
            body: The entries of every field.
        """
        raise NotImplementedError

    def words(self, t: int, part: Slice, sizes: dict[str, Tensor]) -> Tensor:  # noqa: ARG002
        """[clients]: 32-bit words in the unit of FLSS's paper, which counts neither ids nor scales."""
        return sum(sizes.values(), torch.zeros(part.clients)).double() / 4

    def lift(self, t: int, mean: Step) -> Step:  # noqa: ARG002
        """From the space of the sum to the model."""
        return mean

    def down_bytes(self, t: int, down: Slice, itemsize: int, clients: Tensor) -> Tensor:  # noqa: ARG002
        """Bytes of the download, per client. A client names its coordinates itself, so no ids come down."""
        return down.numbers() * itemsize

    def scales(self, part: Slice) -> Field:
        """A field with one magnitude for each parameter."""
        return Field(Floats(self._dtype, negative=False), shape=(len(part.axes),))


def entries(body: Body, name: str) -> OnSlice:
    """A field's entries on a slice."""
    found = body[name]
    assert isinstance(found, OnSlice)
    return found


def numbers(body: Body, name: str) -> Tensor:
    """A field's entries [clients, ...] on no slice."""
    found = body[name]
    assert isinstance(found, Tensor)
    return found


def beside(numbers: Tensor, values: Tensor) -> Tensor:
    """A number per client, shaped to broadcast over the clients' values."""
    return numbers.view(-1, *[1] * (values.dim() - 1))


def signed(positive: Tensor, magnitude: Tensor) -> Tensor:
    """Plus or minus each client's magnitude."""
    plus = beside(magnitude, positive)
    return torch.where(positive.bool(), plus, -plus)
