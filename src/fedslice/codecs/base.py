"""What every way to send values answers."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fedslice.messages import Message, Step, Upload
from fedslice.parts import Part
from fedslice.slice import Slice


class Codec(Part):
    """How values travel, and in which space the server sums them.

    A codec whose codes are linear may have them summed as they are: ``decode`` then returns an upload over a
    space of its own (any names and shapes), and ``lift`` takes the mean of it back to the model once.
    """

    keeps_zeros: ClassVar[bool] = False  # does a zero update arrive as zero? Then it need not be computed
    exact: ClassVar[bool] = False  # does every value arrive as it was?
    carries_values: ClassVar[bool] = False  # can it send values as well as differences?
    sums_codes: ClassVar[bool] = False  # are codes summed, and only the sum decoded?

    def encode(self, t: int, upload: Upload) -> Message:
        """Client side: from values to what is sent."""
        raise NotImplementedError

    def decode(self, t: int, message: Message) -> Upload:  # noqa: ARG002
        """Server side: what one adds up."""
        return message.upload

    def lift(self, t: int, mean: Step) -> Step:  # noqa: ARG002
        """From the space of the sum to the model."""
        return mean

    def down_bytes(self, t: int, down: Slice, itemsize: int) -> Tensor:  # noqa: ARG002
        """Bytes of the download, per client. A client names its coordinates itself, so no ids come down."""
        return down.numbers() * itemsize
