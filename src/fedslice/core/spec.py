"""The knowledge that both sides of a run share: network structure, tables, recipe and shared seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from fedslice.core import statistics
from fedslice.core.message import Field
from fedslice.core.slice import Shapes

if TYPE_CHECKING:
    from fedslice.recipe import Recipe

SCHEMA = 1  # version of the messages
T = TypeVar("T")


@dataclass(frozen=True)
class TableGroup:
    """Tables that are indexed by the same features: a client holds the same rows of all of them.

    Args:
        features: The features whose ids are row numbers.
        tables: The parameters.
        rows: How many rows each of them has.
    """

    features: tuple[str, ...]
    tables: tuple[str, ...]
    rows: int

    @property
    def name(self) -> str:
        """The name of the group in messages: that of its first table."""
        return self.tables[0]


@dataclass(frozen=True, eq=False)
class Spec:
    """An agreement between server and clients before the first message. It has no data and no model values.

    Args:
        module: The network. Its own values are never used.
        loss: Loss per sample.
        groups: The tables.
        recipe: The method.
        seed: The shared seed, from which both sides draw what they must draw alike.
        rounds: How long the run is, if that is known.
        name: What errors call the task.
        timed: Whether clients know how fast their devices are, so that parts may ask for it.
        metrics: What clients measure on their own test samples when they are asked to.
    """

    module: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor] | None
    groups: tuple[TableGroup, ...]
    recipe: Recipe
    seed: int = 0
    rounds: int | None = None
    name: str = "task"
    timed: bool = False
    metrics: tuple[str, ...] = ("loss",)

    @cached_property
    def shapes(self) -> Shapes:
        """Shape of every trainable parameter."""
        return {name: p.shape for name, p in self.module.named_parameters() if p.requires_grad}

    @cached_property
    def dtypes(self) -> dict[str, torch.dtype]:
        """Type of every trainable parameter."""
        return {name: p.dtype for name, p in self.module.named_parameters() if p.requires_grad}

    @cached_property
    def statistics(self) -> dict[str, Tensor]:
        """The running statistics of the network, by name, as it has them before training."""
        return {name: value.clone() for name, value in statistics.statistics(self.module).items()}

    @cached_property
    def kinds(self) -> frozenset[torch.dtype]:
        """Types that some parameter has."""
        return frozenset(self.dtypes.values())

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of the model's values; of several the first."""
        return next(iter(self.dtypes.values()))

    @property
    def itemsize(self) -> int:
        """Bytes of one parameter value; of several types the largest."""
        return max(dtype.itemsize for dtype in self.dtypes.values())

    @property
    def size(self) -> int:
        """Number of values of the model."""
        return sum(shape.numel() for shape in self.shapes.values())

    @property
    def model_bytes(self) -> int:
        """Bytes of the model's values."""
        return sum(shape.numel() * self.dtypes[name].itemsize for name, shape in self.shapes.items())

    @cached_property
    def tables(self) -> Mapping[str, TableGroup]:
        """The group of each table."""
        return {table: group for group in self.groups for table in group.tables}

    def once(self, key: Hashable, derive: Callable[[], T]) -> T:
        """Return what ``derive`` returns, calling it once per key: for what parts derive from the network."""
        if key not in self._derived:
            self._derived[key] = derive()
        found: T = self._derived[key]
        return found

    @cached_property
    def _derived(self) -> dict[Hashable, Any]:
        return {}

    @cached_property
    def fingerprint(self) -> bytes:
        """Eight bytes that tell whether two sides derive the same messages."""
        settings = self.recipe.settings()
        said = {
            "schema": SCHEMA,
            "parameters": {name: [str(self.dtypes[name]), *shape] for name, shape in self.shapes.items()},
            "statistics": {name: [str(value.dtype), *value.shape] for name, value in self.statistics.items()},
            "groups": [[group.name, group.rows] for group in self.groups],
            "timed": self.timed,
            "metrics": self.metrics,
            "facts": {
                name: [repr(fact.encoding), *fact.shape, fact.about]
                for part in self.recipe
                for name, fact in part.facts(self).items()
                if isinstance(fact, Field)
            },
            "parts": {place: settings[place] for place in ("slices", "local", "codec")},
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=repr).encode()).digest()[:8]
