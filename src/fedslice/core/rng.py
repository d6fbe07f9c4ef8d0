"""Counter-based randomness: a draw depends on its key (seed, round, client, purpose) and on nothing else.

A generator that is advanced by use would tie a client's batches to the engine, the chunk size and the order
of clients. Here every draw is a hash of its key, so any engine, any chunk and any machine draws the same, and
the random state of a run is its seed and its round.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Words = int | NDArray[np.integer]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Purpose(IntEnum):
    """The purpose of a draw; separate purposes are separate streams."""

    MODEL = 1
    COHORT = 2
    BATCH = 3
    SPLIT = 4
    EVALUATION = 5
    SLICE = 6
    DATA = 7
    NOISE = 8
    DEVICES = 9
    GENERATOR = 10  # of FedGen, on the server


def bits(*key: Words) -> NDArray[np.uint64]:
    """64 uniform bits for each key; array words broadcast against each other (SplitMix64 finaliser per word)."""
    with np.errstate(over="ignore"):
        state = np.zeros((), dtype=np.uint64)
        for word in key:
            state = (state ^ np.asarray(word).astype(np.uint64)) + _GOLDEN
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


def integers(below: Words, *key: Words) -> NDArray[np.int64]:
    """Uniform integers in [0, below) for each key; the bias is below 2^-32 times ``below``."""
    high = bits(*key) >> np.uint64(32)
    return ((high * np.asarray(below).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def uniform(*key: Words) -> NDArray[np.float64]:
    """Uniform floats in [0, 1) for each key."""
    return (bits(*key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def generator(*key: int) -> np.random.Generator:
    """A NumPy generator of its own for one key, for draws that concern the whole population."""
    return np.random.Generator(np.random.Philox(key=int(bits(*key))))


def torch_seed(*key: int) -> int:
    """A seed for ``torch.manual_seed``."""
    return int(bits(*key) >> np.uint64(1))
