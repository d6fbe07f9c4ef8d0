"""The server's side of FedDyn and FedDC: the model stands where clients end, and their mean drift beyond that."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from fedslice.core.capabilities import Rule
from fedslice.server.base import Averages, Averaging


class Drift(Averaging):
    """d ← d + (K/N)·Δ, X += Δ + d, where Δ is the mean update: d is the mean over all N clients of the sum of updates.

    FedDyn (Acar et al. 2021, algorithm 1) writes −h/α for d, which holds for any α; FedDC (Gao et al. 2022,
    algorithm 1) adds the mean of its clients' drifts, which is d.
    """

    label = "drift"
    kinds = ("drift",)

    @property
    def provides(self) -> frozenset[str]:
        """The clients' mean drift is added."""
        return frozenset({"adds-drift"})

    def rules(self) -> Iterable[Rule]:
        """Refuse clients without a drift, and a mean whose divisor changes from round to round."""
        yield Rule(
            "local",
            "accumulates",
            True,
            "server=drift adds up the drift of clients, and local={label} has none; use local=feddyn or "
            "local=feddyn+scaffold, or server=sgd.",
        )
        yield Rule(
            "combine",
            "per-sender",
            False,
            "server=drift needs a step that is a share of all clients' updates, and combine={label} divides each "
            "coordinate by the round's senders; use combine=mean or combine=heat.",
        )

    def move(self, state: Averages, name: str, update: Tensor, share: float) -> Tensor:
        """One step to the clients' mean, and as far again as they drifted."""
        return update + state.get("drift", name, update).add_(update, alpha=share)
