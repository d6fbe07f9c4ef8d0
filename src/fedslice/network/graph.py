"""Layers with channels, and how they feed each other: what a network can upload or hold a part of.

A channel is an output of a linear or convolution layer, with its bias. Dropping some of them needs to know the layers
alone. To hold a narrower network, the first outputs of each layer and the first inputs of the next (FedDD, section
6.3), one must also know which layer feeds which, so the network is read as a graph. What lies between two layers must
treat every channel alone and turn zeros into zeros (ReLU, pooling, flatten, dropout): then channels that a client does
not hold are the same as channels that are zero, and clients of different widths can train side by side.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedslice.core import trees
from fedslice.core.errors import UserError
from fedslice.core.slice import Shapes

Channelled = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Prefixes = dict[str, tuple[int, ...]]  # per parameter, how many positions of its first dimensions are held

_BETWEEN: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.Flatten,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
)
_FUNCTIONS: set[Callable[..., Any]] = {
    *(F.relu, F.leaky_relu, F.elu, F.gelu, F.silu, F.tanh, F.dropout),
    *(F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    *(torch.relu, torch.tanh, torch.flatten, torch.squeeze, operator.getitem, operator.mul, getattr),
}
_METHODS = {"relu", "tanh", "flatten", "contiguous", "squeeze", "view", "reshape", "size"}


@dataclass(frozen=True)
class Layer:
    """A layer with channels: which one feeds it (``None``: the data), and whether its output is the network's."""

    name: str
    outputs: int
    inputs: int
    parameters: tuple[str, ...]
    source: str | None = None
    last: bool = False


def layers(module: nn.Module, shapes: Shapes) -> dict[str, Layer]:
    """The layers with channels that are trained, in the order of the module; the last is taken for the output layer."""
    found = {
        name: _layer(name, shapes)
        for name, part in module.named_modules()
        if isinstance(part, Channelled) and f"{name}.weight" in shapes
    }
    if not found:
        raise UserError(
            f"{type(module).__name__} has no channels: none of its layers is a Linear or a convolution; "
            "use slices=whole."
        )
    end = next(reversed(found))
    return found | {end: replace(found[end], last=True)}


def network(module: nn.Module, shapes: Shapes) -> dict[str, Layer]:
    """The same in the order in which they run, with what feeds each; a network that cannot be narrowed is refused."""
    try:
        traced = fx.symbolic_trace(module)
    except Exception:  # whatever a forward of the user's own raises on a symbolic value
        raise UserError(
            f"{type(module).__name__} cannot be narrowed: which layer feeds which depends on the values that its "
            "forward sees, in an if or a loop for example; use widths=1."
        ) from None
    found: dict[str, Layer] = {}
    owner: dict[fx.Node, str | None] = {}
    ends: set[str | None] = set()
    for node in traced.graph.nodes:
        sources = {owner[one] for one in node.all_input_nodes} - {None}
        if node.op == "output":
            ends = sources
        elif node.op == "call_module":
            owner[node] = _step(str(node.target), traced.get_submodule(str(node.target)), sources, found, shapes)
        else:
            known = node.target in (_METHODS if node.op == "call_method" else _FUNCTIONS)
            target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.name)
            owner[node] = _between(node.name, f"the operation {target!r}", known, sources)
    if not found:
        raise UserError(
            f"{type(module).__name__} cannot be narrowed: it has no Linear or convolution layer; use slices=whole."
        )
    return {name: replace(layer, last=name in ends) for name, layer in found.items()}


