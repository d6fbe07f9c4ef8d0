"""What all instruments have in common: what they learn of a run, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from fedslice.panel import Panel
from fedslice.parts import RoundEnd, World
from fedslice.slice import Values
from fedslice.task import Task

if TYPE_CHECKING:
    from fedslice.engines.choose import Choice
    from fedslice.work import Work


class Moment(NamedTuple):
    """A run at an evaluation.

    ``world.task`` is the federation even when a recipe pools it: pooled data, too, are measured as what they came from.
    ``world.store`` and ``world.recipe`` belong to the clients that the recipe knows, which are then one.
    """

    world: World
    round: int  # how many are done
    model: Values
    engine: Choice


class Instrument:
    """What a run logs at its evaluations besides scores. Each run has its own, so that one may remember rounds."""

    def setup(self, world: World) -> None:
        """Refuse a run that has no such thing, before its first round; ``world`` is that of every later moment."""

    def trained(self, work: Work, model: Values, end: Values, fine: Tensor) -> None:
        """Look at a chunk of clients that has trained from ``model``; those who are not ``fine`` took no part."""

    def observe(self, end: RoundEnd) -> None:
        """Look at a finished round; a run's ``seconds`` do not count this."""

    def measure(self, now: Moment) -> dict[str, float]:
        """Columns for the log, the same at every evaluation; NaN where there is nothing to tell yet."""
        raise NotImplementedError

    def panels(self) -> list[Panel]:
        """What there is to show in a report, as of now."""
        return []

    def clients(self) -> dict[str, Tensor]:
        """Columns of a table with a row for every client, as of now."""
        return {}

    def state_dict(self) -> Values:
        """What must survive a restart, as tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state. Its tensors lie on the CPU, and are not copied: they may be large."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state but was given {', '.join(state)}")


class Snapshot(Instrument):
    """An instrument without memory: a function of a task and a model."""

    def __init__(
        self, columns: Callable[[Task, Values], dict[str, float]], check: Callable[[Task], None] = lambda _: None
    ):
        self._columns = columns
        self._check = check

    def setup(self, world: World) -> None:
        """Refuse a task on which the function has no value."""
        self._check(world.task)

    def measure(self, now: Moment) -> dict[str, float]:
        """The function's value."""
        return self._columns(now.world.task, now.model)
