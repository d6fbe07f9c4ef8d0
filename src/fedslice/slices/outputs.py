"""Outputs of a layer of which a slice leaves some out: as flags, as positions that a message names, as a slice.

A slice may lack parameters of a layer, if they are a client's own. A layer of which it has none is not sent at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedslice.core.encodings import Ids
from fedslice.core.message import Field
from fedslice.core.slice import Axis, Slice
from fedslice.network.graph import Layer


def parameters(layer: Layer, part: Slice) -> list[str]:
    """Return the layer's parameters in a slice."""
    return [name for name in layer.parameters if name in part.axes]


def held_outputs(layer: Layer, part: Slice, device: torch.device) -> Tensor:
    """Return which of the layer's outputs are in a slice [clients, outputs]."""
    axis = _axis(layer, part)
    if axis is None:
        return torch.ones(part.clients, layer.outputs, dtype=torch.bool, device=device)
    every = torch.arange(layer.outputs, device=axis.counts.device).expand(part.clients, -1)
    return axis.contains(every.contiguous()).to(device)


def positions(layer: Layer, hold: Slice, chosen: Tensor) -> Axis:
    """Return those of the layer's ``chosen`` outputs [clients, outputs] that clients hold."""
    held = held_outputs(layer, hold, chosen.device)
    flags = chosen & held
    axis = Axis.from_flat(flags.nonzero()[:, 1], flags.sum(1))
    axis.first = (flags == held).all(1)  # the first outputs, as many as the client has
    return axis


def restricted(hold: Slice, axes: dict[Layer, Axis]) -> Slice:
    """Return a slice with these outputs alone of some layers. Of the axes only the counts are read."""
    changes: dict[str, Axis | None] = {}
    for layer, axis in axes.items():
        mine = _axis(layer, hold)
        held = torch.tensor(layer.outputs) if mine is None else mine.counts.cpu()
        every = bool((axis.counts.cpu() == held).all())
        changes |= dict.fromkeys(parameters(layer, hold), mine if every else axis)
    return hold.replace(changes)


def ids_field(layer: Layer, hold: Slice) -> Field:
    """Return the field that names outputs of a layer among those that are held."""
    axis = _axis(layer, hold)
    about = f"the outputs of {layer.name} that it sends"
    return Field(Ids(), of=layer.outputs if axis is None else axis, about=about)


def _axis(layer: Layer, part: Slice) -> Axis | None:
    return part.axes[parameters(layer, part)[0]][0]
