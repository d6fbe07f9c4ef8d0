"""Signals that end the program: Ctrl-C (SIGINT) and SIGTERM wait until a run can be saved.

This module imports nothing but the standard library, so that it can be set up before anything that takes time to load.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM"}
_continued = 0  # times that the program went on after it had been stopped (SIGSTOP, Ctrl-Z)


class Stopped(BaseException):
    """The end of the program on request. The message says what was saved and how to go on, if anything was begun.

    ``saved`` is the round whose state is on disk, 0 if there is none.
    """

    def __init__(self, number: int, sentence: str = "", saved: int = 0):
        super().__init__(number, sentence, saved)  # all of them, for the exception travels between processes
        self.number = number
        self.saved = saved
        self._sentence = sentence

    def __str__(self) -> str:
        return _NAMES[signal.Signals(self.number)] + (f"; {self._sentence}" if self._sentence else ".")

    @property
    def code(self) -> int:
        """The exit code that shells give to a process ended by this signal: 130 or 143."""
        return 128 + self.number


class Request:
    """The signal that asked a run to end, once there was one."""

    number: int | None = None


def listen() -> None:
    """Let SIGTERM raise :class:`Stopped`, as Ctrl-C raises ``KeyboardInterrupt``, so that it can be told."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _raise)


@contextmanager
def deferred(number: int | None = None) -> Iterator[Request]:
    """Hold Ctrl-C and SIGTERM back: the block looks at the request and ends where its work can be saved.

    A second Ctrl-C raises ``KeyboardInterrupt`` at once. A second SIGTERM changes nothing, because schedulers send it
    to a process and again to its group. A signal that the process ignores stays ignored. Outside of the main thread,
    where signals never arrive, nothing is held back. With a ``number`` this signal has arrived before.
    """
    request = Request()
    request.number = number
    if number == signal.SIGINT:
        announce()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if request.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if request.number is None and number == signal.SIGINT:
            announce()
        request.number = request.number or number

    handlers = {signal.SIGINT: note, signal.SIGTERM: note, signal.SIGCONT: _count}
    before = {each: signal.getsignal(each) for each in handlers}
    taken = [each for each, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    try:
        for each in taken:
            signal.signal(each, handlers[each])
        yield request
    finally:
        for each in taken:
            signal.signal(each, before[each])


def announce() -> None:
    """Tell a person at a terminal what Ctrl-C waits for.

    Written past Python's buffers, which the signal may have interrupted in the middle of a line.
    """
    if os.isatty(2):
        os.write(2, b"\nfinishing the round to save it; Ctrl-C again ends at once\n")


class Stopwatch:
    """Seconds of computing since it was made.

    That is time as it passes. If the program was stopped meanwhile (SIGSTOP, Ctrl-Z), nobody knows for how long: then
    it is the time that its processors worked for it, if that is less. Only inside of :func:`deferred` is this noticed.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time(), _continued

    def seconds(self) -> float:
        """Seconds until now."""
        wall, worked, continued = self._began
        passed = time.perf_counter() - wall
        return passed if continued == _continued else min(passed, time.process_time() - worked)


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise Stopped(number)


def _count(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    global _continued  # noqa: PLW0603
    _continued += 1
