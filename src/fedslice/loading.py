"""Loading of modules that take long, during which Ctrl-C and SIGTERM end the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # exit code of a command that Ctrl-C ended, as shells have it
_SENTENCES = {signal.SIGINT: b"fedslice: interrupted.\n", signal.SIGTERM: b"fedslice: ended by SIGTERM.\n"}


@contextmanager
def loading() -> Iterator[None]:
    """Import modules in this block before anything is written.

    An exception is not safe there: raised while torch starts, it is swallowed and leaves NumPy half loaded, or it ends
    the process with a C++ error. So the process ends without it; nothing is lost, as nothing is done yet.
    """
    if threading.current_thread() is not threading.main_thread():  # where signals cannot be set, nor arrive
        yield
        return
    before = {number: signal.signal(number, _leave) for number in _SENTENCES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, *_: object) -> None:
    os.write(2, _SENTENCES[signal.Signals(number)])
    os._exit(128 + number)
