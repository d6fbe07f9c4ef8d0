"""A shared and a private encoder side by side, for FDRL (equation 1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fedslice.core.errors import UserError, unknown

ENCODERS = ("shared", "private")
INTEGRATIONS = ("concat", "sum", "gated")


class Discriminative(nn.Module):
    """F(M_W(x), M_Q(x)) and a head on top: ``shared`` is M_W, ``private`` is M_Q, each gives [B, features].

    ``integrate`` is F: both side by side, their sum, or a mixture of both by a gate that looks at both, which is a
    client's own like the head. ``head`` is the number of outputs of a Linear layer, a module, or ``None`` for encoders
    whose features are the outputs. For a number, and for a gate, an encoder's last Linear layer tells how many features
    it gives.

    A single feature is handed to both encoders as it is, several by their names. The encoders must not begin with the
    same values: where W = Q, the distance that pushes them apart has no gradient.
    """

    def __init__(
        self,
        shared: nn.Module,
        private: nn.Module,
        head: int | nn.Module | None = None,
        integrate: Literal["concat", "sum", "gated"] = "concat",
    ) -> None:
        super().__init__()
        if integrate not in INTEGRATIONS:
            raise unknown("integrate", integrate, INTEGRATIONS)
        self.shared = shared
        self.private = private
        self.integrate = integrate
        self.gate = nn.Linear(_width(shared) + _width(private), _width(shared)) if integrate == "gated" else None
        if isinstance(head, int):
            head = nn.Linear(_width(shared) + (_width(private) if integrate == "concat" else 0), head)
        self.head = head

    def forward(self, *given: Tensor, **features: Tensor) -> Tensor:
        """Return the head's output for both representations."""
        if len(features) == 1:
            given, features = (*given, *features.values()), {}
        found = self._joined(self.shared(*given, **features), self.private(*given, **features))
        return found if self.head is None else self.head(found)

    def _joined(self, shared: Tensor, private: Tensor) -> Tensor:
        if self.integrate == "sum":
            return shared + private
        both = torch.cat([shared, private], -1)
        if self.gate is None:
            return both
        share: Tensor = self.gate(both).sigmoid()
        return share * shared + (1 - share) * private


def _width(encoder: nn.Module) -> int:
    """Number of features of an encoder: the outputs of its last Linear layer."""
    found = [part.out_features for part in encoder.modules() if isinstance(part, nn.Linear)]
    if not found:
        raise UserError(
            f"{type(encoder).__name__} has no Linear layer that would tell how many features it gives; give the head "
            "as a module, and integrate as 'concat' or 'sum'."
        )
    return found[-1]
