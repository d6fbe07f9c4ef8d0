"""Few entries of each parameter: the strongest are sent, the others are zero."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedslice.core import message
from fedslice.core.encodings import Floats, Places
from fedslice.core.message import Fields
from fedslice.core.slice import Line, Slice, Values
from fedslice.core.spec import Spec

Share = Annotated[float, Field(ge=1e-9, le=1)]


def strongest(line: Line, share: float) -> Tensor:
    """[clients, places]: the k = ⌈p·n⌉ entries of largest magnitude; of equal ones the first, and zeros never."""
    size = line.values.abs() if line.held is None else line.values.abs().masked_fill(~line.held, -1)
    k = (share * line.counts.double() - 1e-9).ceil().long()  # 0.07 · 100 is more than 7 in floating point
    most = int(k.max())
    if not most:
        return torch.zeros_like(size, dtype=torch.bool)
    last = size.topk(most, dim=1).values.gather(1, (k - 1).clamp(min=0)[:, None])
    last = last.masked_fill(k[:, None] == 0, torch.inf)
    above, equal = size > last, size == last
    room = k[:, None] - above.sum(1, keepdim=True)
    return (above | (equal & (equal.cumsum(1) <= room))) & (size > 0)


def strongest_of(part: Slice, values: Values, share: float) -> Values:
    """Return the same flags for every parameter, in its shape."""
    return {name: strongest(part.line(name, value), share).view_as(value) for name, value in values.items()}


def entry_fields(spec: Spec, part: Slice, share: float) -> Fields:
    """Return fields of the places of all parameters in one line, and the entries there at full precision."""
    return {
        "places": message.Field(Places(share), on=part, about="where the strongest entries are"),
        "entries": message.Field(
            Floats(spec.dtype), on=part, where=lambda body: body["places"], about="the strongest entries"
        ),
    }
