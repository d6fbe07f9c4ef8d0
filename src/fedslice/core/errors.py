"""The exceptions a user sees: a sentence that says where, what was found, what was expected, what to do."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time
from typing import TextIO

_CLOSE = 0.65  # of difflib's ratio, which is 0.6 for two names that only have some letters in common
_LONGEST = 60  # characters of a value in a message
_LONGEST_INTEGER = 14_000  # bits; Python writes no more than 4,300 digits


class UserError(ValueError):
    """A mistake in what the user gave (a file, an option, an array), told in one sentence.

    The command line prints it without a traceback and exits with code 2.

    Args:
        sentence: The message.
        settings: Names, without their owners, of the settings that the message is about.
    """

    def __init__(self, sentence: str, settings: Iterable[str] = ()) -> None:
        super().__init__(sentence)
        self.settings = frozenset(settings)


class Refused(UserError):
    """A message that is not used, because it cannot be what it claims to be."""


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


def unknown(kind: str, name: str, known: Iterable[str], settings: Iterable[str] = ()) -> UserError:
    """Return an error for an unknown name, with the nearest known one if one is near, else with all of them."""
    choices = sorted(known)
    near = nearest(name, choices)
    hint = f"did you mean {near!r}?" if near else f"choose one of: {', '.join(choices)}."
    return UserError(f"unknown {kind} {shown(name)}; {hint}", settings)


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice with almost the same letters, or the only one that has the name as one of its words."""
    lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=_CLOSE)
    words = [choice for choice in lower if name.lower() in re.split(r"[_-]", choice)]
    return lower[near[0]] if near else lower[words[0]] if len(words) == 1 else None


def shown(value: object) -> str:
    """Return a value as an experiment file would have it, cut if it is long.

    >>> shown([True, None, "a", 0.5])
    "[true, none, 'a', 0.5]"
    """
    text = _written(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _written(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER:
        return hex(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_written(one)}' for key, one in value.items())}}}"
    return repr(value)
