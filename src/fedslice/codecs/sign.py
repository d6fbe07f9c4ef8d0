"""Signs and one scale (signSGD with error feedback, Karimireddy et al. 2019; Sign+EF of FLSS's table 1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedslice.codecs.base import signed
from fedslice.codecs.feedback import Feedback
from fedslice.core.encodings import Bits, Floats
from fedslice.core.entries import OnSlice, as_tensor, on_slice
from fedslice.core.message import Body, Field, Fields
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec


class Sign(Feedback):
    """q = ‖p‖₁/D · sign(p), with D values that the client sends and sign(0) = 1: D bits and one number."""

    label = "sign"

    error_feedback: bool = True

    def fields(self, spec: Spec, part: Slice, layout: int) -> Fields:  # noqa: ARG002
        """One scale for all parameters, and a bit per value: is it not negative?"""
        return {
            "scale": Field(Floats(spec.dtype, negative=False), shape=(1,), about="the mean magnitude of its update"),
            "sign": Field(Bits(), on=part, about="the sign of each value of its update"),
        }

    def compress(self, spec: Spec, part: Slice, values: Values) -> Body:
        """‖p‖₁/D and the signs."""
        norm = sum((part.sums(name, value.abs()) for name, value in values.items()), torch.zeros(part.clients))
        scale = (norm / part.numbers().clamp(min=1).to(norm.device)).to(spec.dtype)
        return {"scale": scale[:, None], "sign": OnSlice(part, {name: value >= 0 for name, value in values.items()})}

    def restore(self, spec: Spec, part: Slice, body: Body) -> Values:  # noqa: ARG002
        """Signs times scale."""
        signs, scale = on_slice(body["sign"]).values, as_tensor(body["scale"])[:, 0]
        return {name: signed(sign, scale.to(sign.device)).to(spec.dtypes[name]) for name, sign in signs.items()}

    def words(self, spec: Spec, part: Slice, sizes: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        """A bit per value."""
        return part.numbers().double() / 32
