"""The command line's entry: how words are read, and how mistakes are told.

Nothing that takes long is imported before :func:`main` runs, so that Ctrl-C is answered from the first moment on.
"""

from __future__ import annotations

import codecs
import io
import re
import sys

from fedslice.loading import INTERRUPTED, loading
from fedslice.signals import listen

_ASSIGNMENT = re.compile(r"[\w.]+=")
# What stands for a character that the terminal's encoding lacks; any other becomes a question mark.
_PLAIN = {"…": "~", "±": "+-", "●": "*", "█": "#", "│": "|", "┤": "+", "└": "+", "┬": "+", "─": "-", "·": "*"}
_PLAIN |= {chr(code): "*" for code in range(0x2801, 0x2900)}  # dots of a curve


def expand(words: list[str]) -> list[str]:
    """Let one ``--set`` take several assignments: ``--set a=1 b=2`` is ``--set a=1 --set b=2``."""
    out: list[str] = []
    setting = False
    for word in words:
        if setting and _ASSIGNMENT.match(word):
            if out[-1] != "--set":
                out.append("--set")
        else:
            setting = word == "--set" or word.startswith("--set=")
        out.append(word)
    return out


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    listen()
    try:
        code = _run(expand(sys.argv[1:]) or ["--help"])
    except KeyboardInterrupt:
        sys.stderr.write("fedslice: interrupted.\n")
        code = INTERRUPTED
    sys.exit(code)


def _run(words: list[str]) -> int:
    """The exit code of a command, after it has told in a sentence what went wrong, if anything did."""
    codecs.register_error("plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")

    with loading():
        import typer

        from fedslice.commands import app
        from fedslice.commands.app import say
        from fedslice.console import while_read
        from fedslice.core.errors import UserError
        from fedslice.signals import Stopped

    usage_error = typer.BadParameter.__base__  # what the option parser raises for any misuse
    try:
        code = app(args=words, prog_name="fedslice", standalone_mode=False) or 0
        with while_read(sys.stdout):
            sys.stdout.flush()
    except UserError as error:
        say(f"fedslice: {error}")
    except usage_error as error:  # type: ignore[misc]
        say(f"fedslice: {error.format_message()}")
    except (MemoryError, OverflowError) as error:
        say(f"fedslice: that is too large for this machine ({error or 'no memory is left'}); ask for smaller sizes.")
    except OSError as error:
        say(f"fedslice: {error.filename or 'writing'}: {error.strerror}.")
    except Stopped as stopped:
        say(f"fedslice: {stopped}")
        return stopped.code
    except typer.Abort:
        raise KeyboardInterrupt from None
    else:
        if code == INTERRUPTED:  # as newer versions of typer tell it
            raise KeyboardInterrupt
        return code
    return 2


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Characters that can be printed anywhere; the form of an error handler of :mod:`codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in lost), error.end
