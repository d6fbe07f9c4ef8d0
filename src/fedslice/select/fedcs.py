"""FedCS: the same fast clients in every round.

Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge
    Takayuki Nishio, Ryo Yonetani. ICC 2019. A baseline of FedDD (section 6.2).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Literal

import numpy as np
from pydantic import model_validator

from fedslice.core.errors import UserError
from fedslice.core.part import Positive, ServerRun, State
from fedslice.select.base import Cohort
from fedslice.select.budget import BySpeed, Known, Numbers, Share, Vector, affordable, cohort


class Choice(State):
    """The cohort of all rounds until somebody enrols or leaves, and of which version of the enrolled it is."""

    def __init__(self, run: ServerRun):
        super().__init__(run)
        self.made: tuple[int, Cohort] | None = None


class FedCS(BySpeed):
    """The fastest clients, as many as a budget of parameters allows.

    That is FedDD's reading (section 6.2), which gives all methods the same number of parameters to exchange. With a
    ``deadline`` it is the original protocol instead, which has no use for ``time``.

    Args:
        budget: Share of all parameters that may be exchanged, A; 0.6 if neither this nor a deadline is given.
        deadline (seconds): Length of a round, which as many clients fill as a greedy search finds; no
            budget then.
        time: What makes a client fast: ``communication`` alone, or ``total`` with training.
    """

    label = "fedcs"

    budget: Share | None = None
    deadline: Positive | None = None
    time: Literal["communication", "total"] = "communication"

    @model_validator(mode="after")
    def _one_limit(self) -> FedCS:
        if self.budget is not None and self.deadline is not None:
            raise ValueError(f"budget={self.budget} and deadline={self.deadline} are both given; give one")
        return self

    def server_state(self, run: ServerRun) -> Choice:
        """Nobody is chosen yet."""
        return Choice(run)

    def choose(self, state: Choice, t: int) -> Cohort:  # noqa: ARG002
        """Return the same clients while the population stays the same: speeds do not change during a run."""
        version = state.run.enrolled.version
        if state.made is None or state.made[0] != version:
            known = Known.of(state.run)
            state.made = version, cohort(known.numbers[self._fastest(known)])
        return state.made[1]

    def _fastest(self, known: Known) -> Numbers:
        """Return positions among the known."""
        if self.deadline is None:
            seconds = known.seconds if self.time == "total" else known.download + known.upload
            order = seconds.argsort(kind="stable")
            return affordable(order, known.held, 0.6 if self.budget is None else self.budget)
        chosen = greedy(known.download, known.training, known.upload, self.deadline)
        if not len(chosen):
            seconds = known.seconds
            raise UserError(
                f"select={self.label}: nobody is done by deadline={self.deadline:g} seconds, as the fastest, client "
                f"{known.numbers[seconds.argmin()]}, takes {seconds.min():.6g}; give a longer deadline."
            )
        return chosen


def greedy(download: Vector, training: Vector, upload: Vector, deadline: float) -> Numbers:
    """Return clients in the order in which the original protocol adds them (Nishio and Yonetani, algorithm 3).

    Downloads run at once, T = max t_d, training in parallel, and uploads one after the other, so that a client moves
    the elapsed time to Θ' = max(Θ, t_cmp) + t_u. It lengthens the round by t_u + max(0, t_d − T) + max(0, t_cmp − Θ);
    the next is who lengthens it least, by number if equal. If that one is late, so are all others: the search ends.

    T and Θ only grow, so each maximum has its second term until some moment and zero ever after. Clients therefore
    wait in four heaps, one for each pair of terms they had when last looked at, ordered by their part of the sum. What
    a heap says of a client is never too long, and right if the client still belongs there; else it moves, twice at
    most: O(N log N) in all.
    """
    terms = list(zip(download.tolist(), training.tolist(), upload.tolist(), strict=True))
    heaps: dict[tuple[bool, bool], list[tuple[float, int]]] = {(d, c): [] for d in (True, False) for c in (True, False)}
    heaps[True, True] = sorted((d + c + u, client) for client, (d, c, u) in enumerate(terms))
    chosen: list[int] = []
    longest = elapsed = 0.0  # T and Θ
    while offers := [
        (heap[0][0] - longest * kind[0] - elapsed * kind[1], heap[0][1], kind) for kind, heap in heaps.items() if heap
    ]:
        _, client, kind = min(offers)
        heappop(heaps[kind])
        d, c, u = terms[client]
        now = d > longest, c > elapsed
        if now != kind:
            heappush(heaps[now], (u + d * now[0] + c * now[1], client))
        elif max(longest, d) + max(elapsed, c) + u <= deadline:
            longest, elapsed = max(longest, d), max(elapsed, c) + u
            chosen.append(client)
        else:
            break
    return np.array(chosen, dtype=np.int64)
