"""FedSubAvg's correction by feature heat (algorithm 1, line 9).

Federated Submodel Optimization for Hot and Cold Data Features
    Yucheng Ding, Chaoyue Niu, Fan Wu, Shaojie Tang, Chengfei Lv, Yanghe Feng, Guihai Chen. NeurIPS 2022.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.combine.accumulator import Accumulator
from fedslice.combine.base import Combine
from fedslice.core.facts import row_fields, row_name
from fedslice.core.message import Body, Fields
from fedslice.core.part import CHECKED, Positive, ServerRun, State
from fedslice.core.slice import Values
from fedslice.core.spec import Spec
from fedslice.core.update import Step


class Heat(State):
    """W_m, the weight of the clients that hold row m, of each group of tables.

    Sums of whole numbers are exact in float64: W_m does not depend on the order in which clients enrol and leave.
    """

    learned = ("weight",)

    def __init__(self, run: ServerRun):
        super().__init__(run)
        self.weight: Values = {group.name: torch.zeros(group.rows).double() for group in run.spec.groups}


@dataclass(frozen=True, config=CHECKED)
class HeatCorrected(Combine):
    """X_m += (N / n_m) · mean over the cohort of Δ_{i,m}.

    A row that few clients hold gets few updates; the factor N/n_m makes the expected step of every row the mean
    over its own holders. With sample weights it is W/W_m (appendix D.4), and ``estimator`` says how the cohort's
    sum stands for the population's: ``ratio`` divides by the cohort's own weight (bounded, slightly biased),
    ``horvitz-thompson`` by its expectation (exactly unbiased, more variable). A row with a single holder is
    amplified N/K times; ``max_coef`` bounds the factor.
    """

    label = "heat"

    weights: Literal["samples", "uniform"] = "samples"
    estimator: Literal["ratio", "horvitz-thompson"] = "ratio"
    max_coef: Positive | None = None

    def facts(self, spec: Spec) -> Fields:
        """The weight, and the rows of every group of tables."""
        return {**super().facts(spec), **row_fields(spec)}

    def introduce(self, memory: Any, clients: Tensor) -> Body:
        """Name the rows of each client's data."""
        rows = {row_name(sets.tables[0]): sets.axis(clients) for sets in memory.run.task.index_sets}
        return {**super().introduce(memory, clients), **rows}

    def server_state(self, run: ServerRun) -> Heat:
        """Nobody holds a row yet."""
        return Heat(run)

    def enrol(self, state: Heat, clients: Tensor, facts: Body) -> None:
        """Add the clients to the weight of their rows."""
        self._add(state, clients, facts, 1)

    def leave(self, state: Heat, clients: Tensor, facts: Body) -> None:
        """Take the clients off the weight of their rows."""
        self._add(state, clients, facts, -1)

    def _add(self, state: Heat, clients: Tensor, facts: Body, sign: int) -> None:
        weights = torch.full((len(clients),), sign, dtype=torch.float64)
        if self.weights == "samples":
            weights *= facts["samples"][:, 0].cpu()
        for group, total in state.weight.items():
            axis = facts[row_name(group)]  # every client's rows in one line: padding could be many times as long
            total.index_add_(0, axis.flat.cpu(), torch.repeat_interleave(weights, axis.counts.cpu()))

    def coefficients(self, state: Heat, table: str, rows: Tensor | None = None) -> Tensor:
        """Return c_m of some rows of a table, by default of all; 1 where nobody enrolled with the row."""
        spec = state.run.spec
        weight = state.weight[spec.tables[table].name]
        own = weight if rows is None else weight.index_select(0, rows.cpu())
        coef = own.new_tensor(self.total_weight(state)) / own  # a number by a tensor is inexact
        coef.nan_to_num_(nan=1.0, posinf=1.0)
        if self.max_coef is not None:
            coef.clamp_(max=self.max_coef)
        return coef.to(spec.dtypes[table]).to(state.run.device)

    def correct(self, state: Heat, mean: Step, total: Accumulator) -> Step:
        """Line 9, on the rows that the cohort touched."""
        if not mean or not self.total_weight(state):  # nobody sent anything that could be used, or all have left
            return mean
        scale = 1.0
        if self.estimator == "horvitz-thompson":  # (N/K)·Σ w_i·Δ_i / W_m  =  c_m · mean · (N/K)·Σ_C w_i / W
            scale = state.run.enrolled.count / total.clients * total.weight / self.total_weight(state)
        out: Step = {}
        for name, delta in mean.items():
            own = delta.scaled(self.coefficients(state, name, delta.rows)) if name in state.run.spec.tables else delta
            out[name] = own.map(lambda values: values * scale) if scale != 1.0 else own
        return out
