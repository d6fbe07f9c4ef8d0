"""Lookups with ``padding_idx`` whose gradient is right for every client of a chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class PaddingRows(TorchFunctionMode):
    """A context in which a lookup of ``padding_idx`` gives its row and no gradient to it.

    PyTorch does so by itself, but under ``vmap`` for the first client alone.

    Attributes:
        seen: Whether there was such a lookup.
    """

    seen = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run any function; an embedding with what its padding looks up held still."""
        kwargs = kwargs or {}
        if func is not F.embedding:
            return func(*args, **kwargs)
        return self._embedding(*args, **kwargs)

    def _embedding(self, input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **more: Any) -> Any:
        found: Tensor = F.embedding(input, weight, None, *args, **more)
        if padding_idx is None:
            return found
        self.seen = True
        return torch.where((input == padding_idx % len(weight))[..., None], found.detach(), found)
