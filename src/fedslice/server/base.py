"""What every server optimizer answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedslice.messages import Step
from fedslice.parts import Part, World
from fedslice.slice import Values

Fraction = Annotated[float, Field(ge=0, lt=1)]


class Server(Part):
    """What becomes of the merged update."""

    def step(self, model: Values, step: Step, share: float) -> Step:
        """Change the model in place, after a round in which this share of all clients took part; the change made."""
        raise NotImplementedError


class Averaging(Server):
    """A server that remembers running averages of updates, one value per coordinate that was ever updated.

    Averages move coordinates long after their last update, so a step touches every row of a table. A round from which
    nothing usable arrived moves nothing.
    """

    kinds: ClassVar[tuple[str, ...]]  # the averages it has

    _averages: dict[str, Tensor]

    def setup(self, world: World) -> None:  # noqa: ARG002
        """Nothing is remembered yet."""
        self._averages = {}

    def step(self, model: Values, step: Step, share: float) -> Step:
        """Move every coordinate of the parameters that somebody sent."""
        change: Step = {}
        for name, (rows, values) in step.items():
            update = values if rows is None else torch.zeros_like(model[name]).index_add_(0, rows, values)
            moved = self.move(name, update, share)
            model[name].add_(moved)
            change[name] = None, moved
        return change

    def move(self, name: str, update: Tensor, share: float) -> Tensor:
        """How far a parameter moves, given the mean update of all its coordinates (zero where nobody sent)."""
        raise NotImplementedError

    def average(self, kind: str, name: str, like: Tensor, first: float = 0.0) -> Tensor:
        """A running average of a parameter's shape, for changing in place."""
        key = f"{kind}.{name}"
        if key not in self._averages:
            self._averages[key] = torch.full_like(like, first)
        return self._averages[key]

    def state_dict(self) -> Values:
        """The averages."""
        return dict(self._averages)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved averages."""
        self._averages = self._own(state, self.kinds)
