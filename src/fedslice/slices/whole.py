"""The whole model, as in FedAvg."""

from fedslice.slices.base import Slices


class Whole(Slices):
    """Every client holds and exchanges every parameter."""

    label = "whole"

    @property
    def provides(self) -> frozenset[str]:
        """All goes up."""
        return frozenset({"all", "sends-all"})
