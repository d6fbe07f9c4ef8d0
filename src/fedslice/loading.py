"""Loading of modules that take long, during which Ctrl-C ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # exit code of a command that Ctrl-C ended, as shells have it


@contextmanager
def loading() -> Iterator[None]:
    """Import modules in this block before anything is written.

    ``KeyboardInterrupt`` is not safe there: raised while torch starts, it is swallowed and leaves NumPy half loaded, or
    it ends the process with a C++ error. So the process ends without it; nothing is lost, as nothing is done yet.
    """
    if threading.current_thread() is not threading.main_thread():  # where signals cannot be set, nor arrive
        yield
        return
    before = signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(*_: object) -> None:
    os.write(2, b"fedslice: interrupted.\n")
    os._exit(INTERRUPTED)
