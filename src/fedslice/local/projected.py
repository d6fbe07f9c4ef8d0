"""Every step inside the streaming subspace: the gradient is projected, not the update (S4, table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.codecs.subspace import StreamingSubspace
from fedslice.errors import UserError
from fedslice.local.sgd import SGD
from fedslice.parts import CHECKED, RoundEnd, World
from fedslice.slice import Values
from fedslice.slices.whole import Whole

if TYPE_CHECKING:
    from fedslice.recipe import Recipe


@dataclass(config=CHECKED)
class Projected(SGD):
    """x ← x − γ·P·Pᵀg, with the basis of ``codec=subspace``, in every round whose updates travel as coefficients.

    On full rounds, and before there is a basis, steps are plain ones: were they projected too, no update would ever
    leave span(P), and the basis could not follow the trajectory.

    Table 5 projects the update, the gradient, or both, and does not say what travels. A sum of projected gradients
    lies in span(P), so that its coefficients Pᵀ(x − X) lose nothing: with projected gradients it makes no difference
    whether the update is projected as well. Both are this method; the update alone is ``local=sgd``.
    """

    label = "projected"
    follows_gradient = False  # a coordinate without a gradient moves with the directions that it belongs to

    def check(self, recipe: Recipe) -> None:
        """There must be a basis, and a client must hold all that its directions run through."""
        if not isinstance(recipe.codec, StreamingSubspace):
            raise UserError(
                f"local=projected takes its steps in the basis of codec=subspace, and codec={recipe.codec.label} has "
                "none; use codec=subspace, or local=sgd."
            )
        if not isinstance(recipe.slices, Whole):
            raise UserError(
                f"local=projected moves every parameter along a direction, but slices={recipe.slices.label} gives a "
                "client only some of them; use slices=whole."
            )

    def setup(self, world: World) -> None:
        """Learn whose basis it is."""
        assert isinstance(world.recipe.codec, StreamingSubspace)
        self._codec, self._round = world.recipe.codec, 0

    def direction(self, gradient: Values, parameters: Values, start: Values, aside: Values) -> Values:
        """P·Pᵀg, or on a full round g; it is clipped before it is projected."""
        own = super().direction(gradient, parameters, start, aside)
        return own if self._codec.full(self._round) else self._codec.within(own)

    def observe(self, end: RoundEnd) -> None:
        """The codec is asked about the round that comes next."""
        self._round = end.round + 1

    def state_dict(self) -> Values:
        """Which round that is."""
        return {"round": torch.tensor(self._round)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with it."""
        self._round = int(self._own(state, ("round",))["round"])
