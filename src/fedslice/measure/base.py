"""The interface of instruments: what they learn of a run, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from fedslice.core.part import Round
from fedslice.core.slice import Values
from fedslice.core.spec import Spec
from fedslice.panel import Panel
from fedslice.schema import Column
from fedslice.task import Task
from fedslice.training.events import Listener

if TYPE_CHECKING:
    from fedslice.training.engines.choose import Choice
    from fedslice.training.population import Population
    from fedslice.training.server import Server


@dataclass(frozen=True, eq=False)
class Scene:
    """A simulation as a third party sees it, who looks at both sides.

    Args:
        spec: What both sides know.
        task: The federation, even when a recipe pools it: pooled data, too, are measured as what they came from.
        population: The clients that the recipe knows, which are then one.
        server: The server.
        scratch: A folder for what is too large for memory or for a checkpoint.
    """

    spec: Spec
    task: Task
    population: Population
    server: Server
    scratch: Path | None = None


class Moment(NamedTuple):
    """A run at an evaluation.

    Args:
        scene: The run.
        round: Number of rounds done.
        model: The server's model.
        engine: The engine of the run.
    """

    scene: Scene
    round: int
    model: Values
    engine: Choice


class Instrument(Listener):
    """Something that a run logs at its evaluations besides scores. Each run has its own, which may remember rounds.

    An instrument hears all events of a run; :meth:`observe` is called after each round besides, and its time is not
    part of the run's ``seconds``.
    """

    def columns(self, task: Task) -> list[Column]:
        """Return the columns that :meth:`measure` gives for a task, with what they mean."""
        raise NotImplementedError

    def setup(self, scene: Scene) -> None:
        """Refuse a run that has no such thing, before its first round; ``scene`` is that of every later moment."""

    def observe(self, end: Round) -> None:
        """Look at a finished round; a run's ``seconds`` do not count this."""

    def measure(self, now: Moment) -> dict[str, float]:
        """Columns for the log, the same at every evaluation; NaN where there is nothing to tell yet."""
        raise NotImplementedError

    def panels(self) -> list[Panel]:
        """Return the panels to show in a report."""
        return []

    def clients(self) -> dict[str, Tensor]:
        """Columns of a table with a row for every client."""
        return {}

    def state_dict(self) -> Values:
        """Return the state that must survive a restart, as tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state. Its tensors lie on the CPU, and are not copied: they may be large."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state but was given {', '.join(state)}")


class Snapshot(Instrument):
    """An instrument without memory: a function of a task and a model."""

    def __init__(
        self,
        function: Callable[[Task, Values], dict[str, float]],
        columns: Callable[[Task], list[Column]],
        check: Callable[[Task], None] = lambda _: None,
    ):
        self._function = function
        self._columns = columns
        self._check = check

    def columns(self, task: Task) -> list[Column]:
        """The function's columns."""
        return self._columns(task)

    def setup(self, scene: Scene) -> None:
        """Refuse a task on which the function has no value."""
        self._check(scene.task)

    def measure(self, now: Moment) -> dict[str, float]:
        """The function's value."""
        return self._function(now.scene.task, now.model)
