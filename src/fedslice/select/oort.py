"""Oort: clients whose data are worth most and who are not too slow.

Oort: Efficient Federated Learning via Guided Participant Selection
    Fan Lai, Xiangfeng Zhu, Harsha V. Madhyastha, Mosharaf Chowdhury. OSDI 2021. A baseline of FedDD (section 6.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedslice.core import rng
from fedslice.core.encodings import Floats
from fedslice.core.message import Body, Fields
from fedslice.core.message import Field as MessageField
from fedslice.core.part import Count, NonNegative, Round, ServerRun, State
from fedslice.core.slice import Slice
from fedslice.core.spec import Spec
from fedslice.select.base import Cohort
from fedslice.select.budget import BySpeed, Known, Numbers, Share, Vector, affordable, cohort

Chance = Annotated[float, Field(ge=0, le=1)]
Percent = Annotated[float, Field(ge=0, le=100)]
_LEAST = 1e-300  # the weight of a client that is worth nothing: it comes last, but it comes


class Oort(BySpeed):
    """Clients by utility, |B_i|·√(mean over B_i of squared losses)·(T/t_i)^(α·1[t_i > T]), from their last round.

    The mean square is over the samples that the client trained on in its last round, each with the loss it had before
    the step that it was part of. A client whose loss is not finite keeps its last finite one, and is worth nothing
    before it had any.

    ``scheme="top"`` is FedDD's reading: after a first round of everyone the best in order, as many as the share
    ``budget`` of all parameters allows, where T is the ``budget``-quantile of all t_i. A client that enrols later comes
    first until it has been invited; one that was invited and never had a finite loss comes last.

    ``full`` is the published method, with a cohort of ``budget``·N clients: a falling share of it goes to clients never
    seen, drawn by their numbers of samples; the rest is drawn by score among those not much worse than the best. The
    score is the utility without its last factor, capped, scaled to [0, 1], plus √(0.1·ln r / r_i) for a client last
    seen in round r_i, and then times that factor. A pacer moves T. Defaults are those of the authors' code, for
    ``round_threshold`` and ``pacer_delta`` of its successor FedScale.

    Args:
        budget: Share of all parameters that may be exchanged, A; of all clients with ``full``.
        alpha: Exponent of the penalty for being slower than T, α; 0 ignores speed.
        scheme: ``top`` takes the best in order, ``full`` is the published method with exploration and a pacer.
        exploration: Share of the cohort for clients never seen, at first; only ``full``.
        exploration_decay: Factor by which this share falls in every round; only ``full``.
        exploration_min: Share below which it does not fall while there are such clients; only ``full``.
        cut_off: Share of the last place's score above which clients may be drawn as well; only ``full``.
        cap: Quantile of the utilities at which they are cut, so that no corrupt client rules; only ``full``.
        round_threshold (percent): T at first, as a percentile of all clients' times; only ``full``.
        pacer_step (rounds): How often T is reconsidered; only ``full``.
        pacer_delta (percent): By how many percentiles T then moves; only ``full``.
    """

    label = "oort"
    asked = ("pace", "held", "samples")

    budget: Share = 0.6
    alpha: NonNegative = 2.0
    scheme: Literal["top", "full"] = "top"

    exploration: Chance = 0.9
    exploration_decay: Share = 0.98
    exploration_min: Chance = 0.2
    cut_off: Share = 0.7
    cap: Share = 0.95
    round_threshold: Percent = 30.0
    pacer_step: Count = 20
    pacer_delta: Percent = 5.0

    @property
    def provides(self) -> frozenset[str]:
        """Clients report the mean squared loss of their samples."""
        return frozenset({"squares"})

    def up_fields(self, spec: Spec, part: Slice) -> Fields:  # noqa: ARG002
        """The mean squared loss, which may be broken."""
        about = "the mean squared loss of the samples that it trained on"
        return {"squares": MessageField(Floats(spec.dtype, finite=False), shape=(1,), about=about)}

    def server_state(self, run: ServerRun) -> Seen:
        """Nobody has been seen yet."""
        return Seen(run, self.round_threshold)

    def leave(self, state: Seen, clients: Tensor, facts: Body) -> None:  # noqa: ARG002
        """Forget the clients: those that come back are new."""
        state.reach(clients)
        state.utility[clients] = 0
        state.last[clients] = 0

    def choose(self, state: Seen, t: int) -> Cohort:
        """Return the best, or a draw among the good and the unknown."""
        known = Known.of(state.run)
        if self.scheme == "full":
            return cohort(known.numbers[self._draw(state, known, t)])
        if t == 0:
            return cohort(known.numbers)
        utility, _ = state.of(known.numbers)
        worth = utility * slowness(known.seconds, self.budget, self.alpha)
        order = np.lexsort((-worth, state.seen(known.numbers, t)))
        return cohort(known.numbers[affordable(order, known.held, self.budget)])

    def scores(self, state: Seen, known: Known, t: int, some: Numbers) -> Vector:
        """Return what those in ``some`` positions, all seen before, are worth in round ``t`` of the full scheme."""
        utility, last = state.of(known.numbers[some])
        capped = np.minimum(utility, np.quantile(utility, self.cap))
        low, high = capped.min(), capped.max()
        scaled = (capped - low) / (high - low if high > low else 1.0)
        uncertain = np.sqrt(0.1 * np.log(t + 1) / last)
        threshold = float(state.threshold) / 100
        found: Vector = (scaled + uncertain) * slowness(known.seconds, threshold, self.alpha)[some]
        return found

    def _draw(self, state: Seen, known: Known, t: int) -> Numbers:
        """Return positions: as many of the seen as exploration leaves places for, or more where too few are unseen."""
        seen = state.seen(known.numbers, t)
        old, new = np.flatnonzero(seen), np.flatnonzero(~seen)
        size = max(round(self.budget * len(seen)), 1)
        explore = max(self.exploration * self.exploration_decay ** (t + 1), self.exploration_min)
        exploit = max(min(round(size * (1 - explore)), len(old)), size - len(new))
        luck = rng.uniform(state.run.spec.seed, rng.Purpose.COHORT, t, known.numbers)
        samples = state.run.enrolled.all_facts("samples")[:, 0].numpy()
        fresh = _race(new, samples[new], luck)[: size - exploit]
        if not exploit:
            return fresh
        scores = self.scores(state, known, t, old)
        good = scores >= self.cut_off * np.sort(scores)[-exploit]
        return np.concatenate([fresh, _race(old[good], scores[good], luck)[:exploit]])

    def observe(self, state: Seen, end: Round) -> None:
        """Remember what the cohort was worth; whoever was invited counts as seen, whatever came of it."""
        invited, taken = end.invited.cpu(), end.taken.cpu()
        state.reach(invited)
        samples = state.run.enrolled.facts("samples", taken)[:, 0]
        squares = end.told.get("squares", torch.zeros(0, 1))  # a round of which nothing was taken tells nothing
        utility = samples * squares[:, 0].cpu().double().sqrt()
        usable = utility.isfinite()
        if self.scheme == "full":
            self._pace(state, end.number + 1, utility[usable & (state.last[taken] > 0)])
        state.utility[taken[usable]] = utility[usable]
        state.last[invited] = end.number + 1

    def _pace(self, state: Seen, done: int, utility: Tensor) -> None:
        """Let slower clients in when utility no longer changes, and fewer when it changes a lot."""
        mean = utility.mean() if len(utility) else utility.new_zeros(())
        step = self.pacer_step
        state.history = torch.cat([state.history, mean[None]])[-2 * step :]
        if done < 2 * step or done % step:
            return
        before, now = float(state.history[:-step].sum()), float(state.history[-step:].sum())
        if abs(now - before) <= 0.1 * before:
            state.threshold = (state.threshold + self.pacer_delta).clamp(max=100.0)
        elif abs(now - before) >= 5 * before:
            state.threshold = (state.threshold - self.pacer_delta).clamp(min=self.pacer_delta)


class Seen(State):
    """Facts of clients by number, and the state of the pacer.

    Args:
        run: The server's side of the run.
        threshold: T at first, as a percentile of all t_i.
    """

    saved = ("utility", "last", "threshold", "history")

    def __init__(self, run: ServerRun, threshold: float):
        super().__init__(run)
        self.utility = torch.zeros(0, dtype=torch.float64)  # without the factor of slowness
        self.last = torch.zeros(0, dtype=torch.int64)  # rounds count from 1 here; 0 is never
        self.threshold = torch.tensor(threshold, dtype=torch.float64)
        self.history = torch.zeros(0, dtype=torch.float64)  # mean utility of those seen before, round by round

    def reach(self, clients: Tensor) -> None:
        """Make room for clients with higher numbers than any before."""
        more = int(clients.max()) + 1 - len(self.last) if len(clients) else 0
        if more > 0:
            self.utility = torch.cat([self.utility, self.utility.new_zeros(more)])
            self.last = torch.cat([self.last, self.last.new_zeros(more)])

    def of(self, clients: Numbers) -> tuple[Vector, Numbers]:
        """Return utility and last round of these clients; zeros of clients that nobody has met."""
        met = clients < len(self.last)
        utility, last = np.zeros(len(clients)), np.zeros(len(clients), dtype=np.int64)
        utility[met], last[met] = self.utility.numpy()[clients[met]], self.last.numpy()[clients[met]]
        return utility, last

    def seen(self, clients: Numbers, t: int) -> NDArray[np.bool_]:
        """Return which of these clients were invited before round ``t``, whatever happened since."""
        _, last = self.of(clients)
        found: NDArray[np.bool_] = (last > 0) & (last <= t)
        return found

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved knowledge."""
        own = {name: value.to("cpu", copy=True) for name, value in state.items()}
        for name, mine in self.state_dict().items():
            found = own.get(name)
            if found is None or found.dtype != mine.dtype or found.dim() != mine.dim():
                raise ValueError(f"Oort needs a state {name!r} of {mine.dtype} with {mine.dim()} dimensions")
        if len(own["utility"]) != len(own["last"]):
            raise ValueError(f"Oort has {len(own['utility'])} clients in 'utility' and {len(own['last'])} in 'last'")
        super().load_state_dict(own)


def slowness(seconds: Vector, share: float, alpha: float) -> Vector:
    """Return (T/t_i)^(α·1[t_i > T]), where T is the time in which this share of the clients is done."""
    found: Vector = np.minimum(np.quantile(seconds, share) / seconds, 1.0) ** alpha
    return found


def _race(clients: Numbers, weights: Vector, luck: Vector) -> Numbers:
    """Return the clients as drawn one after the other without replacement, each in proportion to its weight.

    Every client gets an exponential time with its weight as the rate; the order of times is such a draw.
    """
    times = -np.log1p(-luck[clients]) / np.maximum(weights, _LEAST)
    return clients[times.argsort(kind="stable")]
