"""Signs and one scale (signSGD with error feedback, Karimireddy et al. 2019; Sign+EF of S4's table 1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from pydantic.dataclasses import dataclass

from fedslice import wire
from fedslice.codecs.feedback import Feedback
from fedslice.codecs.flat import shaped, total
from fedslice.errors import UserError
from fedslice.messages import Message, Upload
from fedslice.parts import CHECKED
from fedslice.slice import Slice, Values


@dataclass(config=CHECKED)
class Sign(Feedback):
    """q = ‖p‖₁/D · sign(p), with D values that the client sends and sign(0) = 1: D bits and one number."""

    label = "sign"

    error_feedback: bool = True

    def compress(self, upload: Upload) -> Message:
        """One scale for all parameters."""
        part, numbers = upload.slice, upload.slice.numbers()
        norm = sum(total(part, name, value.abs()) for name, value in upload.values.items())
        assert isinstance(norm, torch.Tensor)
        scale = (norm / numbers.clamp(min=1).to(norm.device)).to(self._dtype)
        signs = {name: torch.where(value < 0, -1, 1).to(value.dtype) for name, value in upload.values.items()}
        sent = {name: sign * scale.view(-1, *[1] * (sign.dim() - 1)) for name, sign in signs.items()}
        size = (numbers + 7) // 8 + self._dtype.itemsize + part.id_bytes()
        return Message(replace(upload, values=sent), size, numbers.double() / 32, {"scale": scale})

    def write(self, message: Message) -> bytes:
        """The scale, then a bit per value: is it not negative?"""
        signs = [(value >= 0).flatten().cpu().numpy() for value in message.upload.values.values()]
        return wire.pack_values(dict(message.codes)) + np.packbits(np.concatenate(signs)).tobytes()

    def read(self, client: int, part: Slice, reader: wire.Reader) -> Values:  # noqa: ARG002
        """Signs times scale."""
        scale = reader.numbers([1], self._dtype, "scale")
        if float(scale) < 0:
            raise UserError(f"payload has a scale of {float(scale)}, which must not be negative; it was refused.")
        bits = torch.from_numpy(reader.bits(int(part.numbers()[0]), "signs")).bool()
        return shaped(part, torch.where(bits, 1, -1).to(self._dtype) * scale)
