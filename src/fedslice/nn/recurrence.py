"""The LSTM of many clients at once: one loop over time forward and one back, every client with weights of its own.

Values lie as [clients, time, samples, ...]. The rows of a client are then one matrix for the products that need no loop
(inputs, gradients of weights), and a time step is one matrix per client for the product that does. Inside the loops
there is that product and a few operations in place.

Groups of clients run on threads of their own. Where numba is installed the loops are compiled
(:mod:`fedslice.nn.kernels`); those in here do the same, for other devices and types of numbers and without numba.

A sample that has ended runs on over zeros until the longest one ends. What it computes there is finite and cut off at
the end, so it has no gradient either, and the loops need not know about lengths.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fedslice.core.errors import UserError
from fedslice.nn.threads import shared_out

_PER_LAYER = 4  # parameters
# Bytes of recurrent weights that run together. Every time step reads them all, so they should stay in the cache; with
# too few, the fixed price of an operation shows. Measured at 160 kB per client: 10 to 25 clients tie, 5 and 50 lose.
_TOGETHER = 2 << 20
# Gradients through a sigmoid and a tanh from their values y: grad·y·(1 − y) and grad·(1 − y²), in one pass.
_through_sigmoid, _through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward


def recur(whole: bool, x: Tensor, lengths: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
    """The top layers' states [C, B, T, H] for x [C, B, T, I], and each sample's last one [C, B, H].

    ``parameters`` are four per layer (input and recurrent weights, input and recurrent biases), one of each per client.
    If not the ``whole`` is asked for, the former have no time steps.
    """
    outputs, last, *_ = _Recurrence.apply(whole, x, lengths, *parameters)  # type: ignore[no-untyped-call]
    return outputs, last


def compiled(values: Tensor) -> Any:
    """The compiled loops, if there are any for such values; those that ``torch.func.grad`` wraps hide their memory."""
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64) or is_wrapped(values):
        return None
    return _kernels()


@cache
def _kernels() -> Any:
    """Loaded when they are first needed, because that takes a while."""
    if find_spec("numba") is None:
        return None
    try:
        from fedslice.nn import kernels
    except ImportError as error:
        warnings.warn(f"numba cannot be used, so the LSTM runs slower: {error}", stacklevel=2)
        return None
    return kernels


class _Trace(NamedTuple):
    """Values of a layer that its gradient needs; states begin with the zero state, one step before the first."""

    gates: Tensor  # i, f, g, o [C, T, B, 4H]
    cells: Tensor  # [C, T + 1, B, H]
    squashed: Tensor  # tanh of the cells [C, T, B, H]
    hidden: Tensor  # [C, T + 1, B, H]


class _Recurrence(Function):
    """The recurrence with its gradient. Outputs beyond the two results are traces for it, by group and layer."""

    @staticmethod
    def forward(whole: bool, x: Tensor, lengths: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        """Group by group and layer by layer, each over all time steps."""
        clients, samples, places, _ = x.shape
        size = parameters[1].shape[-1]
        _check(lengths, places)
        outputs = x.new_zeros(clients, samples, places if whole else 0, size)
        last = x.new_empty(clients, samples, size)

        def run(group: slice) -> list[Tensor]:
            here = _here(lengths[group])
            states = _by_time(x[group], here)
            kept: list[Tensor] = []
            for k in range(0, len(parameters), _PER_LAYER):
                trace = _forth(states, *(value[group] for value in parameters[k : k + _PER_LAYER]))
                states = trace.hidden[:, 1:]
                kept += trace
            if whole:
                outputs[group, :, : states.shape[1]] = torch.where(here, states, 0.0).transpose(1, 2)
            last[group] = trace.hidden[_ends(lengths[group])]
            return kept

        return outputs, last, *chain.from_iterable(shared_out(run, _groups(parameters[1])))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep everything, and make no zeros for an output that nobody used."""
        if len(output) == 2:
            raise UserError("LSTM: found a gradient inside vmap, expected one around it; take the gradient of the sum.")
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[1:], *output[2:])
        ctx.parameters = len(inputs) - 3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor | None, d_last: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        """Layer by layer from the top: the loop gives the gradient of the gates, one product each gives the others."""
        x, lengths, *rest = ctx.saved_tensors
        parameters, kept = rest[: ctx.parameters], [*_batched(rest[ctx.parameters :], len(_Trace._fields))]
        layers = len(parameters) // _PER_LAYER
        _, wanted_x, _, *wanted = ctx.needs_input_grad
        d_x = torch.zeros_like(x) if wanted_x else None
        gradients = [torch.empty_like(value) if need else None for value, need in zip(parameters, wanted, strict=True)]

        def run(piece: tuple[int, slice]) -> None:
            number, group = piece
            traces = [_Trace(*each) for each in kept[number * layers :][:layers]]
            here = _here(lengths[group])
            d_hidden = torch.zeros_like(traces[-1].hidden)
            if d_outputs is not None and d_outputs.numel():
                d_hidden[:, 1:] = _by_time(d_outputs[group], here)
            if d_last is not None:
                d_hidden[_ends(lengths[group])] += d_last[group]
            d_states = d_hidden[:, 1:]
            for layer in reversed(range(layers)):
                k = layer * _PER_LAYER
                states = traces[layer - 1].hidden[:, 1:] if layer else _by_time(x[group], here)
                d_gates = _back(traces[layer], parameters[k + 1][group], d_states).flatten(1, 2)
                for target, source in ((k, states), (k + 1, traces[layer].hidden[:, :-1])):
                    if (into := gradients[target]) is not None:
                        torch.bmm(d_gates.mT, source.flatten(1, 2), out=into[group])
                for target in (k + 2, k + 3):
                    if (into := gradients[target]) is not None:
                        torch.sum(d_gates, 1, out=into[group])
                if layer or wanted_x:
                    d_states = (d_gates @ parameters[k][group]).unflatten(1, traces[layer].squashed.shape[1:3])
            if d_x is not None:
                d_x[group, :, : d_states.shape[1]] = d_states.transpose(1, 2)

        shared_out(run, [*enumerate(_groups(parameters[1]))])
        return None, d_x, None, *gradients

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], whole: bool, *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        """The mapped axis joins the clients' axis."""
        outputs, last = recur(
            whole,
            *(
                (value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)).flatten(0, 1)
                for value, dim in zip(inputs, in_dims[1:], strict=True)
            ),
        )
        return tuple(value.unflatten(0, (info.batch_size, -1)) for value in (outputs, last)), (0, 0)


