"""The command line's entry: how words are read, and how mistakes are told."""

from __future__ import annotations

import os
import re
import signal
import sys

import typer

from fedslice.commands import app
from fedslice.commands.app import say
from fedslice.errors import UserError
from fedslice.signals import Stopped, listen

UsageError = typer.BadParameter.__base__  # what the option parser raises for any misuse
INTERRUPTED = 130
_ASSIGNMENT = re.compile(r"[\w.]+=")


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
    code = 2
    listen()
    try:
        code = app(args=expand(sys.argv[1:]) or ["--help"], standalone_mode=False) or 0
        sys.stdout.flush()
    except UserError as error:
        say(f"fedslice: {error}")
    except UsageError as error:  # type: ignore[misc]
        say(f"fedslice: {error.format_message()}")
    except (MemoryError, OverflowError) as error:
        say(f"fedslice: that is too large for this machine ({error or 'no memory is left'}); ask for smaller sizes.")
    except BrokenPipeError:  # whoever read the output has gone, and with it the reason to write
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        say(f"fedslice: {error.filename or 'writing'}: {error.strerror}.")
    except Stopped as stopped:
        say(f"fedslice: {stopped}")
        sys.exit(stopped.code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:
        say(f"fedslice: {Stopped(signal.SIGINT)}")
    sys.exit(code)
