"""Adaptive server optimizers: FedAdam, FedYogi and FedAdagrad (Reddi et al. 2021, algorithm 2)."""

from __future__ import annotations

from torch import Tensor

from fedslice.core.part import Positive
from fedslice.server.base import Averages, Averaging, Fraction


class ServerAdagrad(Averaging):
    """m ← β1·m + (1 − β1)·Δ, v ← v + Δ², X += η·m / (√v + τ): the rate of a coordinate only ever falls.

    As published there is no bias correction, and v begins at τ²: a coordinate that never moved then has a finite rate.

    Args:
        server_lr: Step size of the server, η.
        beta1: Share of the first moment that is kept in every round, β1.
        tau: Added to the root of the second moment, τ; larger values adapt less.
    """

    label = "adagrad"
    kinds = ("m", "v")

    server_lr: Positive = 0.01
    beta1: Fraction = 0.9
    tau: Positive = 1e-3

    def move(self, state: Averages, name: str, update: Tensor, share: float) -> Tensor:  # noqa: ARG002
        """One adaptive step."""
        first = state.get("m", name, update).lerp_(update, 1 - self.beta1)
        second = state.get("v", name, update, self.tau**2)
        self.follow(second, update.square())
        return self.server_lr * first / (second.sqrt() + self.tau)

    def follow(self, second: Tensor, square: Tensor) -> None:
        """Let the second moment follow the squared update, in place."""
        second.add_(square)


class ServerAdam(ServerAdagrad):
    """v ← β2·v + (1 − β2)·Δ²: old squares fade.

    Args:
        beta2: Share of the second moment that is kept in every round, β2.
    """

    label = "adam"

    beta2: Fraction = 0.99

    def follow(self, second: Tensor, square: Tensor) -> None:
        """A moving average."""
        second.lerp_(square, 1 - self.beta2)


class ServerYogi(ServerAdam):
    """v ← v − (1 − β2)·Δ²·sign(v − Δ²): the second moment changes by no more than the update's square."""

    label = "yogi"

    def follow(self, second: Tensor, square: Tensor) -> None:
        """Additive, where Adam's is multiplicative."""
        second.addcmul_(square, (second - square).sign(), value=self.beta2 - 1)
