"""The path of the global model: how few directions hold it (FLSS, figures 2 and 5), and how far each round leaves them.

Everything follows from GᵀG in float64, where G = [g_1, …, g_t] are the updates so far (FLSS, section 3.2), uncentred. A
round adds one row and one column to it: as many products of updates as there were rounds, and one decomposition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isnan, nan

import torch
from torch import Tensor

from fedslice.core.part import Round
from fedslice.core.slice import Values
from fedslice.core.update import flatten
from fedslice.core.vectors import Vectors
from fedslice.measure.base import Instrument, Moment, Scene
from fedslice.panel import Cell, Panel
from fedslice.schema import Column
from fedslice.task import Task

COUNTS = (1, 2, 5, 10, 20, 50, 100)  # directions whose share of the energy is logged
RANK = 50  # directions against which a new update is held, FLSS's R
_SHARE = "trajectory_share_{}"
_TINY = 1e-14  # of the largest energy of a direction: less is rounding


class Trajectory(Instrument):
    """``trajectory_share_<k>`` of the energy of all updates lies in their first k singular directions.

    ``trajectory_residual`` of the last update's energy lies outside of the first 50 directions of those before it.
    All updates are kept, in float32: in a file of the run's folder, or see :class:`Vectors`.
    """

    def __init__(self) -> None:
        self._gram = torch.zeros(0, 0, dtype=torch.float64)
        self._residuals: list[float] = []

    def columns(self, task: Task) -> list[Column]:  # noqa: ARG002
        """Shares of the energy, and the residual."""
        return [Column(name, "diagnostic") for name in (*map(_SHARE.format, COUNTS), "trajectory_residual")]

    def setup(self, scene: Scene) -> None:
        """Refuse a run whose updates do not fit."""
        spec, remedy = scene.spec, "give fewer rounds, or leave it out"
        self._shapes, self._rounds = spec.shapes, spec.rounds
        self._updates = Vectors("measure=trajectory", spec.size, spec.rounds, torch.float32, scene.scratch, remedy)

    def observe(self, end: Round) -> None:
        """One more update: its products with all others, and how far it leaves their directions."""
        update = flatten(end.change, self._shapes).to("cpu", torch.float32)
        self._updates.append(update)
        row = self._updates.products(update)
        self._residuals.append(residual(self._gram, row[:-1], float(row[-1])))
        self._gram = torch.nn.functional.pad(self._gram, (0, 1, 0, 1))
        self._gram[-1], self._gram[:, -1] = row, row

    def measure(self, now: Moment) -> dict[str, float]:  # noqa: ARG002
        """NaN before the first round, and while the model stands still; of the residual also after the first."""
        shares = _shares(energies(self._gram))
        columns = {_SHARE.format(k): shares[min(k, len(shares)) - 1] if shares else nan for k in COUNTS}
        return columns | {"trajectory_residual": self._residuals[-1] if self._residuals else nan}

    def panels(self) -> list[Panel]:
        """Singular values, the share of energy in the first directions, and the residual of each round."""
        energy = energies(self._gram)
        shares = _shares(energy)
        if not shares:
            return []
        of, some = f"of {len(shares):,} updates of the global model", min(RANK, len(shares))
        held = f"Share of the energy {of} in their first directions: {shares[some - 1]:.1%} in {some}."
        left = f"Share of an update's energy outside of the first {RANK} directions of those before it."
        values = energy[energy > _TINY * energy[0]].sqrt().tolist()
        return [
            _line(
                "Spectrum of the trajectory", f"Singular values {of}.", "direction", "singular value", values, log=True
            ),
            _line("Directions of the trajectory", held, "direction", "share of energy", shares),
            _line("How far rounds leave the trajectory", left, "round", "share outside", self._residuals),
        ]

    def state_dict(self) -> Values:
        """The updates, and what is known of them."""
        state: Values = {f"update.{name}": value for name, value in self._updates.state_dict().items()}
        return state | {"gram": self._gram, "residuals": torch.tensor(self._residuals, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the updates saved. After the last round nobody asks for them."""
        self._gram, self._residuals = state["gram"], state["residuals"].tolist()
        updates = {k.removeprefix("update."): v for k, v in state.items() if k.startswith("update.")}
        self._updates.load_state_dict(updates, read=self._rounds is None or len(self._gram) < self._rounds)


def energies(gram: Tensor) -> Tensor:
    """σ_1² ≥ σ_2² ≥ … of the updates with this Gram matrix; of a model that went to infinity there are none."""
    if not bool(gram.isfinite().all()):
        return gram.new_zeros(0)
    squares: Tensor = torch.linalg.eigvalsh(gram)
    return squares.clamp(min=0).flip(0)


def residual(gram: Tensor, along: Tensor, energy: float) -> float:
    """‖g − P·Pᵀg‖²/‖g‖² for an update g of this energy, and P the first directions of those with this Gram matrix G.

    ``along`` is Gᵀg. With u_r = G·v_r/σ_r (FLSS, section 3.2) the coefficient u_rᵀg is v_rᵀ(Gᵀg)/σ_r.
    """
    if not len(gram) or not 0 < energy < inf or not bool(gram.isfinite().all()):
        return nan
    squares, right = torch.linalg.eigh(gram)
    squares, right = squares[-RANK:], right[:, -RANK:]
    real = squares > _TINY * squares[-1]
    inside = ((right.T @ along)[real].square() / squares[real]).sum()
    return min(1.0, max(0.0, 1 - float(inside) / energy))


def _shares(energy: Tensor) -> list[float]:
    """Shares of the first one, two, … directions; none if there is no energy to share."""
    sums = energy.cumsum(0)
    return (sums / sums[-1]).tolist() if bool(energy.any()) else []


def _line(title: str, note: str, x: str, y: str, values: Sequence[float], log: bool = False) -> Panel:
    """Values by their number."""
    rows: list[dict[str, Cell]] = [{x: place, y: value} for place, value in enumerate(values, 1) if not isnan(value)]
    return Panel(title=title, note=note, mark="line", x=x, y=y, log=["y"] if log else [], rows=rows)
