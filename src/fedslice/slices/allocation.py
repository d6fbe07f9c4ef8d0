"""Dropout rates of clients from the linear program of FedDD (equations 13 to 17).

Minimise t + δ·Σ re_n·D_n over the rates D_n and the time t of a round, such that 0 ≤ D_n ≤ D_max, every client is done
by then, t_cmp,n + a_n·(1 − D_n) ≤ t, and the share A of all parameters is sent, Σ U_n·(1 − D_n) = A·Σ U_n.

For a given t the program is a knapsack: client n has to drop at least ℓ_n(t) = (t_cmp,n + a_n − t) / a_n, and what is
left to drop goes to the lowest price re_n / U_n first, up to D_max. The least cost is convex and piecewise linear in t,
so its lowest point is found among its corners, without a tolerance, in O(N log N) (``_Program.finish``).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedslice.core.errors import UserError

Vector = NDArray[np.float64]
_SAME = 1e-14  # two shares closer than this are one: 1 − 0.9 is not 0.1 in binary


@dataclass(frozen=True, eq=False)
class Allocation:
    """Every client's dropout rate, and how long the slowest client then takes (equation 12)."""

    rates: Vector
    time: float


def regularizers(samples: ArrayLike, label_shares: ArrayLike, sizes: ArrayLike, losses: ArrayLike) -> Vector:
    """re_n, what is lost for the model when client n drops parameters (FedDD, equation 13).

    ``label_shares`` [clients, classes] says how each client's samples divide among the classes; a client knows all of a
    class from a share of 1/C on. The global model's size U is that of the largest client's (FedDD, section 6: some
    clients hold the full model).
    """
    m, size, loss = _vectors(samples=samples, sizes=sizes, losses=losses)
    _positive("sizes", size)
    if not m.any():
        raise UserError("samples are zero for every client; give at least one client with samples.")
    shares = np.asarray(label_shares, dtype=np.float64)
    if shares.ndim != 2 or len(shares) != len(m):
        raise UserError(
            f"label_shares has shape {shares.shape}; give one row of class shares for each of {len(m)} clients."
        )
    wrong = np.flatnonzero(~((shares >= 0).all(1) & (abs(shares.sum(1) - 1) <= 1e-6)))
    if len(wrong):
        raise UserError(f"label_shares[{wrong[0]}] is {shares[wrong[0]]}; give shares from 0 to 1 that sum to one.")
    known = np.minimum(shares.shape[1] * shares, 1).sum(1)
    found: Vector = m / m.sum() * known * (size / size.max()) * loss
    return found


def scale_delta(relative: float, seconds_per_share: ArrayLike, compute: ArrayLike, regularizer: ArrayLike) -> float:
    """δ in seconds from a number without unit: at 1, dropping everything costs a round of the median client.

    FedDD gives no δ, and one term counts seconds of any magnitude, the other losses. Where there is nothing to lose
    (all re_n are zero) δ has no effect and is 0.
    """
    share, own, lost = _vectors(seconds_per_share=seconds_per_share, compute=compute, regularizer=regularizer)
    _number("relative", relative)
    return relative * float(np.median(own + share)) / float(lost.sum()) if lost.any() else 0.0


def allocate(
    sizes: ArrayLike,
    seconds_per_share: ArrayLike,
    compute: ArrayLike,
    regularizer: ArrayLike,
    budget: float,
    most: float,
    delta: float,
) -> Allocation:
    """The exact solution of FedDD, equations 16 and 17, in O(N log N) time and O(N) memory.

    Per client: U_n ``sizes``, in any unit; a_n ``seconds_per_share``, the seconds its whole model takes up and down
    (equations 9 and 11 at D_n = 0); t_cmp,n ``compute``, in seconds (equation 7); re_n ``regularizer``. For all: A
    ``budget``, the share of parameters to be sent; D_max ``most``; δ ``delta``, in seconds.

    Where several solutions cost the same it takes the shortest round, and at equal prices first lets drop who would
    take longest, then who has the lowest number: a slower client never gets a lower rate than one that is else like it.
    """
    size, share, own, lost = _checked(sizes, seconds_per_share, compute, regularizer, budget, most, delta)
    if abs(1 - budget - most) <= _SAME:
        return _finished(np.full(len(size), most), share, own)
    price = lost / size
    full = own + share
    full -= full.max()
    order = np.lexsort((-full, price))
    program = _Program(
        size=size[order],
        share=share[order],
        full=full[order],
        steps=delta * np.diff(price[order]),
        most=most,
        dropped=(1 - budget) * float(size.sum()),
        earliest=float((full - most * share).max()),
    )
    rates = np.empty_like(size)
    rates[order] = program.rates(program.finish())
    return _finished(rates, share, own)


