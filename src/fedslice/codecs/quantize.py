"""Few bits per value, rounded at random so that the mean is right (Alistarh et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedslice.codecs.base import Codec, scales
from fedslice.core import rng
from fedslice.core.encodings import Bits
from fedslice.core.entries import OnSlice, as_tensor, on_slice, per_client
from fedslice.core.header import Header
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Fields
from fedslice.core.message import Field as MessageField
from fedslice.core.part import ClientRun
from fedslice.core.slice import Slice
from fedslice.core.spec import Spec
from fedslice.core.update import Update


class _Places(Memory):
    """Nothing is remembered; each coordinate's number within its parameter, by which it draws."""

    def __init__(self, run: ClientRun, place: str):
        super().__init__(run, place)
        shapes = run.spec.shapes
        self.index = {n: torch.arange(s.numel(), device=run.device).view(s) for n, s in shapes.items()}


class Quantize(Codec):
    """Each value as one of 2^bits − 1 levels between −s and s, where s is the largest magnitude of the parameter.

    A value goes to the level below or above with chances that make the mean exact. Zero is a level, so zeros stay. The
    draw depends on the clients' seed, the round, the client and the coordinate, and on nothing else.

    Args:
        bits (bits): Bits per value.
    """

    label = "quantize"

    bits: Annotated[int, Field(ge=2, le=16)] = 8

    @property
    def provides(self) -> frozenset[str]:
        """Zero is a level."""
        return frozenset({"keeps-zeros"})

    @property
    def _levels(self) -> int:
        """The number of levels on each side of zero."""
        return (1 << (self.bits - 1)) - 1

    def client_memory(self, run: ClientRun, place: str) -> _Places:
        """Number the coordinates."""
        return _Places(run, place)

    def fields(self, spec: Spec, part: Slice, layout: int) -> Fields:  # noqa: ARG002
        """A scale per parameter, and levels counted from the lowest."""
        level = MessageField(Bits(self.bits, 2 * self._levels), on=part, about="its update in few levels")
        return {"scale": scales(spec, part), "level": level}

    def encode(self, memory: _Places, head: Header, update: Update, came: Body) -> Body:  # noqa: ARG002
        """The largest magnitudes, and levels drawn at random."""
        dtype, layout = memory.run.spec.dtype, update.layout
        levels, found = {}, [torch.zeros(update.clients, 0, dtype=dtype)]
        index = layout.gather(memory.index)
        for number, (name, value) in enumerate(update.values.items()):
            line = layout.line(name, value)
            scale = line.values.abs().amax(1) if line.values.shape[1] else value.new_zeros(len(value))
            scale, where = scale.to(dtype), index[name].reshape(len(value), -1)
            chance = _chances(memory.run.seed, head, number, where)
            levels[name] = self._rounded(line.values, scale, chance).view_as(value)
            found.append(scale.cpu()[:, None])
        zero = self._levels  # the level of every coordinate that cannot have changed
        return {"scale": torch.cat(found, 1), "level": OnSlice(layout, levels, zero)}

    def decode(self, state: Any, head: Header, part: Slice, body: Body) -> Update:  # noqa: ARG002
        """Levels times scale; the highest is exactly the scale."""
        level, dtypes = on_slice(body["level"]), state.run.spec.dtypes
        values = {}
        for (name, found), scale in zip(level.values.items(), as_tensor(body["scale"]).unbind(1), strict=True):
            share = (found - self._levels).double() / self._levels
            values[name] = (share * per_client(scale.to(found.device), found).double()).to(dtypes[name])
        return Update(part, level.part, values)

    def words(self, spec: Spec, part: Slice, sizes: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        """So many bits per value."""
        return part.numbers().double() * self.bits / 32

    def _rounded(self, values: Tensor, scale: Tensor, chance: Tensor) -> Tensor:
        """The level of each value, drawn between its neighbours and counted from the lowest."""
        divisor = torch.where(scale > 0, scale, 1)[:, None].double()
        exact = (values.double() / divisor * self._levels).clamp(-self._levels, self._levels)
        below = exact.floor()
        drawn: Tensor = below + (chance.to(values.device) < exact - below) + self._levels
        return drawn.long()


def _chances(seed: int, head: Header, number: int, where: Tensor) -> Tensor:
    """A number between 0 and 1 for each coordinate [clients, places] of a parameter."""
    words: list[int | NDArray[np.int64]] = [
        head.round,
        head.clients.cpu().numpy()[:, None],
        number,
        where.cpu().numpy(),
    ]
    return torch.from_numpy(rng.uniform(seed, rng.Purpose.NOISE, *words))
