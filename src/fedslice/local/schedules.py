"""Schedules: how the step size of local training changes over rounds and steps."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedslice.core.component import Component
from fedslice.core.errors import UserError
from fedslice.core.part import Count, NonNegative, Positive


class Schedule(Component):
    """Factors of the learning rate."""

    place: ClassVar[str] = "schedule"

    def factors(self, t: int, steps: Tensor, rounds: int | None = None) -> Tensor:
        """Return the factor of each client's rate in each of its steps [clients, most steps], in float64.

        Args:
            t: The round.
            steps: Number of steps of each client in a round [clients].
            rounds: Length of the run, if that is known.
        """
        raise NotImplementedError


class Exponential(Schedule):
    """decay^t in round t. With ``decay=1`` the rate is constant.

    Args:
        decay: Factor from a round to the next.
    """

    label = "exponential"

    decay: Positive = 1.0

    def factors(self, t: int, steps: Tensor, rounds: int | None = None) -> Tensor:  # noqa: ARG002
        """Return decay^t."""
        return _alike(self.decay**t, steps)


class InverseTime(Schedule):
    """(γ + 1)/(γ + k) in the client's k-th step since the first round, counted as if it took part in every one.

    With ``lr`` = 2/(μ·(γ + 1)) the step sizes are 2/(μ·(γ + k)), for which FedAvg and FDRL converge at the rate 1/k on
    strongly convex losses.

    Args:
        gamma: γ. The larger it is, the slower rates fall.
    """

    label = "inverse-time"

    gamma: NonNegative = 1.0

    def factors(self, t: int, steps: Tensor, rounds: int | None = None) -> Tensor:  # noqa: ARG002
        """Return (γ + 1)/(γ + k)."""
        places = torch.arange(int(steps.max()), dtype=torch.float64, device=steps.device)
        return (self.gamma + 1) / (self.gamma + t * steps.double()[:, None] + places + 1)


class Cosine(Schedule):
    """floor + (1 − floor)·(1 + cos(π·t/T))/2 in round t, and ``floor`` after round T.

    Args:
        over: T. By default the number of rounds of the run.
        floor: The last factor.
    """

    label = "cosine"

    over: Count | None = None
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0

    def factors(self, t: int, steps: Tensor, rounds: int | None = None) -> Tensor:
        """Return the factor of the round."""
        over = self.over or rounds
        if over is None:
            raise UserError("schedule=cosine needs to know the number of rounds; give it as over=100.")
        return _alike(self.floor + (1 - self.floor) * (1 + math.cos(math.pi * min(t / over, 1))) / 2, steps)


def _alike(factor: float, steps: Tensor) -> Tensor:
    return torch.full((len(steps), int(steps.max())), factor, dtype=torch.float64, device=steps.device)
