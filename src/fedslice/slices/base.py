"""The four questions about a client and a round: what does it hold, what comes down, what goes up, what is kept?"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedslice.errors import UserError
from fedslice.parts import Part, World
from fedslice.slice import Shapes, Slice, Values

if TYPE_CHECKING:
    from fedslice.recipe import Recipe


class Slices(Part):
    """Which coordinates a client holds and exchanges. The default: all of them, and it remembers nothing."""

    # May a client start from values on what it uploads that differ from the server's? Then an upload means values,
    # not a difference to something both sides know.
    stale: ClassVar[bool] = False
    remembers: ClassVar[bool] = False  # does a client keep anything between its rounds?

    _shapes: Shapes

    def check(self, recipe: Recipe) -> None:
        """Refuse what cannot carry this part's uploads or would write one client's memory twice in a round."""
        if self.stale and not recipe.codec.carries_values:
            raise UserError(
                f"slices={self.label} uploads values of parts that only the client knows, but codec="
                f"{recipe.codec.label} sends differences to what both sides know; use codec=dense."
            )
        if self.remembers and recipe.select.repeats():
            raise UserError(
                f"slices={self.label} keeps a memory per client, and select={recipe.select.label} with replacement "
                "may draw a client twice in one round; draw without replacement."
            )

    def setup(self, world: World) -> None:
        """Learn the model's shapes."""
        self._shapes = world.task.shapes

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
