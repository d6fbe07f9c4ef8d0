"""Runs in parallel processes. A worker that dies takes one run with it; the others go on.

Each lane is a pool of one process, so that a lane can stay with one task and load it once. A pipe joins it to this
process: reports come up through it. When this process is interrupted, it asks the workers through the pipe to save
their runs after the round at hand, and waits for them. When the pipe closes, because this process is interrupted again
or has died, a worker ends at once. It may: a run directory survives any instant.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from fedslice.config import resolve
from fedslice.core.errors import UserError, run_warnings
from fedslice.papers.jobs import Job, by_group
from fedslice.papers.progress import Progress
from fedslice.runs.callbacks import Callback, RunState
from fedslice.runs.execute import default_directory, execute
from fedslice.runs.settings import RunSettings
from fedslice.signals import Stopped, deferred

_CONTEXT = multiprocessing.get_context("spawn")
_LOOK_SECONDS = 0.2  # between looks at the lanes
_REPORT_SECONDS = 0.5  # between a worker's reports of rounds
_line: Connection | None = None  # a worker's end of its pipe
_Report = tuple[int, dict[str, Any] | None, str | None]  # rounds done, a row of metrics, a sentence to know


@dataclass(frozen=True)
class Outcome:
    """The result of a run: its metrics and their directory, or a sentence on why there are none."""

    directory: str | None = None
    source: str | None = None
    metrics: tuple[dict[str, Any], ...] = ()
    error: str | None = None
    diverged: int | None = None  # the round from which on its metrics are no results


def cores() -> int:
    """Cores that this process may use, which a scheduler may have made fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(jobs: Iterable[Job], out: Path, lanes: int, progress: Progress) -> dict[str, Outcome]:
    """Every run's outcome by its key."""
    waiting = by_group({job.key: job for job in jobs}.values())
    outcomes: dict[str, Outcome] = {}
    crew = [_Lane(max(1, cores() // lanes)) for _ in range(min(lanes, sum(map(len, waiting.values()))))]
    try:
        while len(outcomes) < progress.total:
            for lane in crew:
                if lane.future is None and (job := _next(waiting, lane, crew)) is not None:
                    progress.begin(job)
                    lane.start(job, out)
            wait([lane.future for lane in crew if lane.future], timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for lane in crew:
                over = lane.over  # asked before the reports are read: then none of this job's is left for the next
                for done, row, note in lane.reports():
                    if note is not None:
                        progress.note(lane.job, note)
                    else:
                        progress.report(lane.job, done, row)
                if over:
                    outcomes[lane.job.key] = lane.outcome()
                    progress.end(lane.job, outcomes[lane.job.key].error)
    except (KeyboardInterrupt, Stopped) as end:
        raise _stop(crew, outcomes, progress, out, end) from None
    finally:
        for lane in crew:
            lane.hang_up()  # all of them, before the first is waited for
        for lane in crew:
            lane.close()
    return outcomes


def _stop(
    crew: Iterable[_Lane], outcomes: dict[str, Outcome], progress: Progress, out: Path, end: BaseException
) -> Stopped:
    """Let every worker save its run, unless Ctrl-C comes again; the sentence that says what there is."""
    number = end.number if isinstance(end, Stopped) else signal.SIGINT
    ends: list[BaseException | None] = []
    patient = True
    try:
        with deferred(number):
            for lane in crew:
                lane.ask_to_stop()
            ends = [lane.future.exception() for lane in crew if lane.future is not None]
    except KeyboardInterrupt:
        patient = False
    finished = sum(one.error is None for one in outcomes.values()) + ends.count(None)
    saved = sum(isinstance(error, Stopped) and error.saved > 0 for error in ends)
    rest = f"{saved} saved in the middle" if patient else "the others have their last checkpoints"
    return Stopped(
        number, f"of {progress.total} runs {finished} are finished and {rest}, in {out}; the same command goes on."
    )


def _next(waiting: dict[str, list[Job]], lane: _Lane, crew: Iterable[_Lane]) -> Job | None:
    """The lane's own task first, then one that no other lane works on, then the one with most work left."""
    if not waiting:
        return None
    busy = {other.group for other in crew if other is not lane and other.future is not None}
    group = max(waiting, key=lambda name: (name == lane.group, name not in busy, sum(j.work for j in waiting[name])))
    job = waiting[group].pop(0)
    if not waiting[group]:
        del waiting[group]
    return job


class _Lane:
    """One process at a time, and the job it works on."""

    def __init__(self, threads: int):
        self._threads = threads
        self.group: str | None = None
        self.future: Future[Outcome] | None = None
        self._open()

    def _open(self) -> None:
        self._pipe, self._theirs = _CONTEXT.Pipe()
        self._pool = ProcessPoolExecutor(
            1, mp_context=_CONTEXT, initializer=_begin, initargs=(self._theirs, self._threads)
        )

    def start(self, job: Job, out: Path) -> None:
        """Give it something to do."""
        self.job, self.group = job, job.group
        with _deaf():
            self.future = self._pool.submit(_work, job.request, out)

    def reports(self) -> Iterator[_Report]:
        """Return the reports that have arrived since the last call."""
        while self._pipe.poll():
            yield self._pipe.recv()

    @property
    def over(self) -> bool:
        """Has the job ended?"""
        return self.future is not None and self.future.done()

    def outcome(self) -> Outcome:
        """Return the outcome of the job, and free the lane."""
        if self.future is None:
            raise RuntimeError("this lane has no job")
        error = self.future.exception()
        done = self.future.result() if error is None else Outcome(error=_sentence(error))
        self.future = None
        if isinstance(error, BrokenProcessPool):
            self.close()
            self._open()
        return done

    def ask_to_stop(self) -> None:
        """Let the process save its run after the round at hand."""
        if self.future is not None:
            with suppress(OSError):  # it has died
                self._pipe.send(None)

    def hang_up(self) -> None:
        """Let the process end, whatever it does."""
        self._pipe.close()

    def close(self) -> None:
        """The same, and wait for it."""
        self.hang_up()
        self._pool.shutdown(cancel_futures=True)
        self._theirs.close()


@contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started meanwhile never hears Ctrl-C: it is for this one to say when it ends."""
    if threading.current_thread() is not threading.main_thread():  # where signals cannot be set, nor arrive
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _sentence(error: BaseException) -> str:
    if isinstance(error, UserError | Stopped):
        return str(error)
    if isinstance(error, BrokenProcessPool):
        return "its process was ended from outside, perhaps because memory ran out; run fewer at once with --jobs."
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _begin(line: Connection, threads: int) -> None:
    """Set up a worker: its share of the cores, and an end with the process that started it."""
    global _line  # noqa: PLW0603
    _line = line
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()


def _end_with(line: Connection) -> None:
    try:
        line.recv()  # all that is ever sent down is the wish that it end
        os.kill(os.getpid(), signal.SIGTERM)
        line.recv()
    except (EOFError, OSError):
        os._exit(1)


def _work(asked: RunSettings, out: Path) -> Outcome:
    """One run from beginning, or from its checkpoint, to end."""
    plan = resolve(asked)
    place = out / default_directory(plan).name
    with run_warnings(_note):
        run = execute(plan, place, resume=True, callbacks=[_Line()])
    since = None if run.diverged is None else run.diverged["round"]
    return Outcome(str(place), plan.task.source, tuple(run.rows), diverged=since)


class _Line(Callback):
    """Tells the process that waits how far the run is, not too often."""

    def __init__(self) -> None:
        self._told = 0.0

    def on_start(self, run: RunState) -> None:
        """Note the round at which it begins."""
        self.on_round(run)

    def on_round(self, run: RunState) -> None:
        """A round is done."""
        if time.monotonic() - self._told >= _REPORT_SECONDS:
            self._told = time.monotonic()
            _tell(run.round, None)

    def on_evaluation(self, run: RunState, row: Mapping[str, Any]) -> None:  # noqa: ARG002
        """A row is there."""
        _tell(row["round"], dict(row))


def _note(sentence: str) -> None:
    if _line is not None:
        _line.send((0, None, sentence))


def _tell(done: int, row: dict[str, Any] | None) -> None:
    if _line is not None:
        _line.send((done, row, None))
