"""Engines: where and how a chunk of clients is trained. The recipe is the same on each."""

from fedslice.training.engines.base import Engine, Trained
from fedslice.training.engines.choose import choose
from fedslice.training.engines.sequential import Sequential
from fedslice.training.engines.vectorized import Vectorized

__all__ = ["Engine", "Sequential", "Trained", "Vectorized", "choose"]
