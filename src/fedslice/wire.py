"""The bytes of a payload: the ids of the held positions, then the values or what a codec makes of them.

The ledger of a simulation counts bytes without packing every upload; this is the packing that it counts, and what a
message to a real device holds. Ids of one axis take the smaller of packed integers and a bitmap. Whatever arrives is
checked before it is used: length, order and range of ids, finiteness of values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.errors import UserError
from fedslice.slice import Axis, Shapes, Slice, Values, id_bits


@dataclass(frozen=True)
class Header:
    """The schema of one client's payload: how many positions each axis names, and which axes each parameter uses."""

    axes: tuple[tuple[int, int, bool], ...]  # extent of the dimension, number of positions held, are they the first?
    parameters: dict[str, tuple[int | None, ...]]  # per dimension the number of its axis, or all positions


def pack(part: Slice, values: Values, client: int) -> tuple[Header, bytes]:
    """One client's values of a chunk, as bytes."""
    header, ids = pack_slice(part, client)
    own = {name: values[name][client][part.own(name, client)] for name in part.axes}
    return header, ids + pack_values(own)


def pack_slice(part: Slice, client: int) -> tuple[Header, bytes]:
    """Which positions one client of a chunk holds, as bytes."""
    numbers: dict[Axis, int] = {}
    axes: list[tuple[int, int, bool]] = []
    blocks: list[bytes] = []
    parameters: dict[str, tuple[int | None, ...]] = {}
    for name, held in part.axes.items():
        for extent, axis in zip(part.shapes[name], held, strict=True):
            if axis is not None and axis not in numbers:
                count, first = int(axis.counts[client]), bool(axis.first[client])
                numbers[axis] = len(axes)
                axes.append((extent, count, first))
                if not _implied(extent, count, first):
                    blocks.append(_pack_ids(axis.ids[client, :count].cpu().numpy(), extent))
        parameters[name] = tuple(None if axis is None else numbers[axis] for axis in held)
    return Header(tuple(axes), parameters), b"".join(blocks)


def pack_values(values: Values) -> bytes:
    """Numbers as they are, one parameter after the other."""
    return b"".join(value.cpu().contiguous().numpy().tobytes() for value in values.values())


def unpack(header: Header, payload: bytes, shapes: Shapes, dtype: torch.dtype = torch.float32) -> tuple[Slice, Values]:
    """A slice for one client and its values; anything that does not fit the model is refused."""
    reader = Reader(payload)
    part = unpack_slice(header, reader, shapes)
    values = unpack_values(part, reader, dtype)
    reader.end()
    return part, values


def unpack_slice(header: Header, reader: Reader, shapes: Shapes) -> Slice:
    """The slice of one client; sizes are compared with the model's before anything is read by them."""
    for name, places in header.parameters.items():
        if name not in shapes or len(places) != len(shapes[name]):
            raise UserError(
                f"payload names parameter {name!r} with {len(places)} dimensions; the model has no such one."
            )
        for extent, place in zip(shapes[name], places, strict=True):
            if place is not None and not 0 <= place < len(header.axes):
                raise UserError(f"payload gives {name!r} axis {place} of {len(header.axes)}; it was refused.")
            if place is not None and header.axes[place][0] != extent:
                raise UserError(f"payload gives {name!r} an extent of {header.axes[place][0]}; the model has {extent}.")
    used = {place for places in header.parameters.values() for place in places}
    if not used >= set(range(len(header.axes))):
        raise UserError(f"payload has {len(header.axes)} axes, some of which no parameter uses; it was refused.")
    axes = [
        Axis(torch.tensor([count]), torch.from_numpy(reader.ids(extent, count, prefix))[None], torch.tensor([prefix]))
        for extent, count, prefix in header.axes
    ]
    held = {
        name: tuple(None if place is None else axes[place] for place in places)
        for name, places in header.parameters.items()
    }
    return Slice(1, shapes, held)


def unpack_values(part: Slice, reader: Reader, dtype: torch.dtype) -> Values:
    """One client's values, as they were sent."""
    return {name: reader.numbers(sizes(part, name), dtype, name)[None] for name in part.axes}


