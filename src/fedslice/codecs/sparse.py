"""Few entries of each parameter: the strongest are sent, the others are zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedslice import wire
from fedslice.codecs import golomb
from fedslice.codecs.flat import Flat, flat
from fedslice.codecs.golomb import Bits
from fedslice.slice import Shapes, Slice, Values

Share = Annotated[float, Field(ge=1e-9, le=1)]


def strongest(line: Flat, share: float) -> Tensor:
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


def place_bits(part: Slice, values: Values, share: float) -> tuple[Tensor, Tensor]:
    """[clients]: the bits that name the entries which are not zero, and how many entries that are."""
    bits = number = torch.zeros(part.clients, dtype=torch.int64)
    for name, value in values.items():
        line = flat(part, name, value)
        taken = line.values != 0
        bits = bits + golomb.count(taken, line.positions(), line.counts, share).cpu()
        number = number + taken.sum(1).cpu()
    return bits, number


def step_bits(step: Mapping[str, tuple[Tensor | None, Tensor]], shapes: Shapes, share: float) -> tuple[int, int]:
    """The same for a change of the model."""
    bits = number = 0
    for name, (rows, values) in step.items():
        whole = values if rows is None else values.new_zeros(shapes[name]).index_add_(0, rows, values)
        some = place_bits(Slice.whole(1, {name: shapes[name]}), {name: whole[None]}, share)
        bits, number = bits + int(some[0]), number + int(some[1])
    return bits, number


def write_places(values: Values, share: float) -> tuple[list[Bits], list[NDArray[np.generic]]]:
    """Per parameter of one client, where its entries are, as bits, and the entries."""
    lines = [value.flatten().cpu().numpy() for value in values.values()]
    places = [np.flatnonzero(line) for line in lines]
    bits = [golomb.write(at, len(line), share) for at, line in zip(places, lines, strict=True)]
    return bits, [line[at] for at, line in zip(places, lines, strict=True)]


def read_places(part: Slice, reader: wire.Reader, share: float) -> dict[str, NDArray[np.int64]]:
    """Per parameter of one client, where its entries are."""
    bits, used = reader.ahead(), 0
    out = {}
    for name in part.axes:
        size = int(part.only([name]).numbers()[0])
        out[name], length = golomb.read(bits[used:], size, share, name)
        used += length
    reader.bits(used, "places")
    return out


def placed(part: Slice, name: str, places: NDArray[np.int64], entries: Tensor) -> Tensor:
    """One client's values of a parameter: entries at their places."""
    sizes = wire.sizes(part, name)
    line = entries.new_zeros(int(np.prod(sizes)))
    line[torch.from_numpy(places)] = entries
    return line.view(1, *sizes)
