"""Engines: where and how a chunk of clients is trained. The recipe is the same on each."""

from fedslice.engines.base import Engine, Trained
from fedslice.engines.choose import choose
from fedslice.engines.sequential import Sequential
from fedslice.engines.vectorized import Vectorized

__all__ = ["Engine", "Sequential", "Trained", "Vectorized", "choose"]
