"""The loops over time of :mod:`fedslice.nn.recurrence`, compiled by numba: all steps of a client, then the next one.

A client's recurrent weights are laid out once and stay in the cache for all steps. A batched product of PyTorch does
not do that: for the few samples of a step it lays the weights out again each time, which takes longer than the product.

Python's lock is not held in here. To load this module compiles nothing; that happens when a loop first meets a type of
numbers, and is kept on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array

_VECTOR = 32  # bytes; where registers are wider or narrower, the compiler makes do
_WIDE = 2  # vectors in a row of a tile
_ROWS = 6  # of a tile at most: its sums, a row of weights and a factor then fit into sixteen registers

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


def _inner(function: Callable[..., Any]) -> Any:
    """Compiled as a part of what calls it."""
    return njit(**_OPTIONS)(function)


def _kernel(function: Callable[..., Any]) -> Any:
    """Compiled once, for all processes."""
    try:
        return njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no directory can be written to: once for each process, then
        return _inner(function)


# --- products -----------------------------------------------------------------------------------------------------


def _tile_of(typing: Any, x: Any, w: Any, out: Any) -> Any:  # noqa: ARG001
    """``out = x @ w`` for at most ``_ROWS`` rows and the columns of a panel, with all sums in registers.

    Written as instructions, because the compiler keeps sums in registers only if their number is fixed.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, w, out = (
            make_array(kind)(context, builder, value) for kind, value in zip(signature.args, values, strict=True)
        )
        scalar = context.get_data_type(signature.args[0].dtype)
        size = context.get_abi_sizeof(scalar)
        lanes = _VECTOR // size
        vector, whole, index = ir.VectorType(scalar, lanes), ir.IntType(32), ir.IntType(64)
        rows, depth = cgutils.unpack_tuple(builder, x.shape)

        def at(array: Any, row: Any, column: Any, kind: Any) -> Any:
            start, _ = cgutils.unpack_tuple(builder, array.strides)
            place = builder.add(builder.mul(row, start), builder.mul(column, index(size)))
            return cgutils.pointer_add(builder, array.data, place, kind.as_pointer())

        def spread(value: Any) -> Any:
            first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, whole(0))
            return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(whole, lanes), None))

        def multiply(rows: int) -> None:
            zero = ir.Constant(vector, None)
            sums = [[cgutils.alloca_once(builder, vector) for _ in range(_WIDE)] for _ in range(rows)]
            for place in (place for row in sums for place in row):
                builder.store(zero, place)
            with cgutils.for_range(builder, depth) as loop:
                weights = [builder.load(at(w, loop.index, index(lanes * v), vector), align=size) for v in range(_WIDE)]
                for row, places in enumerate(sums):
                    factor = spread(builder.load(at(x, index(row), loop.index, scalar)))
                    for place, weight in zip(places, weights, strict=True):
                        term = builder.fmul(factor, weight, flags=("contract",))
                        builder.store(builder.fadd(builder.load(place), term, flags=("contract",)), place)
            for row, places in enumerate(sums):
                for v, place in enumerate(places):
                    builder.store(builder.load(place), at(out, index(row), index(lanes * v), vector), align=size)

        for count in range(1, _ROWS + 1):
            with builder.if_then(builder.icmp_signed("==", rows, index(count))):
                multiply(count)
        return context.get_dummy_value()

    return types.void(x, w, out), generate


_tile: Any = intrinsic(_tile_of)


@_inner
def _product(x: Any, panels: Any, out: Any) -> None:
    """``out = x @ w`` with w in panels."""
    count, _, width = panels.shape
    for first in range(0, len(x), _ROWS):
        for p in range(count):
            _tile(x[first : first + _ROWS], panels[p], out[first : first + _ROWS, p * width : (p + 1) * width])


