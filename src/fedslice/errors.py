"""The one exception a user sees: a sentence that says where, what was found, what was expected, what to do."""

import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO


class UserError(ValueError):
    """A mistake in what the user gave (a file, an option, an array), told in one sentence.

    The command line prints it without a traceback and exits with code 2.
    """


class RunWarning(UserWarning):
    """Something to know about a run that goes on nevertheless. The command line prints it as a line of its own."""


@contextmanager
def run_warnings(tell: Callable[[str], None]) -> Iterator[None]:
    """Give every :class:`RunWarning` of the block to ``tell``; other warnings are shown as usual."""
    with warnings.catch_warnings():
        plain = warnings.showwarning
        warnings.simplefilter("always", RunWarning)

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, RunWarning):
                tell(str(message))
            else:
                plain(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name nobody knows, with the nearest known one."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(choices)}."
    return UserError(f"unknown {kind} {name!r}; {hint}")
