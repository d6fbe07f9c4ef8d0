"""The first layer of every image network: from bytes to numbers around zero."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalise(nn.Module):
    """(x / 255 - mean) / deviation, as one product and one sum; bytes become floats on the way.

    So a federation keeps a byte per pixel, and only the batches at hand take four.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        middle, spread = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (mean, deviation))
        self.register_buffer("scale", 1 / (255 * spread))
        self.register_buffer("shift", -middle / spread)

    def forward(self, image: Tensor) -> Tensor:
        """Floats of the same shape."""
        return image * self.scale + self.shift
