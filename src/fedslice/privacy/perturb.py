"""Perturbed row sets: a client says which rows it holds so that every single answer can be denied.

Billion-Scale Federated Learning on Mobile Clients: A Submodel Design with Tunable Privacy
    Chaoyue Niu, Fan Wu, Shaojie Tang, Lifeng Hua, Rongfei Jia, Chengfei Lv, Zhihua Wu, Guihai Chen. MobiCom 2020.

For each row of the union a client draws a permanent answer once and keeps it: yes with chance ``p1`` if it holds the
row, ``p2`` if not. In every round it draws an instantaneous answer: yes with chance ``p3`` if the permanent answer is
yes, ``p4`` if it is no. Rounds can be averaged, permanent answers cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from fedslice.core.errors import UserError
from fedslice.privacy.draws import Draw, hidden_uniform

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]
Packed = NDArray[np.uint8]
PRESETS = {"15/16": 15 / 16, "7/8": 7 / 8, "3/4": 3 / 4}


@dataclass(frozen=True)
class Perturbation:
    """Two-stage randomized response.

    Args:
        p1: Chance of a permanent yes for a row that the client holds.
        p2: For one that it does not hold.
        p3: Chance of an instantaneous yes after a permanent yes.
        p4: After a permanent no.
    """

    p1: float
    p2: float
    p3: float
    p4: float

    def __post_init__(self) -> None:
        for name in ("p1", "p2", "p3", "p4"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} = {getattr(self, name)} is no chance; expected a number from 0 to 1.", [name])

    @classmethod
    def symmetric(cls, answer: float) -> Perturbation:
        """Return the mechanism that gives the true answer with chance ``answer`` in both stages.

        15/16, 7/8 and 3/4 are the settings of the paper; at 1 nothing is hidden.
        """
        return cls(answer, 1 - answer, answer, 1 - answer)

    @property
    def p5(self) -> float:
        """Chance of a yes in a round for a row that the client holds."""
        return self.p1 * (self.p3 - self.p4) + self.p4

    @property
    def p6(self) -> float:
        """Chance of a yes in a round for a row that it does not hold."""
        return self.p2 * (self.p3 - self.p4) + self.p4

    def epsilon(self, rounds: int | None = 1) -> float:
        """Return the privacy loss per row: the largest log ratio of the chances of what is seen, row held or not.

        Sets that differ in several rows lose as many times as much.

        Args:
            rounds: Rounds in which the client answers; ``None`` for any number, which the permanent answers bound.
        """
        permanent = np.array([[1 - self.p2, self.p2], [1 - self.p1, self.p1]])  # chances of no and yes; row held or not
        if rounds is None:
            return _loss(_log(permanent))
        yes = np.arange(rounds + 1)  # the order of the answers says nothing beyond their number
        stay = np.array([[self.p4, self.p3]])[..., None]
        seen = xlogy(yes, stay) + xlogy(rounds - yes, 1 - stay)  # after a permanent no, and after a yes
        return _loss(np.logaddexp.reduce(_log(permanent)[..., None] + seen, axis=1))


def _log(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        logs: NDArray[np.float64] = np.log(chances)
    return logs


def _loss(logs: NDArray[np.float64]) -> float:
    """The largest ratio between two distributions [2, n] of logs, in either direction.

    What is impossible for both does not count.
    """
    possible = logs[:, np.isfinite(logs).any(0)]
    return float(np.abs(possible[1] - possible[0]).max())


class PermanentAnswers:
    """The permanent answers of clients, each drawn when a row is asked for the first time and kept from then on.

    An answer depends on the clients' seed, the client and the row. It stays if the client holds other rows later. Two
    bits are kept per row of the table, for each client that was asked.

    Args:
        mechanism: The chances.
        rows: Number of rows of the table.
        seed: A seed that the server does not know.
    """

    def __init__(self, mechanism: Perturbation, rows: int, seed: int) -> None:
        self.mechanism, self.rows, self._seed = mechanism, rows, seed
        self._asked: dict[int, Packed] = {}  # by client, a bit per row: whether the row was ever asked
        self._yes: dict[int, Packed] = {}  # and the answer

    def answer(self, client: int, asked: Rows, held: Rows) -> Flags:
        """Return a client's permanent answers [n].

        Args:
            client: Its number.
            asked: Rows [n], ascending.
            held: The rows that it holds.
        """
        known, yes = (self._unpacked(kept.get(client)) for kept in (self._asked, self._yes))
        fresh = asked[~known[asked]]
        if fresh.size:
            chance = np.where(np.isin(fresh, held), self.mechanism.p1, self.mechanism.p2)
            yes[fresh] = self._drawn(fresh, Draw.PERMANENT, client) < chance
            known[fresh] = True
            self._asked[client], self._yes[client] = np.packbits(known), np.packbits(yes)
        answers: Flags = yes[asked]
        return answers

    def perturb(self, client: int, round: int, asked: Rows, held: Rows) -> Rows:
        """Return the rows that a client names in a round, ascending.

        Args:
            client: Its number.
            round: The round; the same round gives the same answer.
            asked: The union of all clients' rows [n], ascending. Rows outside of it are never named.
            held: The rows that it holds.
        """
        permanent = self.answer(client, asked, held)
        chance = np.where(permanent, self.mechanism.p3, self.mechanism.p4)
        named: Rows = asked[self._drawn(asked, Draw.INSTANTANEOUS, client, round) < chance]
        return named

    def _drawn(self, rows: Rows, draw: Draw, *key: int) -> NDArray[np.float64]:
        """A number between 0 and 1 for each row, which does not depend on the other rows that are asked for."""
        return hidden_uniform(self._seed, draw, int(rows.max(initial=-1)) + 1, *key)[rows]

    def _unpacked(self, bits: Packed | None) -> Flags:
        if bits is None:
            return np.zeros(self.rows, dtype=np.bool_)
        return np.unpackbits(bits, count=self.rows).view(np.bool_)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all answers so far: clients [n], and bits of the rows asked and of the answers [n, rows / 8]."""
        clients, width = sorted(self._asked), (self.rows + 7) // 8
        bits = {
            name: np.array([kept[client] for client in clients], np.uint8).reshape(len(clients), width)
            for name, kept in (("asked", self._asked), ("yes", self._yes))
        }
        return {"clients": np.array(clients, np.int64), **bits}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            UserError: If it cannot have returned this.
        """
        clients, asked, yes = state["clients"], state["asked"], state["yes"]
        shape = (len(clients), (self.rows + 7) // 8)
        fits = clients.ndim == 1 and all(bits.shape == shape and bits.dtype == np.uint8 for bits in (asked, yes))
        spare = 8 * shape[1] - self.rows
        if not fits or (yes & ~asked).any() or (asked[:, -1:] & ((1 << spare) - 1)).any():
            raise UserError(f"the permanent answers are damaged, or of another table than one of {self.rows} rows.")
        self._asked = dict(zip(clients.tolist(), asked.copy(), strict=True))
        self._yes = dict(zip(clients.tolist(), yes.copy(), strict=True))
