"""The image networks of S3: those of table 2, and the sub-models of tables 3 and 6.

Tables 3 and 6 need a padding of one pixel and five poolings (32 pixels to one). Table 6 contradicts itself between its
fourth and its last convolution; it is read so that every layer takes what the one before gives, with 256 outputs of the
last convolution in sub-models 2 to 5.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedslice.errors import UserError, unknown

CLASSES = 10


@dataclass(frozen=True)
class Layers:
    """Outputs of each convolution, which a 2 by 2 pooling follows, and of each hidden fully connected layer."""

    convolutions: tuple[int, ...]
    hidden: tuple[int, ...]
    kernel: int = 3
    padding: int = 1

    @property
    def widths(self) -> tuple[int, ...]:
        """Outputs of every layer, the classes included."""
        return (*self.convolutions, *self.hidden, CLASSES)


_SUB_MODELS = {
    "a": (
        Layers((64, 128, 256, 512, 512), (100, 100)),
        Layers((64, 128, 256, 256, 512), (100, 100)),
        Layers((64, 128, 256, 256, 512), (80, 100)),
        Layers((32, 128, 256, 256, 512), (80, 100)),
        Layers((32, 128, 256, 256, 512), (80, 100)),
    ),
    "b": (
        Layers((64, 128, 256, 512, 512), (100, 100)),
        Layers((64, 128, 256, 512, 256), (100, 100)),
        Layers((64, 128, 256, 256, 256), (80, 80)),
        Layers((32, 96, 256, 256, 256), (80, 80)),
        Layers((32, 96, 128, 128, 256), (80, 80)),
    ),
}

MODELS: dict[str, Layers] = {
    "mlp": Layers((), (100, 64)),
    "cnn1": Layers((10, 20), (50,), kernel=5, padding=0),
    "cnn2": Layers((16, 32, 64), (500, 100)),
    **{f"vgg-{kind}{n}": layers for kind, five in _SUB_MODELS.items() for n, layers in enumerate(five, start=1)},
}


def widths(kind: Literal["a", "b"], number: int) -> tuple[int, ...]:
    """Outputs of every layer of sub-model ``number``, 1 to 5, of S3's set a (table 3) or b (table 6).

    Sub-model 1 is the whole model, and no layer of the others is wider: each is a prefix of it in every layer.
    """
    name = f"vgg-{kind}{number}"
    if name not in MODELS:
        raise unknown("sub-model", name, [one for one in MODELS if one.startswith("vgg")])
    return MODELS[name].widths


class ImageClassifier(nn.Sequential):
    """Class logits [B, 10] of images [B, C, H, W] as they are stored, 0 to 255 in bytes or as floats.

    ``shape`` is (C, H, W); ``mean`` and ``deviation`` are those of the channels on a scale from 0 to 1, by which the
    network normalises its input. The softmax belongs to the loss.
    """

    def __init__(
        self, name: str, shape: tuple[int, int, int], mean: Sequence[float], deviation: Sequence[float]
    ) -> None:
        if name not in MODELS:
            raise unknown("model", name, MODELS)
        layers = MODELS[name]
        parts: OrderedDict[str, nn.Module] = OrderedDict(normalise=_Normalise(mean, deviation))
        inputs, height, width = shape
        for number, outputs in enumerate(layers.convolutions, start=1):
            parts[f"conv{number}"] = nn.Conv2d(inputs, outputs, layers.kernel, padding=layers.padding)
            parts[f"pool{number}"] = nn.MaxPool2d(2)
            parts[f"relu{number}"] = nn.ReLU()  # after the maximum, as it is the same before and costs four times more
            height, width = ((side + 2 * layers.padding - layers.kernel + 1) // 2 for side in (height, width))
            inputs = outputs
        if min(height, width) < 1:
            raise UserError(
                f"model {name!r} halves its input {len(layers.convolutions)} times, which images of {shape[1]} by "
                f"{shape[2]} pixels are too small for; choose another model."
            )
        parts["flatten"] = nn.Flatten()
        inputs *= height * width
        for number, outputs in enumerate(layers.hidden, start=1):
            parts[f"full{number}"] = nn.Linear(inputs, outputs)
            parts[f"bend{number}"] = nn.ReLU()
            inputs = outputs
        parts["classes"] = nn.Linear(inputs, CLASSES)
        super().__init__(parts)

    def forward(self, image: Tensor) -> Tensor:
        """One logit per class."""
        for part in self:
            image = part(image)
        return image


class _Normalise(nn.Module):
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
        return image * self.scale + self.shift
