"""FedSubAvg's correction by feature heat (S0, algorithm 1, line 9)."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.combine.base import Combine
from fedslice.combine.total import Total
from fedslice.messages import Step
from fedslice.parts import CHECKED, Positive, World


@dataclass(config=CHECKED)
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

    def setup(self, world: World) -> None:
        """W and W_m of every table; a row that nobody holds is never updated, and its coefficient is one."""
        super().setup(world)
        self._clients = len(self._weights)
        self._coef: dict[str, Tensor] = {}
        for sets in world.task.index_sets:
            coef = sets.weight(self._weights)
            torch.div(coef.new_tensor(self.population_weight), coef, out=coef)
            coef.masked_fill_(coef.isinf(), 1.0)
            if self.max_coef is not None:
                coef.clamp_(max=self.max_coef)
            coef = coef.to(world.dtype).to(world.device)
            self._coef |= dict.fromkeys(sets.tables, coef)

    def coefficients(self, table: str) -> Tensor:
        """c_m of every row of a table."""
        return self._coef[table]

    def correct(self, mean: Step, total: Total) -> Step:
        """Line 9, on the rows that the cohort touched."""
        scale = 1.0
        if not mean:  # nobody sent anything that could be used
            return mean
        if self.estimator == "horvitz-thompson":  # (N/K)·Σ w_i·Δ_i / W_m  =  c_m · mean · (N/K)·Σ_C w_i / W
            scale = self._clients / total.clients * total.weight / self.population_weight
        out: Step = {}
        for name, (rows, values) in mean.items():
            if name in self._coef:
                coef = self._coef[name] if rows is None else self._coef[name][rows]
                corrected = values * coef.view(-1, *[1] * (values.dim() - 1))
            else:
                corrected = values
            out[name] = rows, corrected * scale if scale != 1.0 else corrected
        return out