def prefixes(found: Mapping[str, Layer], outputs: float | Sequence[int]) -> Prefixes:
    """Return the part of each parameter that a narrower network holds, by a share or numbers of every layer's outputs.

    The last layer keeps all its outputs, which are the classes; numbers need not name it. A share is rounded up, so
    that no layer is left without an output.
    """
    inner = [layer for layer in found.values() if not layer.last]
    if isinstance(outputs, float):
        kept = {layer.name: max(1, math.ceil(layer.outputs * outputs - 1e-9)) for layer in inner}
    else:
        if len(outputs) not in (len(inner), len(found)):
            raise UserError(
                f"widths={_joined(outputs)} gives outputs of {len(outputs)} layers, but the network has "
                f"{len(inner)} before its last: {', '.join(layer.name for layer in inner)}."
            )
        kept = dict(zip(found, outputs, strict=False))
        for name, number in kept.items():
            least = found[name].outputs if found[name].last else 1
            if not least <= number <= found[name].outputs:
                raise UserError(
                    f"widths={_joined(outputs)}: layer {name!r} has {found[name].outputs} outputs, and "
                    f"{number} of them cannot be held; give {least} to {found[name].outputs}."
                )
    out: Prefixes = {}
    for layer in found.values():
        own = kept.get(layer.name, layer.outputs)
        fed = layer.inputs
        if layer.source is not None:
            source = found[layer.source]
            fed = kept.get(source.name, source.outputs) * (layer.inputs // source.outputs)
        for name in layer.parameters:
            out[name] = (own, fed) if name.endswith(".weight") else (own,)
    return out


def _joined(outputs: Sequence[int]) -> str:
    return "-".join(map(str, outputs))


def _layer(name: str, shapes: Shapes, source: str | None = None) -> Layer:
    outputs, inputs = shapes[f"{name}.weight"][:2]
    parameters = tuple(key for key in (f"{name}.{kind}" for kind in ("weight", "bias")) if key in shapes)
    return Layer(name, outputs, inputs, parameters, source)


def _step(name: str, part: nn.Module, sources: set[str | None], found: dict[str, Layer], shapes: Shapes) -> str | None:
    """A module of the graph: a layer, something harmless between two, or the reason for a refusal."""
    if not isinstance(part, Channelled):
        return _between(name, f"{type(part).__name__} ({name!r})", isinstance(part, _BETWEEN), sources)
    source = _one(name, sources)
    trouble = None
    if getattr(part, "groups", 1) != 1:
        trouble = "its groups tie channels together"
    elif name in found:
        trouble = "it is used twice"
    elif f"{name}.weight" not in shapes:
        trouble = "its weight is shared with another layer, or is not trained"
    elif part.bias is not None and f"{name}.bias" not in shapes:
        trouble = "its bias is not trained"
    elif source is not None and shapes[f"{name}.weight"][1] % found[source].outputs:
        trouble = (
            f"its {shapes[f'{name}.weight'][1]} inputs are no multiple of the {found[source].outputs} outputs of "
            f"{source!r}"
        )
    if trouble:
        raise UserError(f"layer {name!r} cannot be narrowed: {trouble}; use widths=1.")
    found[name] = _layer(name, shapes, source)
    return name


def _between(name: str, what: str, known: bool, sources: set[str | None]) -> str | None:
    """Anything else: before the first layer it may do what it likes, behind it only what treats channels alone."""
    source = _one(name, sources)
    if source is not None and not known:
        raise UserError(
            f"layer {source!r} cannot be narrowed: {what} lies behind it, where only ReLU and its like, "
            "pooling, flatten and dropout may; use widths=1."
        )
    return source


def _one(name: str, sources: set[str | None]) -> str | None:
    if len(sources) > 1:
        joined = " and ".join(repr(one) for one in sorted(map(str, sources)))
        raise UserError(f"layers {joined} cannot be narrowed: {name!r} joins their outputs; use widths=1.")
    return next(iter(sources), None)


def same_when_narrow(forward: Callable[[dict[str, Tensor]], Any], whole: dict[str, Tensor], held: Prefixes) -> bool:
    """Does the narrow network give what the whole one gives whose other channels are zero?

    The graph does not show everything: a ``view`` may count on the full number of channels.
    """
    cuts = {name: tuple(slice(count) for count in counts) for name, counts in held.items()}
    zeroed = {name: torch.zeros_like(value) if name in cuts else value for name, value in whole.items()}
    narrow = dict(whole)
    for name, cut in cuts.items():
        narrow[name] = whole[name][cut]
        zeroed[name][cut] = narrow[name]
    try:
        found, expected = forward(narrow), forward(zeroed)
    except (RuntimeError, ValueError, IndexError):
        return False
    return trees.alike(found, expected)
