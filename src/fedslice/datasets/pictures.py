"""Generated pictures of any number of classes, for where the real sets are not at hand.

A class has a few prototypes, smooth random fields on a torus. A picture is one of them, shifted at random, under noise.
The shifts, about half a wave at most, blur what a linear model can learn; a convolution finds a field where it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedslice.core import rng
from fedslice.datasets.images import Images

MEAN = 0.5
DEVIATION = 0.25
"""Of all pixels, on a scale from 0 to 1."""

STYLES = 3
"""Prototypes of each class."""
SHIFT = 4
"""Pixels by which a prototype moves at most, in either direction."""
SMOOTH = 2.0
"""The fields have about so many waves along a side."""
NOISE = 0.7
"""Deviation of a pixel's noise, where that of the field is 1."""

_BLOCK = 1000
_STREAMS = ("prototype", "block")


def generate(shape: tuple[int, int, int], samples: int, seed: int, first: int = 0, classes: int = 10) -> Images:
    """Pictures number ``first`` to ``first + samples``; a picture depends on the seed and its number alone."""
    fields = _prototypes(shape, classes, seed)
    image = np.empty((samples, *shape), np.uint8)
    label = np.empty(samples, np.int64)
    for block in range(first // _BLOCK, -(-(first + samples) // _BLOCK)):
        pictures, kinds = _block(fields, shape, seed, block)
        start, end = max(first, block * _BLOCK), min(first + samples, (block + 1) * _BLOCK)
        here, there = slice(start - block * _BLOCK, end - block * _BLOCK), slice(start - first, end - first)
        image[there], label[there] = pictures[here], kinds[here]
    return Images(image, label)


def _prototypes(shape: tuple[int, int, int], classes: int, seed: int) -> NDArray[np.float32]:
    """White noise, of which only slow waves are kept: [class and style, channel, height, width], deviation one."""
    chance = rng.generator(seed, rng.Purpose.DATA, _STREAMS.index("prototype"), *shape)
    white = np.fft.fft2(chance.standard_normal((classes * STYLES, *shape)))
    waves = [np.fft.fftfreq(side) * side for side in shape[1:]]
    slow = np.exp(-(waves[0][:, None] ** 2 + waves[1][None] ** 2) / (2 * SMOOTH**2))
    slow[0, 0] = 0.0
    field = np.fft.ifft2(white * slow).real
    fields: NDArray[np.float32] = (field / field.std((1, 2, 3), keepdims=True)).astype(np.float32)
    return fields


def _block(
    fields: NDArray[np.float32], shape: tuple[int, int, int], seed: int, block: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    chance = rng.generator(seed, rng.Purpose.DATA, _STREAMS.index("block"), *shape, block)
    label = chance.integers(0, len(fields) // STYLES, _BLOCK)
    which = label * STYLES + chance.integers(0, STYLES, _BLOCK)
    moved = chance.integers(-SHIFT, SHIFT, (2, _BLOCK), endpoint=True)
    rows, columns = ((np.arange(side) + move[:, None]) % side for side, move in zip(shape[1:], moved, strict=True))
    picture = chance.standard_normal((_BLOCK, *shape), np.float32)
    picture *= NOISE
    for channel in range(shape[0]):
        picture[:, channel] += fields[:, channel][which[:, None, None], rows[:, :, None], columns[:, None, :]]
    picture *= 255 * DEVIATION / np.sqrt(1 + NOISE**2)
    picture += 255 * MEAN
    return picture.clip(0, 255, out=picture).astype(np.uint8), label
