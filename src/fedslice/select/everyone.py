"""Full participation, as in FedDD: every client uploads in every round."""

from __future__ import annotations

from typing import Any

import torch

from fedslice.select.base import Cohort, Select


class Everyone(Select):
    """All enrolled clients in every round."""

    label = "everyone"

    def choose(self, state: Any, t: int) -> Cohort:  # noqa: ARG002
        """The whole population."""
        clients = state.run.enrolled.numbers()
        return Cohort(clients, torch.zeros_like(clients))
