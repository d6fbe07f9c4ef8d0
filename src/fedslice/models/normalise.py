"""The first layer of every image network: from bytes to numbers around zero."""

from collections.abc import Sequence

import torch
import torch.fx
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped


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
        """Floats of the same shape, the channels of a pixel side by side."""
        return side_by_side(image * self.scale + self.shift)


@torch.fx.wrap  # a graph of the network shows it as one step
def side_by_side(image: Tensor) -> Tensor:
    """The same image in the layout in which one client's convolutions run up to 1.8 times as fast.

    Under vmap convolutions are grouped, and know one layout only.
    """
    return image if is_wrapped(image) else image.to(memory_format=torch.channels_last)
