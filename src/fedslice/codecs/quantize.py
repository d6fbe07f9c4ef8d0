"""Few bits per value, rounded at random so that the mean is right (Alistarh et al. 2017)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice import rng, wire
from fedslice.codecs.base import Codec
from fedslice.codecs.flat import flat, read_scales, shaped
from fedslice.errors import UserError
from fedslice.messages import Message, Upload
from fedslice.parts import CHECKED, World
from fedslice.slice import Slice, Values


@dataclass(config=CHECKED)
class Quantize(Codec):
    """Each value as one of 2^bits − 1 levels between −s and s, where s is the largest magnitude of the parameter.

    A value goes to the level below or above with chances that make the mean exact. Zero is a level, so zeros stay. The
    draw depends on the round, the client and the coordinate, and on nothing else.
    """

    label = "quantize"
    keeps_zeros = True

    bits: Annotated[int, Field(ge=2, le=16)] = 8

    def setup(self, world: World) -> None:
        """Learn the seed."""
        super().setup(world)
        self._seed = world.seed
        self._levels = 2 ** (self.bits - 1) - 1  # on each side of zero
        self._index = {n: torch.arange(s.numel(), device=world.device).view(s) for n, s in self._shapes.items()}

    def encode(self, t: int, upload: Upload) -> Message:
        """A scale per parameter, then the levels."""
        sent, scales = {}, []
        index = upload.layout.gather(self._index)
        for number, (name, value) in enumerate(upload.values.items()):
            line = flat(upload.layout, name, value)
            scale = line.values.abs().amax(1) if line.values.shape[1] else value.new_zeros(len(value))
            where = index[name].reshape(len(value), -1)
            levels = self._rounded(line.values, scale, (t, upload.clients, number, where))
            sent[name] = self._values(levels, scale[:, None]).view_as(value)
            scales.append(scale)
        numbers = upload.slice.numbers()
        size = (numbers * self.bits + 7) // 8 + len(scales) * self._dtype.itemsize + upload.slice.id_bytes()
        words = numbers.double() * self.bits / 32
        return Message(replace(upload, values=sent), size, words, {"scale": torch.stack(scales, 1)})

    def write(self, message: Message) -> bytes:
        """Scales, then levels counted from the lowest."""
        scales = message.codes["scale"][0]
        levels = [
            (value.double().flatten() / (scale.double() or 1) * self._levels).round().long() + self._levels
            for value, scale in zip(message.upload.values.values(), scales, strict=True)
        ]
        places = np.arange(self.bits - 1, -1, -1)
        bits = (torch.cat(levels).cpu().numpy()[:, None] >> places) & 1
        return wire.pack_values(dict(message.codes)) + np.packbits(bits.astype(np.uint8)).tobytes()

    def read(self, client: int, part: Slice, reader: wire.Reader) -> Values:  # noqa: ARG002
        """Levels times scale."""
        scales = read_scales(part, reader, self._dtype)
        bits = reader.bits(int(part.numbers()[0]) * self.bits, "levels").reshape(-1, self.bits)
        levels = bits.astype(np.int64) @ (1 << np.arange(self.bits - 1, -1, -1))
        if levels.max(initial=0) > 2 * self._levels:
            raise UserError(f"payload has level {levels.max()} of {2 * self._levels}; it was refused.")
        own = shaped(part, torch.from_numpy(levels - self._levels).double())
        return {n: self._values(value, scale) for (n, value), scale in zip(own.items(), scales, strict=True)}

    def _rounded(self, values: Tensor, scale: Tensor, key: tuple[int, Tensor, int, Tensor]) -> Tensor:
        """The level of each value, drawn between its neighbours."""
        t, clients, number, where = key
        words: list[int | NDArray[np.int64]] = [t, clients.cpu().numpy()[:, None], number, where.cpu().numpy()]
        chance = torch.from_numpy(rng.uniform(self._seed, rng.Purpose.NOISE, *words)).to(values.device)
        divisor = torch.where(scale > 0, scale, 1)[:, None].double()
        exact = values.double() / divisor * self._levels
        below = exact.floor()
        drawn: Tensor = below + (chance < exact - below)
        return drawn

    def _values(self, levels: Tensor, scale: Tensor) -> Tensor:
        """What a level stands for; the highest is exactly the scale."""
        values: Tensor = levels / self._levels * scale.double()
        return values.to(self._dtype)
