"""Signs and one scale (signSGD with error feedback, Karimireddy et al. 2019; Sign+EF of FLSS's table 1)."""

from __future__ import annotations

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.codecs.base import entries, numbers, signed
from fedslice.codecs.feedback import Feedback
from fedslice.core.encodings import Bits, Floats
from fedslice.core.message import Body, Field, Fields, OnSlice
from fedslice.parts import CHECKED
from fedslice.slice import Slice, Values


@dataclass(config=CHECKED)
class Sign(Feedback):
    """q = ‖p‖₁/D · sign(p), with D values that the client sends and sign(0) = 1: D bits and one number."""

    label = "sign"

    error_feedback: bool = True

    def fields(self, t: int, part: Slice) -> Fields:  # noqa: ARG002
        """One scale for all parameters, and a bit per value: is it not negative?"""
        return {"scale": Field(Floats(self._dtype, negative=False), shape=(1,)), "sign": Field(Bits(), on=part)}

    def compress(self, part: Slice, values: Values) -> Body:
        """‖p‖₁/D and the signs."""
        norm = sum((part.sums(name, value.abs()) for name, value in values.items()), torch.zeros(part.clients))
        scale = (norm / part.numbers().clamp(min=1).to(norm.device)).to(self._dtype)
        return {"scale": scale[:, None], "sign": OnSlice(part, {name: value >= 0 for name, value in values.items()})}

    def restore(self, part: Slice, body: Body) -> Values:  # noqa: ARG002
        """Signs times scale."""
        scale, signs = numbers(body, "scale")[:, 0], entries(body, "sign").values
        return {name: signed(sign, scale) for name, sign in signs.items()}

    def words(self, t: int, part: Slice, sizes: dict[str, Tensor]) -> Tensor:  # noqa: ARG002
        """A bit per value."""
        return part.numbers().double() / 32
