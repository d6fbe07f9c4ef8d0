"""The compiled loops of fedslice.nn.LSTM against the loops in Python, torch.nn.LSTM and exact nonlinearities."""

import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, grad, vmap

import fedslice.nn
from fedslice.nn import LSTM, recurrence
from fedslice.training.engines.scope import threads
from test_lstm import gradients, plain

pytest.importorskip("numba", reason="the compiled loops need numba")

from numba import njit
from numba.core import caching

from fedslice.nn import kernels

CLOSE: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"rtol": 1e-4, "atol": 2e-5},
    torch.float64: {"rtol": 1e-9, "atol": 1e-12},
}
TYPES = list(CLOSE)
single_and_double = pytest.mark.parametrize("dtype", TYPES)


class Cohort(NamedTuple):
    """What recur takes, stacked by client."""

    x: Tensor
    lengths: Tensor
    parameters: list[Tensor]


def cohort(sizes: Any, dtype: torch.dtype, seed: int = 0) -> Cohort:
    """Of sizes (clients, samples, places, inputs, hidden, layers); lengths differ and may be 0."""
    clients, samples, places, inputs, hidden, layers = sizes
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, places + 1, (clients, samples), generator=draw)
    shapes = [p.shape for p in LSTM(inputs, hidden, layers).parameters()]
    values = [torch.randn(clients, *shape, generator=draw, dtype=dtype) for shape in shapes]
    return Cohort(torch.randn(clients, samples, places, inputs, generator=draw, dtype=dtype), lengths, values)


def trained(given: Cohort) -> list[Tensor]:
    """Outputs, last states, and gradients of all."""
    leaves = [value.detach().requires_grad_() for value in (given.x, *given.parameters)]
    results = recurrence.recur(True, leaves[0], given.lengths, *leaves[1:])
    return [*results, *gradients(results, leaves)]


def in_python(given: Cohort) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "compiled", lambda values: None)
        return trained(given)


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(*(st.integers(*bounds) for bounds in ((1, 3), (0, 9), (0, 4), (1, 5), (1, 20), (1, 3)))),
    st.sampled_from(TYPES),
    st.integers(0, 1000),
)
def test_compiled_and_python_loops_agree(sizes: Any, dtype: torch.dtype, seed: int) -> None:
    made = cohort(sizes, dtype, seed)
    torch.testing.assert_close(trained(made), in_python(made), **CLOSE[dtype])


@single_and_double
@pytest.mark.parametrize("samples", range(1, 10))
@pytest.mark.parametrize("hidden", [13, 100])
def test_values_and_gradients_are_those_of_torch(samples: int, hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(samples)
    layer = LSTM(7, hidden, 2).to(dtype)
    x = torch.randn(samples, 6, 7, dtype=dtype, requires_grad=True)
    lengths = torch.arange(samples) % 7
    lengths[0] = 6
    inputs = [x, *layer.parameters()]
    mine, theirs = layer(x, lengths), plain(layer, x, lengths)
    torch.testing.assert_close(mine, theirs, **CLOSE[dtype])
    torch.testing.assert_close(gradients(mine, inputs), gradients(theirs, inputs), **CLOSE[dtype])


@single_and_double
def test_memory_may_lie_in_any_order(dtype: torch.dtype) -> None:
    made = cohort((3, 4, 5, 3, 6, 2), dtype)

    def strided(value: Tensor) -> Tensor:
        """The same values, with the axes reversed in memory and a gap after each."""
        wide = value.repeat_interleave(2, -1) if value.dim() else value
        return wide.movedim(0, -1).clone().movedim(-1, 0)[..., ::2]

    turned = Cohort(strided(made.x), made.lengths, [strided(value) for value in made.parameters])
    assert not turned.parameters[1].is_contiguous()
    torch.testing.assert_close(trained(turned), trained(made), **CLOSE[dtype])


@single_and_double
def test_threads_do_not_change_a_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cohort((7, 5, 6, 4, 12, 2), dtype)
    monkeypatch.setattr(recurrence, "_TOGETHER", 2 * 4 * 12 * 12 * dtype.itemsize)  # two clients in a group
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(trained(made))
            assert torch.get_num_threads() == count
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0)


def test_a_gradient_may_be_taken_by_functions() -> None:
    """torch.func.grad around vmap hands the backward pass tensors without memory of their own."""
    x, lengths, parameters = cohort((3, 2, 4, 3, 5, 1), torch.float64)
    layer = LSTM(3, 5).double()
    names = [name for name, _ in layer.named_parameters()]

    def objective(*values: Tensor) -> Tensor:
        def one(x: Tensor, lengths: Tensor, *values: Tensor) -> Tensor:
            return functional_call(layer, dict(zip(names, values, strict=True)), (x, lengths))[1]

        return vmap(one)(x, lengths, *values).sin().sum()

    leaves = [value.requires_grad_() for value in parameters]
    expected = torch.autograd.grad(objective(*leaves), leaves)
    torch.testing.assert_close(grad(objective, argnums=tuple(range(len(leaves))))(*parameters), expected)


