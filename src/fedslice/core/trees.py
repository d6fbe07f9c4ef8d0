"""A network's outputs: one tensor, or several in a tuple, a list or a dictionary, each with a leading sample axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map


def each(function: Callable[[Tensor], Tensor], output: Any) -> Any:
    """Return the output with ``function`` of every tensor in the place of the tensor."""
    return function(output) if isinstance(output, Tensor) else tree_map(function, output)


def leaves(output: Any) -> list[Any]:
    """Return the tensors of an output, and whatever else is in it."""
    return tree_leaves(output)


def named(output: Any) -> list[tuple[str, Any]]:
    """Return what is in an output, each with where it stands, as ``['size']``; of a single tensor nothing."""
    return [(keystr(path), leaf) for path, leaf in tree_flatten_with_path(output)[0]]


def joined(outputs: Sequence[Any], dim: int = 0) -> Any:
    """Return outputs for some samples each as one."""
    return tree_map(lambda *parts: torch.cat(parts, dim), *outputs)


def stacked(outputs: Sequence[Any]) -> Any:
    """Return outputs of several clients, on a leading axis."""
    return tree_map(lambda *parts: torch.stack(parts), *outputs)


def shapes(output: Any) -> str:
    """Return the shapes of all tensors for a message.

    >>> shapes(torch.zeros(2, 3)), shapes({"a": torch.zeros(2), "b": torch.zeros(2, 1)})
    ('(2, 3)', "(2,) in ['a'] and (2, 1) in ['b']")
    """
    if isinstance(output, Tensor):
        return str(tuple(output.shape))
    return " and ".join(f"{tuple(leaf.shape)} in {where}" for where, leaf in named(output)) or "nothing"


def floating(output: Any) -> list[Tensor]:
    """Return the tensors of floating-point numbers in an output."""
    return [leaf for leaf in leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def alike(one: Any, other: Any) -> bool:
    """Return whether two outputs have the same shapes and, up to rounding, the same values."""
    pairs = list(zip(leaves(one), leaves(other), strict=True))
    return all(a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in pairs)
