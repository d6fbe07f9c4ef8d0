"""Hooks into a run: what is told of every round and every evaluation, in which order, and what an error does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedslice.core.errors import UserError, shown

if TYPE_CHECKING:
    from torch import Tensor

    from fedslice.schema import Column
    from fedslice.training.engines.choose import Choice

Row = dict[str, Any]


@dataclass
class RunState:
    """A run as its callbacks see it.

    Args:
        task: The task's name.
        recipe: The recipe's name.
        seed: The run's seed.
        rounds: How many rounds it is to have.
        config: Everything that determines the result, as ``config.json`` has it.
        directory: Where it is written.
        columns: The columns of its rows, by name.
        round: Rounds done.
        rows: All rows of the log so far, oldest first.
        finished: Whether the run was complete before it began: then nothing is trained.
        engine: The engine and why it was chosen, unless the run was complete.
    """

    task: str
    recipe: str
    seed: int
    rounds: int
    config: Mapping[str, Any]
    directory: Path
    columns: Mapping[str, Column]
    round: int
    rows: list[Row]
    finished: bool
    engine: Choice | None
    _model: Callable[[], dict[str, Tensor]]
    _stop: Callable[[str], None]

    @property
    def title(self) -> str:
        """Recipe and seed."""
        return f"{self.recipe} seed {self.seed}"

    def model(self) -> dict[str, Tensor]:
        """Return a copy of the server's model as the state dict of the task's module."""
        return self._model()

    def stop(self, reason: str = "a callback asked for it") -> None:
        """End the run after the round at hand, which is evaluated, saved and complete."""
        self._stop(reason)


class Callback:
    """Hooks of a run. A subclass overrides those that it needs; trackers and the progress bar are callbacks.

    Callbacks are called in the order in which they are given: ``on_start`` once, before the first round that is
    played; ``on_round`` after every round; ``on_evaluation`` after every evaluation, when its row is on disk, and after
    the ``on_round`` of its round; ``on_end`` once, whatever happened.

    An exception ends the run: later callbacks are not told of the event, the round is saved, ``on_end`` of all is
    called, and the exception is raised with a note that says how to go on.
    """

    def on_start(self, run: RunState) -> None:
        """Called before the first round; a resumed run is at ``run.round``, and has ``run.rows`` already."""

    def on_round(self, run: RunState) -> None:
        """Called after every round."""

    def on_evaluation(self, run: RunState, row: Mapping[str, Any]) -> None:
        """Called with every row of the log, round 0 included."""

    def on_end(self, run: RunState, error: BaseException | None) -> None:
        """Called when the run ends, with the exception that ended it, if one did."""


class Callbacks:
    """Several callbacks as one."""

    def __init__(self, callbacks: Sequence[Callback], run: RunState):
        self._callbacks = callbacks
        self.run = run
        self.failed: str | None = None  # the hook that raised

    def start(self) -> None:
        """The run begins."""
        self._tell("on_start")

    def round(self, done: int) -> None:
        """A round is done."""
        self.run.round = done
        self._tell("on_round")

    def evaluation(self, row: Row) -> None:
        """A row is on disk."""
        self.run.rows.append(row)
        self._tell("on_evaluation", row)

    def end(self, error: BaseException | None) -> None:
        """The run ends. All callbacks are told; the first exception among theirs is raised if there is no other."""
        first: Exception | None = None
        for one in self._callbacks:
            try:
                one.on_end(self.run, error)
            except Exception as problem:
                first = first or problem
        if first is not None and error is None:
            raise first

    def _tell(self, hook: str, *more: Any) -> None:
        for one in self._callbacks:
            try:
                getattr(one, hook)(self.run, *more)
            except Exception:
                self.failed = f"{type(one).__name__}.{hook}"
                raise


def check(callbacks: Sequence[Callback]) -> list[Callback]:
    """Refuse what is no callback."""
    for one in callbacks:
        if not isinstance(one, Callback):
            raise UserError(f"callbacks: {shown(one)} is no fedslice.Callback; derive its class from that.")
    return list(callbacks)
