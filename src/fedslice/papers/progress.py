"""Progress over a whole exhibit: runs done, the running ones with their newest score, and the time left."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fedslice.console import Display
from fedslice.papers.jobs import Job
from fedslice.schema import find, value

_LINE_SECONDS = 30.0  # between lines about running runs where there is no terminal


class Progress(Display):
    """A live display on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, title: str, jobs: Iterable[Job], lanes: int):
        self._title = title
        self._left = {job.key: job for job in jobs}
        self._lanes = lanes
        self.total = len(self._left)
        self._running: dict[str, _Run] = {}
        self._measured: dict[str, tuple[int, float]] = {}  # rounds and seconds of finished runs, by group
        self._said = time.monotonic()
        super().__init__(console, Live(get_renderable=self._picture, console=console, transient=True))

    def __enter__(self) -> Self:
        """Say how much there is to do; how long it takes is not known before some rounds are timed."""
        runs = f"{self.total} run{'s' * (self.total != 1)}"
        rounds = sum(job.rounds for job in self._left.values())
        self._console.print(
            f"{self._title}: {runs}, {rounds:,} rounds in all, {min(self._lanes, self.total)} at a time. "
            "Runs that are not finished yet take minutes to hours; the time left is told once rounds are timed.",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
        return super().__enter__()

    def begin(self, job: Job) -> None:
        """A run is given to a worker."""
        self._running[job.key] = _Run(job)

    def report(self, job: Job, done: int, row: dict[str, Any] | None) -> None:
        """A run has come so far."""
        run = self._running[job.key]
        run.report(done, row)
        if not self._console.is_interactive and time.monotonic() - self._said >= _LINE_SECONDS:
            self._say(run.text)

    def note(self, job: Job, sentence: str) -> None:
        """Something to know of a run."""
        self._say(f"{job.title}: {sentence}")

    def end(self, job: Job, error: str | None) -> None:
        """A run is over."""
        run = self._running.pop(job.key)
        del self._left[job.key]
        rounds, seconds = self._measured.get(job.group, (0, 0.0))
        self._measured[job.group] = rounds + run.progress, seconds + run.seconds
        if error is not None:
            self._say(f"{job.title}: not run: {error}")
        elif not self._console.is_interactive:
            self._say(run.text if run.begun else f"{job.title}: finished before")

    def _say(self, words: str) -> None:
        self._said = time.monotonic()
        self._console.print(f"{self._head}  {words}", soft_wrap=True, markup=False, highlight=False)

    @property
    def _head(self) -> str:
        return f"{self._title}: {self.total - len(self._left)} of {self.total} runs{self._time_left()}"

    def _picture(self) -> RenderableType:
        lines = [self._head, *(f"  {run.text}" for run in self._running.values())]
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))

    def _time_left(self) -> str:
        """From the seconds that rounds of each task took so far; a task not yet begun counts as the average."""
        measured = dict(self._measured)
        for run in self._running.values():
            rounds, seconds = measured.get(run.job.group, (0, 0.0))
            measured[run.job.group] = rounds + run.progress, seconds + run.seconds
        rates = {group: seconds / rounds for group, (rounds, seconds) in measured.items() if rounds}
        if not rates or not self._left:
            return ""
        usual = sum(rates.values()) / len(rates)
        left = sum(
            (job.rounds - (self._running[key].done if key in self._running else 0)) * rates.get(job.group, usual)
            for key, job in self._left.items()
        )
        left /= min(self._lanes, len(self._left))
        return f", {left:.0f} s left" if left < 100 else f", {left / 60:.0f} min left"


class _Run:
    """The progress of a run, and the cost of its rounds since it was begun or resumed."""

    def __init__(self, job: Job):
        self.job = job
        self.done = 0
        self._first: int | None = None
        self._began = self._last = 0.0
        self._score = ""

    def report(self, done: int, row: dict[str, Any] | None) -> None:
        self._last = time.monotonic()
        if self._first is None:
            self._first, self._began = done, self._last
        self.done = done
        if row is not None:
            self._score = f"  {find(self.job.metric).words} {value(self.job.metric, row.get(self.job.metric))}"

    @property
    def begun(self) -> bool:
        return self._first is not None

    @property
    def progress(self) -> int:
        return 0 if self._first is None else self.done - self._first

    @property
    def seconds(self) -> float:
        return self._last - self._began

    @property
    def text(self) -> str:
        if not self.begun:
            return f"{self.job.title}: getting ready"
        return f"{self.job.title}: round {self.done}/{self.job.rounds}{self._score}"