def sizes(part: Slice, name: str) -> list[int]:
    """How many positions a chunk's values of a parameter have along each dimension."""
    held = zip(part.shapes[name], part.axes[name], strict=True)
    return [extent if axis is None else axis.ids.shape[1] for extent, axis in held]


class Reader:
    """A payload's bytes in their order; what is missing or cannot be is refused."""

    def __init__(self, payload: bytes):
        self._view = memoryview(payload)

    def ids(self, extent: int, count: int, prefix: bool) -> NDArray[np.int64]:
        """The positions of one axis."""
        if _implied(extent, count, prefix):
            if not 0 <= count <= extent:
                raise UserError(f"payload names the first {count} of {extent} positions; it was refused.")
            return np.arange(count)
        ids, self._view = _unpack_ids(self._view, count, extent)
        return ids

    def numbers(self, sizes: Sequence[int], dtype: torch.dtype, what: str) -> Tensor:
        """Finite numbers of the given sizes."""
        count = math.prod(sizes)
        raw = self._take(count * dtype.itemsize, what)
        flat = torch.frombuffer(bytearray(raw), dtype=dtype) if count else torch.zeros(0, dtype=dtype)
        if not bool(torch.isfinite(flat).all()):
            raise UserError(f"payload has a NaN or an infinity in {what!r}; it was refused.")
        return flat.view(*sizes)

    def bits(self, count: int, what: str) -> NDArray[np.uint8]:
        """So many bits; those that fill the last byte must be zero."""
        bits = np.unpackbits(np.frombuffer(self._take((count + 7) // 8, what), dtype=np.uint8))
        if bits[count:].any():
            raise UserError(f"payload has a last byte in {what!r} that is not filled up with zeros; it was refused.")
        return bits[:count]

    def ahead(self) -> NDArray[np.uint8]:
        """All bits that are left, without passing over them."""
        return np.unpackbits(np.frombuffer(self._view, dtype=np.uint8))

    def end(self) -> None:
        """Nothing may be left."""
        if len(self._view):
            raise UserError(f"payload has {len(self._view)} bytes more than its header says; it was refused.")

    def _take(self, need: int, what: str) -> memoryview:
        if len(self._view) < need:
            raise UserError(f"payload is cut short at {what!r}: {len(self._view)} of {need} bytes; it was refused.")
        taken, self._view = self._view[:need], self._view[need:]
        return taken


def _implied(extent: int, count: int, prefix: bool) -> bool:
    """Does the number of positions say which they are?"""
    return prefix or count == extent


def _bitmap_is_smaller(count: int, extent: int) -> bool:
    return (extent + 7) // 8 < (count * id_bits(extent) + 7) // 8


def _pack_ids(ids: NDArray[np.int64], extent: int) -> bytes:
    if _bitmap_is_smaller(len(ids), extent):
        flags = np.zeros(extent, dtype=np.bool_)
        flags[ids] = True
        return np.packbits(flags).tobytes()
    places = np.arange(id_bits(extent) - 1, -1, -1)
    return np.packbits((ids[:, None] >> places) & 1).tobytes()


def _unpack_ids(view: memoryview, count: int, extent: int) -> tuple[NDArray[np.int64], memoryview]:
    bits = id_bits(extent)
    bitmap = _bitmap_is_smaller(count, extent)
    need = (extent + 7) // 8 if bitmap else (count * bits + 7) // 8
    if not 0 <= count <= extent or len(view) < need:
        raise UserError(f"payload is cut short or names {count} of {extent} positions; it was refused.")
    flags = np.unpackbits(np.frombuffer(view[:need], dtype=np.uint8))
    if bitmap:
        ids = np.flatnonzero(flags[:extent])
    else:
        weights = 1 << np.arange(bits - 1, -1, -1, dtype=np.int64)
        ids = flags[: count * bits].reshape(count, bits).astype(np.int64) @ weights
    if len(ids) != count or (count and (ids[-1] >= extent or np.any(np.diff(ids) <= 0))):
        raise UserError(f"payload's ids are not {count} ascending positions below {extent}; it was refused.")
    return ids.astype(np.int64), view[need:]
