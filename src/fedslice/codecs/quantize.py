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

from fedslice import rng
from fedslice.codecs.base import Codec, beside, entries, numbers
from fedslice.core.encodings import Bits
from fedslice.core.message import Body, Fields, OnSlice
from fedslice.core.message import Field as MessageField
from fedslice.messages import Upload
from fedslice.parts import CHECKED, World
from fedslice.slice import Slice


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

    def fields(self, t: int, part: Slice) -> Fields:  # noqa: ARG002
        """A scale per parameter, and levels counted from the lowest."""
        return {"scale": self.scales(part), "level": MessageField(Bits(self.bits, 2 * self._levels), on=part)}

    def encode(self, t: int, upload: Upload) -> Body:
        """The largest magnitudes, and levels drawn at random."""
        levels, scales = {}, [torch.zeros(len(upload.clients), 0, dtype=self._dtype)]
        index = upload.layout.gather(self._index)
        for number, (name, value) in enumerate(upload.values.items()):
            line = upload.layout.line(name, value)
            scale = line.values.abs().amax(1) if line.values.shape[1] else value.new_zeros(len(value))
            where = index[name].reshape(len(value), -1)
            drawn = self._rounded(line.values, scale, (t, upload.clients, number, where))
            levels[name] = (drawn + self._levels).long().view_as(value)
            scales.append(scale.cpu()[:, None])
        zero = self._levels  # the level of every coordinate that cannot have changed
        return {"scale": torch.cat(scales, 1), "level": OnSlice(upload.layout, levels, zero)}

    def decode(self, t: int, frame: Upload, body: Body) -> Upload:  # noqa: ARG002
        """Levels times scale."""
        level = entries(body, "level")
        values = {
            name: self._values((found - self._levels).double(), beside(scale.to(found.device), found))
            for (name, found), scale in zip(level.values.items(), numbers(body, "scale").unbind(1), strict=True)
        }
        return replace(frame, layout=level.part, values=values)

    def words(self, t: int, part: Slice, sizes: dict[str, Tensor]) -> Tensor:  # noqa: ARG002
        """So many bits per value."""
        return part.numbers().double() * self.bits / 32

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
