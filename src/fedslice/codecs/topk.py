"""The strongest entries of each parameter, as they are (Stich et al. 2018)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic.dataclasses import dataclass

from fedslice import wire
from fedslice.codecs.feedback import Feedback
from fedslice.codecs.flat import flat
from fedslice.codecs.sparse import Share, place_bits, placed, read_places, strongest, write_places
from fedslice.messages import Message, Upload
from fedslice.parts import CHECKED
from fedslice.slice import Slice, Values


@dataclass(config=CHECKED)
class TopK(Feedback):
    """k = ⌈share·n⌉ entries of each parameter at full precision; the others count as zeros that were sent."""

    label = "topk"

    share: Share = 1 / 32
    error_feedback: bool = True

    def compress(self, upload: Upload) -> Message:
        """Places, then entries."""
        part, sent = upload.slice, {}
        for name, value in upload.values.items():
            line = flat(part, name, value)
            sent[name] = line.values.masked_fill(~strongest(line, self.share), 0).view_as(value)
        bits, number = place_bits(part, sent, self.share)
        size = (bits + 7) // 8 + number * self._dtype.itemsize + part.id_bytes()
        return Message(replace(upload, values=sent), size)

    def write(self, message: Message) -> bytes:
        """Places of all parameters, then all entries."""
        bits, entries = write_places(message.upload.values, self.share)
        return np.packbits(np.concatenate(bits)).tobytes() + np.concatenate(entries).tobytes()

    def read(self, client: int, part: Slice, reader: wire.Reader) -> Values:  # noqa: ARG002
        """Entries at their places."""
        places = read_places(part, reader, self.share)
        return {n: placed(part, n, at, reader.numbers([len(at)], self._dtype, n)) for n, at in places.items()}
