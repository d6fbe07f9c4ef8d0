"""The whole model, as in FedAvg."""

from pydantic.dataclasses import dataclass

from fedslice.parts import CHECKED
from fedslice.slices.base import Slices


@dataclass(config=CHECKED)
class Whole(Slices):
    """Every client holds and exchanges every parameter."""

    label = "whole"
