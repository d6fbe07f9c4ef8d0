"""Oort: clients whose data are worth most and who are not too slow (Lai et al. 2021; a baseline in S3, section 6.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice import rng
from fedslice.devices import Vector
from fedslice.parts import CHECKED, Count, NonNegative, RoundEnd, World
from fedslice.select.base import Cohort, Select
from fedslice.select.budget import Numbers, Share, affordable, cohort, full_seconds, known_devices
from fedslice.slice import Values

Chance = Annotated[float, Field(ge=0, le=1)]
Percent = Annotated[float, Field(ge=0, le=100)]
_STATE = ("utility", "last", "threshold", "history")
_LEAST = 1e-300  # the weight of a client that is worth nothing: it comes last, but it comes


@dataclass(config=CHECKED)
class Oort(Select):
    """Clients by utility, |B_i|·√(mean over B_i of squared losses)·(T/t_i)^(α·1[t_i > T]), from their last round.

    The mean square is over the samples that the client trained on in its last round, each with the loss it had before
    the step that it was part of. A client whose loss is not finite keeps its last finite one, and is worth nothing
    before it had any.

    ``scheme="top"`` is S3's reading: after a first round of everyone the best in order, as many as the share ``budget``
    of all parameters allows, where T is the ``budget``-quantile of all t_i. ``full`` is the published method, with a
    cohort of ``budget``·N clients: a falling share of it goes to clients never seen, drawn by their numbers of samples;
    the rest is drawn by score among those not much worse than the best. The score is the utility without its last
    factor, capped, scaled to [0, 1], plus √(0.1·ln r / r_i) for a client last seen in round r_i, and then times that
    factor. A pacer moves T. Defaults are those of the authors' code, for ``round_threshold`` and ``pacer_delta`` of
    its successor FedScale.
    """

    label = "oort"
    squares = True

    budget: Share = 0.6  # A, as for every method of S3
    alpha: NonNegative = 2.0  # how much slowness costs; S3 gives 2
    scheme: Literal["top", "full"] = "top"
    # The full scheme only:
    exploration: Chance = 0.9  # the cohort's share of clients never seen, before it falls
    exploration_decay: Share = 0.98  # by this factor in every round: less is left to find
    exploration_min: Chance = 0.2  # but not below, while there are such clients
    cut_off: Share = 0.7  # who has this share of the last place's score may be drawn too, for scores are noisy
    cap: Share = 0.95  # utilities count up to this quantile: a corrupt client must not rule
    round_threshold: Percent = 30.0  # T at first, as a percentile of all t_i
    pacer_step: Count = 20  # every so many rounds it is looked whether T still suits
    pacer_delta: Percent = 5.0  # and moved by so many percentiles

    def setup(self, world: World) -> None:
        """Learn how long everybody takes; nobody has been seen yet."""
        self._held = world.round_bytes().cpu().numpy()
        self._seconds = full_seconds(world, known_devices(world, self.label))
        self._samples = world.task.federation.train.sizes.cpu()
        self._utility = torch.zeros(len(self._seconds), dtype=torch.float64)  # without the factor of slowness
        self._last = torch.zeros(len(self._seconds), dtype=torch.int64)  # rounds count from 1 here; 0 is never
        self._threshold = self.round_threshold
        self._history = torch.zeros(0, dtype=torch.float64)  # mean utility of those seen before, round by round

    def choose(self, t: int, clients: int, seed: int) -> Cohort:
        """The best, or a draw among the good and the unknown."""
        if self.scheme == "full":
            return cohort(self._draw(t, seed))
        if t == 0:
            return cohort(np.arange(clients))
        utility = self._utility.numpy() * slowness(self._seconds, self.budget, self.alpha)
        return cohort(affordable((-utility).argsort(kind="stable"), self._held, self.budget))

    def scores(self, t: int, clients: Numbers) -> Vector:
        """What these clients, all seen before, are worth in round ``t`` of the full scheme."""
        utility, last = self._utility.numpy()[clients], self._last.numpy()[clients]
        capped = np.minimum(utility, np.quantile(utility, self.cap))
        low, high = capped.min(), capped.max()
        scaled = (capped - low) / (high - low if high > low else 1.0)
        uncertain = np.sqrt(0.1 * np.log(t + 1) / last)
        found: Vector = (scaled + uncertain) * slowness(self._seconds, self._threshold / 100, self.alpha)[clients]
        return found

    def _draw(self, t: int, seed: int) -> Numbers:
        """As many of the known as exploration leaves places for, or more where too few are unknown."""
        last = self._last.numpy()
        seen = (last > 0) & (last <= t)  # before this round, whatever happened since
        known, unknown = np.flatnonzero(seen), np.flatnonzero(~seen)
        size = max(round(self.budget * len(last)), 1)
        explore = max(self.exploration * self.exploration_decay ** (t + 1), self.exploration_min)
        exploit = max(min(round(size * (1 - explore)), len(known)), size - len(unknown))
        luck = rng.uniform(seed, rng.Purpose.COHORT, t, np.arange(len(last)))
        fresh = _race(unknown, self._samples.numpy()[unknown], luck)[: size - exploit]
        if not exploit:
            return fresh
        scores = self.scores(t, known)
        good = scores >= self.cut_off * np.sort(scores)[-exploit]
        return np.concatenate([fresh, _race(known[good], scores[good], luck)[:exploit]])

    def observe(self, end: RoundEnd) -> None:
        """Remember what the cohort was worth."""
        who = end.clients.cpu()
        assert end.squares is not None
        utility = self._samples[who] * end.squares.cpu().double().sqrt()
        usable = utility.isfinite()
        if self.scheme == "full":
            self._pace(end.round + 1, utility[usable & (self._last[who] > 0)])
        self._utility[who[usable]] = utility[usable]
        self._last[who] = end.round + 1

    def _pace(self, done: int, utility: Tensor) -> None:
        """Let slower clients in when utility no longer changes, and fewer when it changes a lot."""
        mean = utility.mean() if len(utility) else utility.new_zeros(())
        step = self.pacer_step
        self._history = torch.cat([self._history, mean[None]])[-2 * step :]
        if done < 2 * step or done % step:
            return
        before, now = float(self._history[:-step].sum()), float(self._history[-step:].sum())
        if abs(now - before) <= 0.1 * before:
            self._threshold = min(self._threshold + self.pacer_delta, 100.0)
        elif abs(now - before) >= 5 * before:
            self._threshold = max(self._threshold - self.pacer_delta, self.pacer_delta)

    def state_dict(self) -> Values:
        """What is known of clients, and where the pacer stands."""
        threshold = torch.tensor(self._threshold, dtype=torch.float64)
        return {"utility": self._utility, "last": self._last, "threshold": threshold, "history": self._history}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved knowledge of the same population."""
        own = {name: value.to("cpu", copy=True) for name, value in self._own(state, _STATE).items()}
        for name, mine in self.state_dict().items():
            found = own.get(name, torch.zeros(0, 0))
            shape = found.shape[:1] if name == "history" else mine.shape  # a history has any length
            if found.dtype != mine.dtype or found.shape != shape:
                raise ValueError(f"Oort needs a state {name!r} of {mine.dtype} and shape {tuple(shape)}")
        self._utility, self._last, self._history = own["utility"], own["last"], own["history"]
        self._threshold = float(own["threshold"])


def slowness(seconds: Vector, share: float, alpha: float) -> Vector:
    """(T/t_i)^(α·1[t_i > T]), where T is the time in which this share of the clients is done."""
    found: Vector = np.minimum(np.quantile(seconds, share) / seconds, 1.0) ** alpha
    return found


def _race(clients: Numbers, weights: Vector, luck: Vector) -> Numbers:
    """The clients as drawn one after the other without replacement, each in proportion to its weight.

    Every client gets an exponential time with its weight as the rate; the order of times is such a draw.
    """
    times = -np.log1p(-luck[clients]) / np.maximum(weights, _LEAST)
    return clients[times.argsort(kind="stable")]
