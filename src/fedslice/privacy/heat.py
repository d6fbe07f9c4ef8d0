"""Private heat: how many clients hold each row, or how much weight they have, without anyone's rows.

Federated Submodel Optimization for Hot and Cold Data Features (FedSubAvg), appendix F
    Yucheng Ding, Chaoyue Niu, Fan Wu, Shaojie Tang, Chengfei Lv, Yanghe Feng, Guihai Chen. NeurIPS 2022.

=================== ================================================== ===========================================
source              a client sends                                     the server learns
=================== ================================================== ===========================================
exact               its rows                                           who holds what
secure sum          its weight at its rows, under masks                the exact sums
randomized response for each row a bit that may be a lie               estimates; each bit can be denied
=================== ================================================== ===========================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedslice.core.errors import UserError
from fedslice.privacy.draws import Draw, hidden_uniform
from fedslice.privacy.ring import Elements, Ring

Rows = NDArray[np.int64]
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class SummedHeat:
    """Heat as a secure sum of whole numbers.

    Args:
        rows: Number of rows of the table.
        total: Upper bound of the clients' summed weights; their number if all weigh one.
    """

    rows: int
    total: int

    @property
    def ring(self) -> Ring:
        """The smallest ring in which the sum cannot wrap around."""
        return Ring.for_sum(self.total)

    def mark(self, own: Rows, weight: int = 1) -> Elements:
        """Return a client's vector [rows]: its weight at the rows that it holds."""
        if not 0 <= weight <= self.total:
            raise ValueError(f"a weight of {weight}, expected 0 to {self.total}")
        made = self.ring.zeros(self.rows)
        made[own] = weight
        return made

    def heat(self, total: Elements) -> Reals:
        """Return n_m, or the weight W_m, of each row [rows]."""
        return total.astype(np.float64)


@dataclass(frozen=True)
class RandomizedHeat:
    """Heat from randomized response: a client reports each row once, with a bit that is the truth with chance ``p``.

    A row that is held is reported with chance ``p = e**epsilon / (1 + e**epsilon)``, one that is not with
    ``q = 1 - p``. The sum of N reports, b, gives the unbiased estimate ``(b - N * q) / (p - q)``.

    Args:
        epsilon: Privacy loss per row: ln(p / q).
    """

    epsilon: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 50:
            raise UserError(f"epsilon = {self.epsilon}; expected a number above 0, at most 50.", ["epsilon"])

    @property
    def p(self) -> float:
        """Chance of a report for a row that the client holds."""
        return 1 / (1 + math.exp(-self.epsilon))

    @property
    def q(self) -> float:
        """Chance of a report for a row that it does not hold."""
        return 1 / (1 + math.exp(self.epsilon))

    def report(self, client: int, own: Rows, rows: int, seed: int) -> Flags:
        """Return a client's reports [rows]; the same each time.

        Args:
            client: Its number.
            own: The rows that it holds.
            rows: Number of rows of the table.
            seed: A seed that the server does not know.
        """
        held = np.zeros(rows, dtype=np.bool_)
        held[own] = True
        flags: Flags = hidden_uniform(seed, Draw.HEAT, rows, client) < np.where(held, self.p, self.q)
        return flags

    def estimate(self, reports: NDArray[np.generic], weight: float) -> Reals:
        """Return unbiased estimates of n_m, or of W_m.

        Args:
            reports: The sum of the reports [rows], each times its client's weight if clients differ. A weight that is
                not public cannot be used: reports alone do not tell whose they are.
            weight: The sum of all clients' weights: their number if all weigh one.
        """
        return (reports.astype(np.float64) - weight * self.q) / (self.p - self.q)

    def variance(self, squares: float) -> float:
        """Return the variance of an estimate, the same for each row, as p(1 - p) = q(1 - q).

        Args:
            squares: The sum of all clients' squared weights: their number if all weigh one.
        """
        return squares * self.p * self.q / (self.p - self.q) ** 2


def usable(heat: Reals, total: float, variance: float = 0.0, shrink: float = 0.0, least: float = 1.0) -> Reals:
    """Return estimates of heat by which one can divide.

    Dividing by an unbiased estimate is biased, and where the truth is rarer than the noise of the estimate it is wild:
    a row that one client of a thousand holds may seem to have nobody, or thirty.

    Args:
        heat: Estimates [rows].
        total: The heat of a row that everyone holds, the largest possible.
        variance: Their variance.
        shrink: Rows of less than so many standard deviations count as that many: their coefficient is shrunk.
        least: The smallest heat that a row with any holder can have.

    Returns:
        Heat from ``max(least, shrink * sd)`` to ``total`` [rows].
    """
    floor = min(total, max(least, shrink * math.sqrt(variance)))
    return np.clip(heat, floor, total)
