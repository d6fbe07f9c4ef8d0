"""Shared blocks: some parameters are exchanged, the rest is the client's own (S2, section 1)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.errors import UserError
from fedslice.parts import CHECKED, World
from fedslice.slice import Slice, Values
from fedslice.slices.base import Slices


@dataclass(config=CHECKED)
class Shared(Slices):
    """Parameters whose names match ``patterns`` (separated by commas) travel; all others never leave the client."""

    label = "shared"
    remembers = True

    patterns: Annotated[str, Field(min_length=1)] = "shared.*"

    def setup(self, world: World) -> None:
        """Sort the parameters; a pattern that matches nothing is refused."""
        super().setup(world)
        wanted = [pattern.strip() for pattern in self.patterns.split(",")]
        for pattern in wanted:
            if not any(fnmatchcase(name, pattern) for name in self._shapes):
                raise UserError(
                    f"slices=shared: no parameter matches {pattern!r}; the model has {', '.join(self._shapes)}."
                )
        self._shared = [name for name in self._shapes if any(fnmatchcase(name, p) for p in wanted)]

    def down(self, t: int, clients: Tensor, hold: Slice) -> Slice:  # noqa: ARG002
        """The shared block."""
        return Slice.whole(len(clients), self._shapes, self._shared)

    def up(self, t: int, clients: Tensor, hold: Slice, start: Values, end: Values) -> Slice:  # noqa: ARG002
        """The shared block, and nothing else ever."""
        return Slice.whole(len(clients), self._shapes, self._shared)

    def kept(self) -> frozenset[str]:
        """The private block."""
        return frozenset(self._shapes) - frozenset(self._shared)
