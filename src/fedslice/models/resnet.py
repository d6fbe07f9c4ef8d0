"""Residual networks (He et al., 2016, table 1), the larger networks of FLSS, with group normalisation.

Batch normalisation has running statistics, which are no parameters and which nobody averages; it also makes a sample's
output depend on the samples beside it. Group normalisation (Wu and He, 2018) has the same number of parameters, so the
sizes are those that FLSS counts bytes by. In a bottleneck the 3 by 3 convolution has the stride, as in torchvision's
networks, which FLSS trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from fedslice.models.normalise import Normalise

GROUPS = 32
"""Of channels that are normalised together; Wu and He's choice."""


@dataclass(frozen=True)
class Stages:
    """Blocks of each stage, the outputs of the first stage's 3 by 3 convolutions, and whether blocks are bottlenecks.

    Each stage has twice the channels of the one before.
    """

    blocks: tuple[int, ...]
    bottleneck: bool
    width: int = 64


RESNETS = {"resnet18": Stages((2, 2, 2, 2), False), "resnet50": Stages((3, 4, 6, 3), True)}

_EXPANSION = 4  # outputs of a bottleneck by those of its 3 by 3 convolution


class ResNet(nn.Module):
    """Class logits [B, classes] of images [B, C, H, W] as they are stored, for ``shape`` (C, H, W) of any size."""

    def __init__(
        self,
        stages: Stages,
        shape: tuple[int, int, int],
        mean: Sequence[float],
        deviation: Sequence[float],
        classes: int,
    ) -> None:
        super().__init__()
        self.normalise = Normalise(mean, deviation)
        self.stem = _Unit(shape[0], stages.width, 7, stride=2)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs, blocks = stages.width, []
        for stage, count in enumerate(stages.blocks):
            for number in range(count):
                stride = 2 if stage and not number else 1
                blocks.append(_Block(inputs, stages.width * 2**stage, stride, stages.bottleneck))
                inputs = blocks[-1].outputs
        self.blocks = nn.Sequential(*blocks)
        self.classes = nn.Linear(inputs, classes)

    def forward(self, image: Tensor) -> Tensor:
        """One logit per class."""
        found = self.blocks(self.pool(F.relu(self.stem(self.normalise(image)))))
        logits: Tensor = self.classes(found.mean((-2, -1)))
        return logits


class _Unit(nn.Module):
    """A convolution without bias, and its normalisation; He et al.'s initialisation (2015)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = nn.GroupNorm(GROUPS, outputs)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(x))
        return out


class _Block(nn.Module):
    """Two 3 by 3 convolutions, or a bottleneck of three, beside a shortcut that is the identity where shapes allow."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.outputs = width * _EXPANSION if bottleneck else width
        if bottleneck:
            units = [_Unit(inputs, width, 1), _Unit(width, width, 3, stride), _Unit(width, self.outputs, 1)]
        else:
            units = [_Unit(inputs, width, 3, stride), _Unit(width, width, 3)]
        self.units = nn.ModuleList(units)
        same = stride == 1 and inputs == self.outputs
        self.shortcut = nn.Identity() if same else _Unit(inputs, self.outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        beside = self.shortcut(x)
        for number, unit in enumerate(self.units):
            x = unit(F.relu(x) if number else x)
        return F.relu(x + beside)
