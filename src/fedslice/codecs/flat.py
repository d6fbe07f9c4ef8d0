"""Values of a chunk in one line per client and parameter, apart from padding."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedslice.errors import UserError
from fedslice.slice import Slice, Values
from fedslice.wire import Reader, sizes


class Flat(NamedTuple):
    """A parameter's values in one line per client, padding among them."""

    values: Tensor  # [clients, places]
    held: Tensor | None  # the same shape, false on padding; ``None`` if none is padded
    counts: Tensor  # [clients]: how many values each client has of its own

    def positions(self) -> Tensor:
        """[clients, places] or [1, places]: each value's number among the client's own."""
        if self.held is None:
            return torch.arange(self.values.shape[1], device=self.values.device)[None]
        return self.held.cumsum(1) - 1


def flat(part: Slice, name: str, values: Tensor) -> Flat:
    """A parameter's values in line; padding is zero."""
    held = part.held(name)
    if held is not None:
        held = held.view(*held.shape, *[1] * (values.dim() - held.dim())).expand_as(values).reshape(part.clients, -1)
    line = values.reshape(part.clients, -1)
    counts = part.only([name]).numbers().to(values.device)
    return Flat(line if held is None else line.masked_fill(~held, 0), held, counts)


def total(part: Slice, name: str, values: Tensor) -> Tensor:
    """[clients]: the sum of a parameter's values, in float64."""
    return flat(part, name, values).values.sum(1, dtype=torch.float64)


def shaped(part: Slice, line: Tensor) -> Values:
    """One client's values, parameter by parameter, out of one line of them all."""
    shapes = {name: sizes(part, name) for name in part.axes}
    parts = line.split([math.prod(shape) for shape in shapes.values()])
    return {name: own.view(1, *shape) for (name, shape), own in zip(shapes.items(), parts, strict=True)}


def read_scales(part: Slice, reader: Reader, dtype: torch.dtype) -> Tensor:
    """One magnitude for each parameter of a client."""
    scales = reader.numbers([len(part.axes)], dtype, "scales")
    if bool((scales < 0).any()):
        raise UserError(f"payload has a scale of {float(scales.min())}, which must not be negative; it was refused.")
    return scales
