"""The mean over those who sent a coordinate (FedDD, equation 4; the submodel averaging that FedSubAvg departs from)."""

from __future__ import annotations

from collections.abc import Iterable

from fedslice.combine.base import Weighted
from fedslice.core.capabilities import Rule


class Coverage(Weighted):
    """W = Σ w_i·W_i·M_i / Σ w_i·M_i per coordinate; where nobody sent, the old value stays."""

    label = "coverage"

    @property
    def provides(self) -> frozenset[str]:
        """The mean over senders is the step."""
        return frozenset({"per-sender", "plain"})

    def rules(self) -> Iterable[Rule]:
        """Refuse a sum of codes, which no longer says who sent which coordinate."""
        yield Rule(
            "codec",
            "sums-codes",
            False,
            "combine=coverage divides each coordinate by its senders, which codec={label} no longer shows once codes "
            "are summed; use combine=mean or codec=dense.",
        )
