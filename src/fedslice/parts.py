"""What the parts of a recipe have in common: set-up, memory, and a look at each finished round."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import BeforeValidator, ConfigDict, Field
from torch import Tensor

from fedslice.errors import UserError
from fedslice.panel import Panel
from fedslice.slice import Values

if TYPE_CHECKING:
    from fedslice.devices import Devices
    from fedslice.recipe import Recipe
    from fedslice.store import Store
    from fedslice.task import Task

# Settings of parts are checked where they are given: a wrong value never reaches a round. Strict: true is not 1.0.
CHECKED = ConfigDict(extra="forbid", arbitrary_types_allowed=True, strict=True)
Count = Annotated[
    int, BeforeValidator(lambda given: given.item() if isinstance(given, np.generic) else given), Field(ge=1, le=10**9)
]
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True)
class World:
    """What a part may know when a run begins."""

    task: Task
    seed: int
    store: Store
    recipe: Recipe
    devices: Devices | None = None
    rounds: int | None = None  # how long the run is
    scratch: Path | None = None  # a folder of the run's own, for what is too large for memory or for a checkpoint

    def round_bytes(self) -> Tensor:
        """What each client holds, in bytes: what it would exchange each way if it exchanged all of it."""
        return self.recipe.slices.held() * self.task.itemsize

    def round_samples(self) -> Tensor:
        """How many samples each client trains on in a round, passes counted."""
        return self.recipe.local.samples(self.task.federation.train.sizes.cpu(), self.recipe.select.batch_scale())

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.store.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's values."""
        return next(iter(self.task.module.parameters())).dtype


@dataclass(frozen=True)
class RoundEnd:
    """What a part may look at when a round is over: the cohort, its losses, and how the model changed.

    ``change`` holds, per parameter that changed, the changed rows (``None``: all) and the difference; ``report`` holds
    in the same form the sum of what clients sent besides the model. ``squares`` are the mean squared losses of the
    samples that the clients trained on, if the selection asks for them.
    """

    round: int
    clients: Tensor
    losses: Tensor
    change: Mapping[str, tuple[Tensor | None, Tensor]]
    report: Mapping[str, tuple[Tensor | None, Tensor]]
    squares: Tensor | None = None


class Part:
    """A part of a recipe. Its constructor takes hyperparameters and nothing else."""

    label: ClassVar[str]  # the part's name in tables, experiment files and on the command line

    def check(self, recipe: Recipe) -> None:
        """Refuse, by name, a recipe this part cannot work in."""

    def setup(self, world: World) -> None:
        """Learn the population before the first round."""

    def observe(self, end: RoundEnd) -> None:
        """Look at a finished round."""

    def panels(self) -> list[Panel]:
        """What this part has to show in a report, as of now."""
        return []

    def state_dict(self) -> Values:
        """What must survive a restart, as tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state but was given {', '.join(state)}")

    def _own(self, state: Mapping[str, Tensor], kinds: Iterable[str]) -> Values:
        """A state whose keys are ``kind.name``, after a look at the kinds."""
        for key in state:
            if key.partition(".")[0] not in kinds:
                raise ValueError(f"{type(self).__name__} has no state {key!r}; it has {', '.join(kinds)}")
        return dict(state)

    def _once_a_round(self, place: str, recipe: Recipe) -> None:
        """Refuse cohorts in which one client's memory would be written twice."""
        if recipe.select.repeats():
            raise UserError(
                f"{place}={self.label} keeps a memory per client, and select={recipe.select.label} with replacement "
                "may draw a client twice in one round; draw without replacement."
            )

    def settings(self) -> dict[str, Any]:
        """The hyperparameters, as they were given."""
        return {name: getattr(self, name) for name in self.setting_names()}

    @classmethod
    def setting_names(cls) -> list[str]:
        """The names of the hyperparameters."""
        return [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
