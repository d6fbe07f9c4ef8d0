"""Scaffold without client state, as FedSubAvg runs it on its click tasks (appendix D.2, equation 47)."""

from __future__ import annotations

from torch import Tensor

from fedslice.core.part import Positive
from fedslice.server.base import Averages, Averaging


class ScaffoldApprox(Averaging):
    """Δ ← (1 − K/N)·Δ + (K/N)·Δ_round, X += η·Δ; the first round's Δ is its own.

    The average stands for the update of all clients, of which each round renews the share that took part.

    Args:
        server_lr: Factor of the averaged update, η.
    """

    label = "scaffold-approx"
    kinds = ("update",)

    server_lr: Positive = 1.0

    def move(self, state: Averages, name: str, update: Tensor, share: float) -> Tensor:
        """One step along the renewed average."""
        if f"update.{name}" not in state.averages:
            share = 1.0
        return self.server_lr * state.get("update", name, update).lerp_(update, share)
