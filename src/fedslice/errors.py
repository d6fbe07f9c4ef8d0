"""The one exception a user sees: a sentence that says where, what was found, what was expected, what to do."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user gave (a file, an option, an array), told in one sentence.

    The command line prints it without a traceback and exits with code 2.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name nobody knows, with the nearest known one."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(choices)}."
    return UserError(f"unknown {kind} {name!r}; {hint}")


class Refused(UserError):
    """A message that is not used, because it cannot be what it claims to be."""
