"""The bytes of a payload: the ids of the held positions, then the values.

The ledger of a simulation counts bytes without packing every upload; this is the packing that it counts, and what a
message to a real device holds. Ids of one axis take the smaller of packed integers and a bitmap. Whatever arrives is
checked before it is used: length, order and range of ids, finiteness of values.
"""

from __future__ import annotations

import math
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
    numbers: dict[Axis, int] = {}
    axes: list[tuple[int, int, bool]] = []
    blocks: list[bytes] = []
    parameters: dict[str, tuple[int | None, ...]] = {}
    for name, held in part.axes.items():
        for extent, axis in zip(part.shapes[name], held, strict=True):
            if axis is not None and axis not in numbers:
                count = int(axis.counts[client])
                numbers[axis] = len(axes)
                axes.append((extent, count, axis.prefix))
                if not _implied(extent, count, axis.prefix):
                    blocks.append(_pack_ids(axis.ids[client, :count].cpu().numpy(), extent))
        parameters[name] = tuple(None if axis is None else numbers[axis] for axis in held)
    for name, places in parameters.items():
        cut = tuple(slice(None) if place is None else slice(axes[place][1]) for place in places)
        blocks.append(values[name][client][cut].cpu().contiguous().numpy().tobytes())
    return Header(tuple(axes), parameters), b"".join(blocks)


def unpack(header: Header, payload: bytes, shapes: Shapes, dtype: torch.dtype = torch.float32) -> tuple[Slice, Values]:
    """A slice for one client and its values; anything that does not fit the model is refused."""
    view = memoryview(payload)
    axes: list[Axis] = []
    for extent, count, prefix in header.axes:
        first = _implied(extent, count, prefix)
        ids, view = _first_ids(view, count, extent) if first else _unpack_ids(view, count, extent)
        axes.append(Axis(torch.tensor([count]), torch.from_numpy(ids)[None], prefix))
    held: dict[str, tuple[Axis | None, ...]] = {}
    values: Values = {}
    for name, places in header.parameters.items():
        if name not in shapes or len(places) != len(shapes[name]):
            raise UserError(
                f"payload names parameter {name!r} with {len(places)} dimensions; the model has no such one."
            )
        sizes = []
        for extent, place in zip(shapes[name], places, strict=True):
            if place is not None and header.axes[place][0] != extent:
                raise UserError(f"payload gives {name!r} an extent of {header.axes[place][0]}; the model has {extent}.")
            sizes.append(extent if place is None else header.axes[place][1])
        values[name], view = _unpack_values(view, sizes, dtype, name)
        held[name] = tuple(None if place is None else axes[place] for place in places)
    if len(view):
        raise UserError(f"payload has {len(view)} bytes more than its header says; it was refused.")
    return Slice(1, shapes, held), values


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


def _first_ids(view: memoryview, count: int, extent: int) -> tuple[NDArray[np.int64], memoryview]:
    if not 0 <= count <= extent:
        raise UserError(f"payload names the first {count} of {extent} positions; it was refused.")
    return np.arange(count), view


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


def _unpack_values(view: memoryview, sizes: list[int], dtype: torch.dtype, name: str) -> tuple[Tensor, memoryview]:
    count = math.prod(sizes)
    need = count * dtype.itemsize
    if len(view) < need:
        raise UserError(f"payload is cut short at {name!r}: {len(view)} of {need} bytes; it was refused.")
    flat = torch.frombuffer(bytearray(view[:need]), dtype=dtype) if count else torch.zeros(0, dtype=dtype)
    if not bool(torch.isfinite(flat).all()):
        raise UserError(f"payload has a NaN or an infinity in {name!r}; it was refused.")
    return flat.view(1, *sizes), view[need:]