@_inner
def _panels(w: Any) -> Any:
    """[depth, columns] as [panels, depth, columns of a tile], with zeros for the columns that the last panel lacks."""
    depth, columns = w.shape
    width = _WIDE * _VECTOR // w.itemsize
    full = columns // width
    out = np.empty((-(-columns // width), depth, width), w.dtype)
    for p in range(full):
        part = w[:, p * width : (p + 1) * width]
        for k in range(depth):
            for j in range(width):
                out[p, k, j] = part[k, j]
    if full < len(out):
        out[full] = 0
        out[full, :, : columns - full * width] = w[:, full * width :]
    return out


# --- nonlinearities -----------------------------------------------------------------------------------------------


def _exponential(x: Any) -> Any:
    """Two numbers s and p with exp(x) = s·(1 + p), for x ≤ 0; where s is 1, p is exact to its own last places.

    x = n·log 2 + r with a whole n, s = 2ⁿ, and p is Taylor's series of exp(r) − 1. Adding a number so large that its
    last place is worth one rounds to n, and leaves n in the last bits, from where it is moved to the exponent. An x
    below what an exponent can hold counts as the smallest that it can. If x is nan, so is p.
    """


def _exponential_single(x: Any) -> Any:
    real, whole = np.float32, np.int32
    x = real(-87.0) if x < real(-87.0) else x
    shifted = x * real(1.4426950408889634) + real(12582912.0)  # 1.5 · 2²³
    n = shifted - real(12582912.0)
    r = (x - n * real(0.693359375)) + n * real(2.12194440054690583e-4)  # log 2 in two parts
    p = real(1 / 5040)
    p = p * r + real(1 / 720)
    p = p * r + real(1 / 120)
    p = p * r + real(1 / 24)
    p = p * r + real(1 / 6)
    p = p * r + real(1 / 2)
    p = p * r * r + r
    return whole((real(shifted).view(whole) + 127) << 23).view(real), p


def _exponential_double(x: Any) -> Any:
    real, whole = np.float64, np.int64
    x = -708.0 if x < -708.0 else x
    shifted = x * 1.4426950408889634 + 6755399441055744.0  # 1.5 · 2⁵²
    n = shifted - 6755399441055744.0
    r = (x - n * 0.693145751953125) - n * 1.42860682030941723212e-6
    p = 1 / 6227020800
    p = p * r + 1 / 479001600
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 1 / 2
    p = p * r * r + r
    return whole((real(shifted).view(whole) + 1023) << 52).view(real), p


def _exponential_of(x: Any) -> Any:
    return _exponential_single if x == types.float32 else _exponential_double


overload(_exponential, jit_options=_OPTIONS)(_exponential_of)


@_inner
def _sigmoid(x: Any) -> Any:
    one = type(x)(1)
    s, p = _exponential(-abs(x))
    e = s + s * p
    return (e if x < 0 else one) / (one + e)


@_inner
def _tanh(x: Any) -> Any:
    """From exp(−2|x|) − 1, which keeps small values exact."""
    one, two = type(x)(1), type(x)(2)
    s, p = _exponential(-two * abs(x))
    d = s * p + (s - one)
    y = abs(d) / (two + d)
    return -y if x < 0 else y


# --- one row of a step: loops so simple that each becomes vector instructions --------------------------------------


@_inner
def _sigmoids(x: Any) -> None:
    for j in range(len(x)):
        x[j] = _sigmoid(x[j])


@_inner
def _tanhs(x: Any) -> None:
    for j in range(len(x)):
        x[j] = _tanh(x[j])


@_inner
def _parts(gates: Any) -> Any:
    """i, f, g and o of a row."""
    size = len(gates) // 4
    return gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size], gates[3 * size :]


@_inner
def _step(gates: Any, more: Any, before: Any, cell: Any, squashed: Any, state: Any) -> None:
    i, f, g, o = _parts(gates)
    for j in range(len(gates)):
        gates[j] += more[j]
    _sigmoids(i)
    _sigmoids(f)
    _tanhs(g)
    _sigmoids(o)
    for j in range(len(cell)):
        cell[j] = squashed[j] = f[j] * before[j] + i[j] * g[j]
    _tanhs(squashed)
    for j in range(len(cell)):
        state[j] = o[j] * squashed[j]


@_inner
def _step_back(gates: Any, before: Any, squashed: Any, d_state: Any, more: Any, d_cell: Any, d_gates: Any) -> None:
    i, f, g, o = _parts(gates)
    d_i, d_f, d_g, d_o = _parts(d_gates)
    one = gates.dtype.type(1)
    for j in range(len(squashed)):
        d = d_state[j] + more[j]
        d_o[j] = d * squashed[j] * (o[j] * (one - o[j]))
        d_cell[j] += d * o[j] * (one - squashed[j] * squashed[j])
    for j in range(len(squashed)):
        d = d_cell[j]
        d_i[j] = d * g[j] * (i[j] * (one - i[j]))
        d_f[j] = d * before[j] * (f[j] * (one - f[j]))
        d_g[j] = d * i[j] * (one - g[j] * g[j])
        d_cell[j] = d * f[j]


# --- the loops ----------------------------------------------------------------------------------------------------


@_kernel
def forth(gates: Any, cells: Any, squashed: Any, hidden: Any, w_hh: Any) -> None:
    """Fill a trace whose gates hold what inputs and biases give, and whose first states are zero."""
    clients, steps, samples, _ = squashed.shape
    for c in range(clients):
        weights = _panels(w_hh[c].T)
        more = np.zeros((samples, weights.shape[0] * weights.shape[2]), gates.dtype)
        for t in range(steps):
            if t:
                _product(hidden[c, t], weights, more)
            for b in range(samples):
                _step(
                    gates[c, t, b], more[b], cells[c, t, b], cells[c, t + 1, b], squashed[c, t, b], hidden[c, t + 1, b]
                )


@_kernel
def back(gates: Any, cells: Any, squashed: Any, w_hh: Any, d_states: Any, d_gates: Any) -> None:
    """The gradient of the gates before their nonlinearities, from that of the states."""
    clients, steps, samples, size = squashed.shape
    for c in range(clients):
        weights = _panels(w_hh[c])
        more = np.zeros((samples, weights.shape[0] * weights.shape[2]), gates.dtype)
        d_cell = np.zeros((samples, size), gates.dtype)
        for t in range(steps - 1, -1, -1):
            if t + 1 < steps:
                _product(d_gates[c, t + 1], weights, more)
            for b in range(samples):
                _step_back(
                    gates[c, t, b],
                    cells[c, t, b],
                    squashed[c, t, b],
                    d_states[c, t, b],
                    more[b],
                    d_cell[b],
                    d_gates[c, t, b],
                )
