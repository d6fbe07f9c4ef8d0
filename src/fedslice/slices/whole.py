"""The whole model, as in FedAvg."""

from pydantic.dataclasses import dataclass

from fedslice.core.part import CHECKED
from fedslice.slices.base import Slices


@dataclass(frozen=True, config=CHECKED)
class Whole(Slices):
    """Every client holds and exchanges every parameter."""

    label = "whole"

    @property
    def provides(self) -> frozenset[str]:
        """All goes up."""
        return frozenset({"all", "sends-all"})
