"""Purposes of private draws; their numbers lie beyond those of :class:`fedslice.core.rng.Purpose`."""

from enum import IntEnum


class Draw(IntEnum):
    """The purpose of a draw; separate purposes are separate streams."""

    ROUNDING = 101
    PERMANENT = 102
    INSTANTANEOUS = 103
    HEAT = 104
    UNION = 105
    CELLS = 106  # of the Bloom filter, known to everyone
    GRAPH = 107  # of neighbours, known to everyone