# --- nonlinearities ---------------------------------------------------------------------------------------------------


def through(values: Any, kind: Any) -> tuple[np.ndarray, np.ndarray]:
    """The sigmoid and the tanh of the values as the gates i and g of a first step have them."""
    values = np.asarray(values, kind)
    size = len(values)
    gates = np.concatenate([values, values, values, values])[None, None, None]
    cells, hidden = np.zeros((2, 1, 2, 1, size), kind)
    kernels.forth(gates, cells, np.empty((1, 1, 1, size), kind), hidden, np.zeros((1, 4 * size, size), kind))
    i, f, g, o = gates.reshape(4, size)
    for other in (f, o):
        np.testing.assert_array_equal(other, i)
    return i, g


@pytest.mark.parametrize(("kind", "tolerance"), [(np.float32, 4 * 2.0**-23), (np.float64, 1e-13)])
def test_nonlinearities_are_exact_to_the_last_places(kind: Any, tolerance: float) -> None:
    """Relative to the value, so that small ones count as much; up to where exp of a single number ends."""
    small = np.logspace(-30, np.log10(80), 500)
    values = np.concatenate([-small, [0.0], small, np.linspace(-12, 12, 500)]).astype(kind)
    exact = values.astype(np.longdouble)
    sigmoid, tanh = through(values, kind)
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-exact)), rtol=tolerance)
    np.testing.assert_allclose(tanh, np.tanh(exact), rtol=tolerance)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nonlinearities_saturate_and_nan_stays(kind: Any) -> None:
    sigmoid, tanh = through([-np.inf, -1e30, -1e4, np.nan, 1e4, 1e30, np.inf], kind)
    np.testing.assert_allclose(sigmoid, [0, 0, 0, np.nan, 1, 1, 1], rtol=0, atol=2 * np.finfo(kind).tiny)
    np.testing.assert_array_equal(tanh, [-1, -1, -1, np.nan, 1, 1, 1])


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20), st.sampled_from([np.float32, np.float64])
)
def test_nonlinearities_keep_their_bounds_and_symmetries(values: list[float], kind: Any) -> None:
    sigmoid, tanh = through(values, kind)
    mirrored, negative = through([-value for value in values], kind)
    assert ((sigmoid >= 0) & (sigmoid <= 1) & (abs(tanh) <= 1)).all()
    np.testing.assert_array_equal(negative, -tanh)
    np.testing.assert_allclose(sigmoid + mirrored, 1, rtol=4 * np.finfo(kind).eps)


@single_and_double
@pytest.mark.parametrize("scale", [1e4, float("inf"), float("nan")])
def test_extreme_inputs_give_what_python_loops_give(scale: float, dtype: torch.dtype) -> None:
    """Of one client; the others do not notice."""
    made = cohort((3, 4, 5, 3, 6, 2), dtype)
    made.lengths.fill_(5)
    clean = trained(made)
    made.x[1, 2, 3] *= scale
    extreme = trained(made)
    torch.testing.assert_close(extreme, in_python(made), equal_nan=True, **CLOSE[dtype])
    for value, before in zip(extreme, clean, strict=True):
        torch.testing.assert_close(value[[0, 2]], before[[0, 2]], rtol=0, atol=0)
    assert extreme[0][1].isfinite().all() == (scale == 1e4)


# --- when they are used -----------------------------------------------------------------------------------------------


def test_they_are_loaded_when_first_used() -> None:
    program = "import sys, fedslice.nn; fedslice.nn.LSTM(2, 2); sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_they_are_for_plain_numbers_on_the_cpu() -> None:
    assert recurrence.compiled(torch.zeros(1)) is kernels
    assert recurrence.compiled(torch.zeros(1, dtype=torch.bfloat16)) is None
    assert recurrence.compiled(torch.zeros(1, device="meta")) is None


def test_a_numba_that_does_not_load_is_told_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fedslice.nn, "kernels")
    monkeypatch.setitem(sys.modules, "fedslice.nn.kernels", None)
    with pytest.warns(UserWarning, match="numba cannot be used, so the LSTM runs slower"):
        assert recurrence._kernels.__wrapped__() is None


def test_they_compile_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(x: Any) -> None:
        x[0] *= 2

    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        njit(cache=True)(double)
    numbers = np.ones(1)
    kernels._kernel(double)(numbers)
    assert numbers[0] == 2
