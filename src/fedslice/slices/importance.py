"""Importance of channels, from their values before and after local training (FedDD, section 5).

Every score takes values [clients, channels, entries] before and after, and how many of the layer's entries each client
holds; entries that a client lacks are zero in both. It gives [clients, channels].
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.linalg import vector_norm

_FLOOR = 1e-3  # of the layer's root mean square: below, a weight counts as zero
_ZERO = 1e-8  # the same for a layer of zeros


def importance(before: Tensor, after: Tensor, sizes: Tensor) -> Tensor:
    """I_k = ‖ΔW·(W + ΔW)/W‖ over the entries of channel k (equation 20).

    A weight that begins at zero, as biases do, would make its channel infinitely important; so small a weight counts
    as large as the floor, with its own sign.
    """
    floor = _floor(before, sizes)
    divisor = torch.where(before < 0, -1.0, 1.0) * before.abs().maximum(floor)
    return _norm((after - before) * after / divisor)


def norm_ratio(before: Tensor, after: Tensor, sizes: Tensor) -> Tensor:
    """‖ΔW‖·‖W + ΔW‖/‖W‖ of each channel: the same product of norms, which no single weight can dominate."""
    floor = _floor(before, sizes)[..., 0]
    return moved(before, after, sizes) * largest(before, after, sizes) / _norm(before).maximum(floor)


def largest(before: Tensor, after: Tensor, sizes: Tensor) -> Tensor:  # noqa: ARG001
    """‖W + ΔW‖ of each channel."""
    return _norm(after)


def moved(before: Tensor, after: Tensor, sizes: Tensor) -> Tensor:  # noqa: ARG001
    """‖ΔW‖ of each channel."""
    return _norm(after - before)


def _norm(values: Tensor) -> Tensor:
    found: Tensor = vector_norm(values, dim=2)
    return found


def _floor(values: Tensor, sizes: Tensor) -> Tensor:
    """[clients, 1, 1]: the least magnitude of a divisor, by the entries that the client holds."""
    squares = values.square().sum((1, 2), keepdim=True) / sizes.view(-1, 1, 1)
    floor = _FLOOR * squares.sqrt()
    return torch.where(floor > 0, floor, _ZERO)


SCORES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "importance": importance,
    "norm-ratio": norm_ratio,
    "max": largest,
    "delta": moved,
}
