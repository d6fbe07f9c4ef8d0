"""Server momentum (FedAvgM; Reddi et al. 2021)."""

from torch import Tensor

from fedslice.core.part import Positive
from fedslice.server.base import Averages, Averaging, Fraction


class ServerMomentum(Averaging):
    """m ← β·m + Δ, X += η·m.

    Args:
        server_lr: Factor of the averaged update, η.
        momentum: Share of the average that is kept in every round, β.
    """

    label = "momentum"
    kinds = ("momentum",)

    server_lr: Positive = 1.0
    momentum: Fraction = 0.9

    def move(self, state: Averages, name: str, update: Tensor, share: float) -> Tensor:  # noqa: ARG002
        """One step along the momentum."""
        return self.server_lr * state.get("momentum", name, update).mul_(self.momentum).add_(update)
