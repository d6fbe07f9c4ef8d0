"""Look-back gradients: a multiple of what was sent before (LBGM of S4's table 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedslice import wire
from fedslice.codecs.base import Codec
from fedslice.codecs.flat import total
from fedslice.codecs.memory import Memory
from fedslice.errors import UserError
from fedslice.messages import Message, Upload
from fedslice.parts import CHECKED, World
from fedslice.slice import Slice, Values

if TYPE_CHECKING:
    from fedslice.recipe import Recipe


@dataclass(config=CHECKED)
class LBGM(Codec):
    """A parameter's update g goes up as ρ = ⟨g, ℓ⟩/‖ℓ‖² if it is close to the one ℓ that last went up in full.

    Close means sin²(g, ℓ) ≤ delta; the server then takes ρ·ℓ. Otherwise g goes up and becomes ℓ. The look-back is by
    parameter, as in the published code (the paper's algorithm takes the model as one vector), and both sides remember
    it for every client.
    """

    label = "lbgm"

    delta: Annotated[float, Field(ge=0, le=1)] = 0.05

    def check(self, recipe: Recipe) -> None:
        """A client's memory is written once a round."""
        self._once_a_round("codec", recipe)

    def setup(self, world: World) -> None:
        """Nothing was sent yet."""
        super().setup(world)
        self._memory = Memory(self, "look-back", world)

    def encode(self, t: int, upload: Upload) -> Message:  # noqa: ARG002
        """A flag per parameter, and then a factor or the values."""
        part, clients, taken = upload.slice, upload.clients, upload.weights > 0
        sent, factors, flags = {}, [], []
        numbers = torch.zeros(len(clients), dtype=torch.int64)
        for name, value in upload.values.items():
            back = self._memory.recall(clients, part, name, value)
            inner, energy, length = (
                total(part, name, one.double() * other.double())
                for one, other in ((value, back), (value, value), (back, back))
            )
            factor = inner / torch.where(length > 0, length, 1)
            close = (length > 0) & (energy - factor * inner <= self.delta * energy)  # sin²·‖g‖² on the left
            short = factor.to(value.dtype)
            beside = (-1, *[1] * (value.dim() - 1))
            sent[name] = torch.where(close.view(beside), short.view(beside) * back, value)
            self._memory.keep(clients, part, name, value, taken & ~close.to(taken.device))
            factors.append(short)
            flags.append(close)
            numbers += torch.where(close.cpu(), 1, part.only([name]).numbers())
        size = (len(flags) + 7) // 8 + numbers * self._dtype.itemsize + part.id_bytes()
        codes = {"close": torch.stack(flags, 1), "factor": torch.stack(factors, 1)}
        return Message(replace(upload, values=sent), size, numbers.double(), codes)

    def write(self, message: Message) -> bytes:
        """Flags, then what they announce."""
        close, factor = (message.codes[kind][0].cpu() for kind in ("close", "factor"))
        values = message.upload.values
        body = {name: factor[i] if close[i] else values[name] for i, name in enumerate(values)}
        return np.packbits(close.numpy()).tobytes() + wire.pack_values(body)

    def read(self, client: int, part: Slice, reader: wire.Reader) -> Values:
        """Factors times what the client sent before, or values."""
        out: Values = {}
        for close, name in zip(reader.bits(len(part.axes), "flags"), part.axes, strict=True):
            sizes = wire.sizes(part, name)
            if not close:
                out[name] = reader.numbers(sizes, self._dtype, name)[None]
                continue
            back = self._memory.recall(torch.tensor([client]), part, name, torch.zeros(1, *sizes, dtype=self._dtype))
            if not bool(back.any()):
                raise UserError(
                    f"payload has a factor for {name!r}, of which client {client} never sent values; it was refused."
                )
            out[name] = reader.numbers([1], self._dtype, name) * back
        return out
