"""The four questions about a client and a round: what does it hold, what comes down, what goes up, what is kept?"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedslice.errors import UserError
from fedslice.panel import Panel, histogram
from fedslice.parts import Part, World
from fedslice.slice import Shapes, Slice, Values

if TYPE_CHECKING:
    from fedslice.recipe import Recipe

_AT_ONCE = 4096  # clients whose slices are looked at together


class Slices(Part):
    """Which coordinates a client holds and exchanges. The default: all of them, and it remembers nothing."""

    # May a client start from values on what it uploads that differ from the server's? Then an upload means values,
    # not a difference to something both sides know.
    stale: ClassVar[bool] = False
    remembers: ClassVar[bool] = False  # does a client keep anything between its rounds?
    narrows: ClassVar[bool] = False  # may layers have fewer outputs and inputs with one client than with another?

    _shapes: Shapes
    _population: int
    _itemsize: int

    def check(self, recipe: Recipe) -> None:
        """Refuse what cannot carry this part's uploads or would write one client's memory twice in a round."""
        if self.stale and not recipe.codec.carries_values:
            raise UserError(
                f"slices={self.label} uploads values of parts that only the client knows, but codec="
                f"{recipe.codec.label} sends differences to what both sides know; use codec=dense."
            )
        if self.remembers:
            self._once_a_round("slices", recipe)

    @property
    def sends_all(self) -> bool:
        """Does all that a client holds go up?"""
        return True

    def setup(self, world: World) -> None:
        """Learn the model's shapes and the population."""
        self._shapes = world.task.shapes
        self._population, self._itemsize = len(world.task.federation), world.task.itemsize

    def panels(self) -> list[Panel]:
        """What clients hold, if it is not the same for all."""
        bytes_ = self.held() * self._itemsize
        low, high = int(bytes_.min()), int(bytes_.max())
        if low == high:
            return []
        whole = sum(shape.numel() for shape in self._shapes.values()) * self._itemsize
        note = (
            f"Values that a client holds: {low / 1000:,.1f} to {high / 1000:,.1f} kB, "
            f"{float(bytes_.double().mean()) / whole:.2%} of the model's {whole / 1000:,.1f} kB on average."
        )
        return [histogram("Slice sizes", bytes_ / 1000, "slice (kB)", note=note)]

    def held(self) -> Tensor:
        """How many values each client of the population holds."""
        some = torch.arange(self._population).split(_AT_ONCE)
        return torch.cat([self.hold(0, clients).numbers() for clients in some])

    def hold(self, t: int, clients: Tensor) -> Slice:  # noqa: ARG002
        """What these clients train."""
        return Slice.whole(len(clients), self._shapes)

    def down(self, t: int, clients: Tensor, hold: Slice) -> Slice:  # noqa: ARG002
        """What the server sends them."""
        return hold

    def up(self, t: int, clients: Tensor, hold: Slice, start: Values, end: Values) -> Slice:  # noqa: ARG002
        """What they send back; asked after training."""
        return hold

    def sent(self, clients: Tensor, up: Slice, taken: Tensor) -> None:
        """These clients have uploaded ``up``; what some of them sent was not ``taken`` in."""

    def kept(self) -> frozenset[str]:
        """The parameters whose values a client remembers between its rounds."""
        return frozenset()
