"""The image networks of FedDD (table 2, the sub-models of tables 3 and 6), FLSS (FedAvg's CNN, ResNets) and FDRL.

Tables 3 and 6 need a padding of one pixel and five poolings (32 pixels to one). Table 6 contradicts itself between its
fourth and its last convolution; it is read so that every layer takes what the one before gives, with 256 outputs of the
last convolution in sub-models 2 to 5. FLSS's `fedavgcnn` is the one of PFLlib, the library whose settings FLSS has.

FDRL's networks are those of its published code: `fdrl-mlp` (MNIST), `fdrl-cnn` (CIFAR-10) and `fdrl-cnn100` (CIFAR-100)
have two encoders; `fdrl-baseline-mlp`, `fdrl-baseline-cnn` and `fdrl-baseline-cnn100` have one of them and the same
dropout, for the methods they are compared with. That code's MLP ends in a softmax though the cross-entropy has one of
its own, which flattens its gradient; `fdrl-mlp-softmax` and `fdrl-baseline-mlp-softmax` do so too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fedslice.core.errors import UserError, unknown
from fedslice.models.discriminative import Discriminative
from fedslice.models.normalise import Normalise
from fedslice.models.resnet import RESNETS, ResNet

CLASSES = 10  # of each of FedDD's three sets


@dataclass(frozen=True)
class Layers:
    """Outputs of each convolution, which a 2 by 2 pooling follows, and of each hidden fully connected layer.

    ``dropout`` says where a share of 0.6 is dropped: of the features that enter the last layer, or of its outputs.
    ``softmax`` makes shares of the outputs.
    """

    convolutions: tuple[int, ...]
    hidden: tuple[int, ...]
    kernel: int = 3
    padding: int = 1
    dropout: Literal["features", "outputs"] | None = None
    softmax: bool = False


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
    "fedavgcnn": Layers((32, 64), (512,), kernel=5, padding=0),
    "fdrl-baseline-mlp": Layers((), (512, 256, 64)),
    "fdrl-baseline-mlp-softmax": Layers((), (512, 256, 64), softmax=True),
    "fdrl-baseline-cnn": Layers((64, 64), (120, 64), kernel=5, padding=0, dropout="outputs"),
    "fdrl-baseline-cnn100": Layers((64, 128), (256, 128), kernel=5, padding=0, dropout="features"),
    **{f"vgg-{kind}{n}": layers for kind, five in _SUB_MODELS.items() for n, layers in enumerate(five, start=1)},
}

_DEEP = tuple(name for name in MODELS if name.startswith("vgg"))


def _glorot(layer: nn.Module) -> None:
    """Begin as Glorot and Bengio do: from PyTorch's own start eight layers do not move for hundreds of steps."""
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)


PAIRS = {  # with two encoders of this network
    "fdrl-mlp": "fdrl-baseline-mlp",
    "fdrl-mlp-softmax": "fdrl-baseline-mlp-softmax",
    "fdrl-cnn": "fdrl-baseline-cnn",
    "fdrl-cnn100": "fdrl-baseline-cnn100",
}
_DROPOUT = 0.6


def widths(kind: Literal["a", "b"], number: int) -> tuple[int, ...]:
    """Outputs of every layer of sub-model ``number``, 1 to 5, of FedDD's set a (table 3) or b (table 6).

    Sub-model 1 is the whole model, and no layer of the others is wider: each is a prefix of it in every layer.
    """
    name = f"vgg-{kind}{number}"
    if name not in MODELS:
        raise unknown("sub-model", name, [one for one in MODELS if one.startswith("vgg")])
    return (*MODELS[name].convolutions, *MODELS[name].hidden, CLASSES)


def network(
    name: str, shape: tuple[int, int, int], mean: Sequence[float], deviation: Sequence[float], classes: int
) -> nn.Module:
    """Any of these networks by its name; what it takes and gives is told by `ImageClassifier`."""
    if name in RESNETS:
        return ResNet(RESNETS[name], shape, mean, deviation, classes)
    if name in PAIRS:
        return ImagePair(PAIRS[name], shape, mean, deviation, classes)
    if name not in MODELS:
        raise unknown("model", name, [*MODELS, *RESNETS, *PAIRS])
    return ImageClassifier(name, shape, mean, deviation, classes)


class ImageClassifier(nn.Sequential):
    """Class logits [B, classes] of images [B, C, H, W] as they are stored, 0 to 255 in bytes or as floats.

    ``shape`` is (C, H, W); ``mean`` and ``deviation`` are those of the channels on a scale from 0 to 1, by which the
    network normalises its input. The softmax belongs to the loss.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, int, int],
        mean: Sequence[float],
        deviation: Sequence[float],
        classes: int = CLASSES,
    ) -> None:
        encoder, features = _encoder(name, shape)
        parts: OrderedDict[str, nn.Module] = OrderedDict(normalise=Normalise(mean, deviation))
        super().__init__(parts | encoder | _head(name, features, classes))
        if name in _DEEP:
            self.apply(_glorot)

    def forward(self, image: Tensor) -> Tensor:
        """One logit per class."""
        for part in self:
            image = part(image)
        return image


class ImagePair(Discriminative):
    """The same with two encoders, which are drawn one after the other, and a last layer for both (FDRL)."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, int, int],
        mean: Sequence[float],
        deviation: Sequence[float],
        classes: int = CLASSES,
    ) -> None:
        (shared, features), (private, _) = (_encoder(name, shape) for _ in range(2))
        head = _head(name, 2 * features, classes)
        super().__init__(nn.Sequential(shared), nn.Sequential(private), nn.Sequential(head))
        self.normalise = Normalise(mean, deviation)

    def forward(self, image: Tensor) -> Tensor:  # type: ignore[override]
        """One logit per class."""
        return super().forward(self.normalise(image))


def _encoder(name: str, shape: tuple[int, int, int]) -> tuple[OrderedDict[str, nn.Module], int]:
    """The layers of a network between the first and the last, and the number of features they give."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    layers = MODELS[name]
    parts: OrderedDict[str, nn.Module] = OrderedDict()
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
    return parts, inputs


def _head(name: str, features: int, classes: int) -> OrderedDict[str, nn.Module]:
    """The last layer, dropout before or behind it, and a softmax."""
    last, dropout = ("classes", nn.Linear(features, classes)), ("dropout", nn.Dropout(_DROPOUT))
    where = MODELS[name].dropout
    parts = [last] if where is None else [dropout, last] if where == "features" else [last, dropout]
    return OrderedDict([*parts, ("softmax", nn.Softmax(-1))] if MODELS[name].softmax else parts)