def _batched(values: Sequence[Tensor], count: int) -> Iterator[tuple[Tensor, ...]]:
    """So many at a time."""
    rest = iter(values)
    while part := tuple(islice(rest, count)):
        yield part


def _groups(recurrent: Tensor) -> list[slice]:
    """Clients that run together; a group runs as long as its longest sample."""
    clients = len(recurrent)
    together = max(1, _TOGETHER // max(1, recurrent[0].numel() * recurrent.element_size())) if clients else 1
    count = -(-clients // together)
    edges = [clients * k // count for k in range(count + 1)] if count else [0]
    return [slice(first, last) for first, last in pairwise(edges)]


def _check(lengths: Tensor, places: int) -> None:
    if not lengths.numel():
        return
    low, high = (int(bound) for bound in lengths.aminmax())
    if low < 0 or high > places:
        raise UserError(
            f"LSTM: found lengths from {low} to {high} for sequences of {places} positions, expected 0 to {places}; "
            "give the number of valid positions of each sequence."
        )


def _here(lengths: Tensor) -> Tensor:
    """True where a sample has not ended [C, T, B, 1], with as many time steps as the longest has."""
    steps = int(lengths.max()) if lengths.numel() else 0
    return (torch.arange(steps, device=lengths.device)[:, None] < lengths[:, None])[..., None]


def _ends(lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Index of each sample's last state among states that begin with the zero state."""
    clients, samples = (torch.arange(size, device=lengths.device) for size in lengths.shape)
    return clients[:, None], lengths, samples


def _by_time(values: Tensor, here: Tensor) -> Tensor:
    """From [C, B, T, ...] to [C, T, B, ...], cut to the steps that are run and zero beyond each sample's end."""
    return torch.where(here, values[:, :, : here.shape[1]].transpose(1, 2), 0.0)


def _forth(states: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> _Trace:
    """One layer over all time steps."""
    clients, steps, samples, _ = states.shape
    size = w_hh.shape[-1]
    bias = (b_ih + b_hh)[:, None]
    gates = torch.baddbmm(bias, states.flatten(1, 2), w_ih.mT).unflatten(1, (steps, samples))
    squashed = gates.new_empty(clients, steps, samples, size)
    cells, hidden = (gates.new_empty(clients, steps + 1, samples, size) for _ in range(2))
    cells[:, 0] = hidden[:, 0] = 0.0
    trace = _Trace(gates, cells, squashed, hidden)
    if (kernels := compiled(gates)) is None:
        _fill(trace, w_hh)
    else:
        kernels.forth(*map(_array, (*trace, w_hh)))
    return trace


def _fill(trace: _Trace, w_hh: Tensor) -> None:
    """From gates that hold what inputs and biases give: c ← f·c + i·g, h ← o·tanh(c)."""
    gates, cells, squashed, hidden = trace
    clients, _, samples, size = squashed.shape
    recurrent = gates.new_empty(clients, samples, 4 * size)  # a product runs batched only if its result is contiguous
    c, h = cells.unbind(1), hidden.unbind(1)
    i_f = gates[..., : 2 * size].unbind(1)
    i, f, g, o = (gate.unbind(1) for gate in gates.chunk(4, -1))
    for t, (now, tanh_c) in enumerate(zip(gates.unbind(1), squashed.unbind(1), strict=True)):
        if t:  # before the first step the state is zero
            torch.bmm(h[t], w_hh.mT, out=recurrent)
            now.add_(recurrent)
        i_f[t].sigmoid_()
        g[t].tanh_()
        o[t].sigmoid_()
        torch.mul(f[t], c[t], out=c[t + 1])
        c[t + 1].addcmul_(i[t], g[t])
        torch.tanh(c[t + 1], out=tanh_c)
        torch.mul(o[t], tanh_c, out=h[t + 1])


def _back(trace: _Trace, w_hh: Tensor, d_states: Tensor) -> Tensor:
    """The gradient of a layer's gates before their nonlinearities [C, T, B, 4H], from that of its states."""
    d_gates = torch.empty_like(trace.gates)
    if (kernels := compiled(d_gates)) is None:
        _unroll(trace, w_hh, d_states, d_gates)
    else:
        kernels.back(*map(_array, (trace.gates, trace.cells, trace.squashed, w_hh, d_states, d_gates)))
    return d_gates


def _unroll(trace: _Trace, w_hh: Tensor, d_states: Tensor, d_gates: Tensor) -> None:
    """Step by step from the last.

    The gradient of i, f and g is that of the new cell times a factor, and of o that of the state times a factor. The
    factors depend on nothing that comes later, so they are laid down for all steps beforehand.
    """
    gates, cells, squashed, _ = trace
    size = squashed.shape[-1]
    i, f, g, o = gates.chunk(4, -1)
    d_i, d_f, d_g, d_o = d_gates.chunk(4, -1)
    _through_sigmoid.grad_input(g, i, grad_input=d_i)
    _through_sigmoid.grad_input(cells[:, :-1], f, grad_input=d_f)
    _through_tanh.grad_input(i, g, grad_input=d_g)
    _through_sigmoid.grad_input(squashed, o, grad_input=d_o)
    h_to_c = _through_tanh(o, squashed)
    dh, dc = (torch.zeros_like(cells[:, 0], memory_format=torch.contiguous_format) for _ in range(2))
    d_ifg = d_gates[..., : 3 * size].unflatten(-1, (3, size))
    steps = zip(*(each.unbind(1) for each in (d_states, h_to_c, d_o, d_ifg, f, d_gates)), strict=True)
    later: Tensor | None = None
    for d_state, from_h, o_now, ifg_now, forget, now in reversed(list(steps)):
        if later is not None:
            torch.bmm(later, w_hh, out=dh)
        dh.add_(d_state)
        dc.addcmul_(dh, from_h)
        o_now.mul_(dh)
        ifg_now.mul_(dc.unsqueeze(-2))
        dc.mul_(forget)
        later = now


def _array(values: Tensor) -> Any:
    """The same memory for a compiled loop; what is only read may be laid out again first."""
    return values.detach().contiguous().numpy()
