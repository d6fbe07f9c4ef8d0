"""Look-back gradients: a multiple of what was sent before (LBGM of S4's table 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.codecs.base import Codec, beside, entries, numbers
from fedslice.codecs.memory import Memory
from fedslice.core.encodings import Bits, Floats
from fedslice.core.message import Body, Fields, OnSlice
from fedslice.core.message import Field as MessageField
from fedslice.errors import Refused
from fedslice.messages import Upload
from fedslice.parts import CHECKED, World
from fedslice.slice import Slice

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
        self._sent = Memory(self, "sent", world)  # by the client
        self._received = Memory(self, "received", world)  # by the server

    def fields(self, t: int, part: Slice) -> Fields:  # noqa: ARG002
        """A flag per parameter, and then a factor or the values."""

        def close(body: Body) -> Tensor:
            return numbers(body, "close").bool()

        def full(body: Body) -> OnSlice:
            flags = {}
            for name, flag in zip(part.axes, (~close(body)).unbind(1), strict=True):
                size = part.sizes(name)
                flags[name] = flag.view(-1, *[1] * len(size)).expand(-1, *size)
            return OnSlice(part, flags)

        return {
            "close": MessageField(Bits(), shape=(len(part.axes),)),
            "factor": MessageField(Floats(self._dtype), shape=(len(part.axes),), where=close),
            "values": MessageField(Floats(self._dtype), on=part, where=full),
        }

    def encode(self, t: int, upload: Upload) -> Body:  # noqa: ARG002
        """Compare every parameter with what was last sent in full."""
        part, clients, taken = upload.slice, upload.clients, upload.weights > 0
        factors, flags = [], []
        for name, value in upload.values.items():
            back = self._sent.recall(clients, part, name, value)
            inner, energy, length = (
                part.sums(name, one.double() * other.double())
                for one, other in ((value, back), (value, value), (back, back))
            )
            factor = inner / torch.where(length > 0, length, 1)
            close = (length > 0) & (energy - factor * inner <= self.delta * energy)  # sin²·‖g‖² on the left
            self._sent.keep(clients, part, name, value, taken & ~close.to(taken.device))
            factors.append(factor.to(value.dtype))
            flags.append(close)
        return {
            "close": torch.stack(flags, 1),
            "factor": torch.stack(factors, 1),
            "values": OnSlice(part, upload.values),
        }

    def decode(self, t: int, frame: Upload, body: Body) -> Upload:  # noqa: ARG002
        """Factors times what the client sent before, or values, which are remembered."""
        part, taken, values = frame.slice, frame.weights > 0, {}
        sent = entries(body, "values").values
        flags, factors = (numbers(body, name).unbind(1) for name in ("close", "factor"))
        for (name, value), close, factor in zip(sent.items(), flags, factors, strict=True):
            back = self._received.recall(frame.clients, part, name, value)
            if bool((close.bool() & ~back.flatten(1).any(1)).any()):
                raise Refused(f"has a factor for {name!r}, of which its sender never sent values")
            values[name] = torch.where(beside(close.bool(), value), beside(factor, value) * back, value)
            self._received.keep(frame.clients, part, name, value, taken & ~close.bool().to(taken.device))
        return replace(frame, values=values)

    def words(self, t: int, part: Slice, sizes: dict[str, Tensor]) -> Tensor:  # noqa: ARG002
        """One per factor or value."""
        return (sizes["factor"] + sizes["values"]).double() / self._dtype.itemsize
