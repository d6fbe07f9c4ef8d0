"""Messages as tests look at them: encoded on one side, decoded on the other."""

from dataclasses import replace

import torch
from torch import Tensor

from fedslice.codecs import Codec
from fedslice.core.message import Body, Header, Message, unpack
from fedslice.experiment import Experiment
from fedslice.messages import Upload
from fedslice.slice import Slice


class Sent:
    """The messages of a chunk: their sizes, and the updates that the server makes of them."""

    def __init__(self, codec: Codec, t: int, upload: Upload, body: Body):
        self._codec, self.t, self.given = codec, t, upload
        self.message = Message(upload.slice, codec.fields(t, upload.slice), body)
        self.frame = replace(upload, layout=upload.slice, values={}, reach=None, drift={})

    @property
    def clients(self) -> list[int]:
        return [int(client) for client in self.given.clients]

    @property
    def body(self) -> Body:
        return self.message.body

    @property
    def bytes(self) -> Tensor:
        return sum(self.message.sizes().values(), torch.zeros(self.message.clients, dtype=torch.int64))

    @property
    def words(self) -> Tensor:
        sizes = {name: size for name, size in self.message.sizes().items() if name in self.message.fields}
        return self._codec.words(self.t, self.message.part, sizes)

    def decoded(self) -> Upload:
        """What the server adds up."""
        return self._codec.decode(self.t, self.frame, self.body)

    def pack(self, place: int) -> tuple[Header, bytes]:
        return self.message.pack(place)

    def unpacked(self, place: int, header: Header, payload: bytes) -> tuple[Slice, Upload]:
        """One client's message from bytes: its coordinates, and what the server makes of it."""
        shapes = self.given.slice.shapes
        part, body = unpack(header, payload, shapes, lambda part: self._codec.fields(self.t, part))
        some = slice(place, place + 1)
        frame = Upload(self.given.clients[some], self.given.weights[some], part, part, {})
        return part, self._codec.decode(self.t, frame, body)


def sent(codec: Codec, t: int, upload: Upload) -> Sent:
    """Encode a chunk's updates."""
    return Sent(codec, t, upload, codec.encode(t, upload))


def heard(experiment: Experiment) -> list[Sent]:
    """Every chunk's messages, from now on."""
    out: list[Sent] = []
    codec = experiment.recipe.codec
    plain = codec.encode

    def encode(t: int, upload: Upload) -> Body:
        body = plain(t, upload)
        out.append(Sent(codec, t, upload, body))
        return body

    codec.encode = encode  # type: ignore[method-assign]
    return out