def check_budget(budget: float, most: float) -> None:
    """Refuse a budget that is missed even if everybody drops the most they may."""
    if 1 - budget > most + _SAME:
        raise UserError(
            f"budget A={budget:.12g} leaves {1 - budget:.12g} to be dropped, but D_max={most:.12g} is the most that "
            f"any client may drop; give A of at least {1 - most:.12g} or D_max of at least {1 - budget:.12g}."
        )


def allocate_lp(
    sizes: ArrayLike,
    seconds_per_share: ArrayLike,
    compute: ArrayLike,
    regularizer: ArrayLike,
    budget: float,
    most: float,
    delta: float,
) -> Allocation:
    """The same as ``allocate`` from a solver for any linear program (HiGHS), slower and with ties broken as it likes.

    Sizes and times are made relative for it, as its tolerances are absolute: the budget is met to 1e-10 of all
    parameters. Its presolve is left out, because it fails on budgets within such a tolerance of the bounds; prices far
    below its tolerances are none, because it gives up on them.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, diags_array, hstack

    size, share, own, lost = _checked(sizes, seconds_per_share, compute, regularizer, budget, most, delta)
    clients, longest = len(size), float((own + share).max()) or 1.0
    price = delta / longest * lost
    found = linprog(
        np.append(np.where(price > 1e-14, price, 0.0), 1.0),
        A_ub=hstack([diags_array(-share / longest), csr_array(np.full((clients, 1), -1.0))]),
        b_ub=-(own + share) / longest,
        A_eq=np.append(size / size.sum(), 0.0)[None],
        b_eq=[min(1 - budget, most)],
        bounds=[(0.0, most)] * clients + [(0.0, None)],
        options={"presolve": False, "primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if found.status != 0:
        raise RuntimeError(f"HiGHS ended with status {found.status}: {found.message}")
    return _finished(np.clip(found.x[:-1], 0.0, most), share, own)


@dataclass(frozen=True, eq=False)
class _Program:
    """The program with its clients by ascending price; clients before the marginal one drop all they may.

    Times count from when the slowest client is done that drops nothing: beside long training, short links drown.
    """

    size: Vector
    share: Vector
    full: Vector  # t_cmp,n + a_n less the largest: when a client is done that drops nothing
    steps: Vector  # δ times the difference between each client's price and the next one's
    most: float
    dropped: float  # (1 − A)·Σ U_n
    earliest: float  # before this somebody is late even at D_max

    def bounds(self, t: float) -> tuple[Vector, Vector, float]:
        """ℓ_n(t), how much more the first 0, 1, … N clients could drop, and how much more must be dropped."""
        lower = np.divide(self.full - t, self.share, out=np.zeros_like(self.full), where=self.full > t)
        np.minimum(lower, self.most, out=lower)  # it exceeds D_max by rounding only, as t ≥ earliest
        room = np.append(0.0, np.cumsum(self.size * (self.most - lower)))
        return lower, room, self.dropped - float((self.size * lower).sum())

    def slopes(self, t: float) -> tuple[Vector, Vector]:
        """For each client as the marginal one: the slope of the cost just after t, and the pace of ℓ from it on.

        As t grows, each client after the marginal k that is bound by ℓ drops U_n / a_n less per second and the marginal
        one drops it in their place: 1 − δ·Σ_{n>k} (price_n − price_k)·U_n / a_n. Summed by parts over the steps between
        prices no term is negative, so equal prices give exactly nothing and slopes never fall with k.
        """
        pace = np.divide(self.size, self.share, out=np.zeros_like(self.size), where=self.full > t)
        onwards: Vector = np.cumsum(pace[::-1])[::-1]
        gained = np.cumsum((self.steps * onwards[1:])[::-1])[::-1]
        return 1 - np.append(gained, 0.0), onwards

    def enough(self, t: float) -> bool:
        """Can everyone be done by t, and would more time not lower the cost?"""
        if t < self.earliest:
            return False
        _, room, due = self.bounds(t)
        if due < 0:
            return False
        marginal = int(np.searchsorted(room[1:-1], due, side="right"))
        return bool(self.slopes(t)[0][marginal] >= 0)

    def finish(self) -> float:
        """The least t of lowest cost.

        Between two neighbours of the sorted ``full`` the same clients are bound by ℓ. The first of these times that is
        enough is found by halving, log N times O(N). In the stretch before it the slope depends on the marginal client
        alone, so t is where the first client whose slope is not negative becomes the marginal one.
        """
        times = np.sort(self.full)
        first = bisect_left(times, True, hi=len(times) - 1, key=self.enough)
        after = float(times[first])
        before = max(self.earliest, float(times[first - 1])) if first else self.earliest
        if before >= after:
            return after
        slopes, onwards = self.slopes(before)
        marginal = int(np.argmax(slopes >= 0))
        _, room, due = self.bounds(after)
        return min(max(after - float((due - room[marginal]) / onwards[marginal]), before), after)

    def rates(self, t: float) -> Vector:
        """The cheapest rates of a round that ends at t."""
        rates, room, due = self.bounds(t)
        marginal = int(np.searchsorted(room[1:-1], due))
        rates[:marginal] = self.most
        rest = self.dropped - float((self.size * rates).sum())
        rates[marginal] += max(rest, 0.0) / self.size[marginal]  # negative, or more than it may drop, by rounding only
        return np.minimum(rates, self.most)


def _finished(rates: Vector, share: Vector, own: Vector) -> Allocation:
    return Allocation(rates, float((own + share * (1 - rates)).max()))


def _checked(
    sizes: ArrayLike,
    seconds_per_share: ArrayLike,
    compute: ArrayLike,
    regularizer: ArrayLike,
    budget: float,
    most: float,
    delta: float,
) -> list[Vector]:
    """The vectors, if there is a solution."""
    vectors = _vectors(sizes=sizes, seconds_per_share=seconds_per_share, compute=compute, regularizer=regularizer)
    _positive("sizes", vectors[0])
    _number("budget", budget, 1)
    _number("most", most, 1)
    _number("delta", delta)
    check_budget(budget, most)
    return vectors


def _vectors(**named: ArrayLike) -> list[Vector]:
    """One finite number, zero or more, per client and name."""
    vectors = [np.asarray(values, dtype=np.float64) for values in named.values()]
    for name, vector in zip(named, vectors, strict=True):
        if vector.ndim != 1 or not len(vector) or len(vector) != len(vectors[0]):
            raise UserError(
                f"{name} has shape {vector.shape}; give one number per client, as many as {next(iter(named))}."
            )
        wrong = np.flatnonzero(~((vector >= 0) & np.isfinite(vector)))
        if len(wrong):
            raise UserError(
                f"{name}[{wrong[0]}]={vector[wrong[0]]}; give a finite number, zero or more, for every client."
            )
    return vectors


def _positive(name: str, vector: Vector) -> None:
    wrong = np.flatnonzero(vector == 0)
    if len(wrong):
        raise UserError(f"{name}[{wrong[0]}]=0.0; give a positive number for every client.")


def _number(name: str, value: float, highest: float = np.inf) -> None:
    if not (0 <= value <= highest and np.isfinite(value)):
        wanted = "zero or a positive number" if highest == np.inf else f"a number from 0 to {highest:g}"
        raise UserError(f"{name}={value}; give {wanted}.")
