"""The two parties of a run, the rounds between them, and what watches these."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedslice.training.rounds import evaluate_clients, play_round
    from fedslice.training.transports.pipes import Pipes

__all__ = ["Pipes", "evaluate_clients", "play_round"]

_HOMES = {
    "Pipes": "fedslice.training.transports.pipes",
    "evaluate_clients": "fedslice.training.rounds",
    "play_round": "fedslice.training.rounds",
}

if not TYPE_CHECKING:  # type checkers know the names above, and no others

    def __getattr__(name: str) -> Any:
        """Load a public name when it is first used: the modules of this package import each other."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value
