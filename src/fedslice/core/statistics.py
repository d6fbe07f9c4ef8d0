"""Running statistics: buffers that a layer changes while it trains, as batch normalisation does.

They are averages over batches and have no gradient, so they are no part of what is trained, compressed or corrected.
They travel beside the model as they are, and the server averages them with the weights of the merge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedslice.core.encodings import Counts, Floats
from fedslice.core.message import AnyField, Field, Fields

if TYPE_CHECKING:
    from fedslice.core.spec import Spec

PREFIX = "statistics."  # before the names of fields and memories
_NOT_NEGATIVE = ("running_var", "num_batches_tracked")


def layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that normalise and keep running statistics while they train, by name."""
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and part.training and part.running_mean is not None:
            yield name, part


def statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of a module, by name."""
    return {
        f"{name}.{key}" if name else key: value
        for name, part in layers(module)
        for key, value in part.named_buffers(recurse=False)
    }


def mixes_samples(module: nn.Module) -> bool:
    """Return whether a layer normalises over the samples of a batch while it trains."""
    parts = (part for part in module.modules() if isinstance(part, _BatchNorm))
    return any(part.training or part.running_mean is None for part in parts)


def fields(spec: Spec) -> Fields:
    """Return the fields of the statistics that travel, down and up alike."""
    out: dict[str, AnyField] = {}
    for name in spec.recipe.slices.statistics(spec):
        like = spec.statistics[name]
        kind = Floats(like.dtype, negative=not not_negative(name)) if like.is_floating_point() else Counts(64)
        out[PREFIX + name] = Field(kind, shape=(like.numel(),), about="running statistics")
    return out


def not_negative(name: str) -> bool:
    """Return whether values of this statistic below zero are wrong."""
    return name.endswith(_NOT_NEGATIVE)


def usable(name: str, values: Tensor) -> Tensor:
    """Return whose values [clients, ...] can be averaged [clients]."""
    flat = values.reshape(len(values), -1)
    fine = torch.isfinite(flat).all(1)
    return (fine & (flat >= 0).all(1) if not_negative(name) else fine).cpu()
