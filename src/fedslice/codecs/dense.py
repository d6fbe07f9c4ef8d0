"""Values as they are."""

from pydantic.dataclasses import dataclass

from fedslice.codecs.base import Codec
from fedslice.messages import Message, Upload
from fedslice.parts import CHECKED


@dataclass(config=CHECKED)
class Dense(Codec):
    """Every value at the model's own precision, after the ids that say which coordinates they are."""

    label = "dense"
    keeps_zeros = True
    exact = True
    carries_values = True

    def encode(self, t: int, upload: Upload) -> Message:  # noqa: ARG002
        """Ids once, then the values."""
        itemsize = next(iter(upload.values.values())).element_size() if upload.values else 0
        numbers = upload.slice.numbers()
        return Message(upload, numbers * itemsize + upload.slice.id_bytes(), numbers.double())
