"""FedSubAvg's correction by feature heat (algorithm 1, line 9).

Federated Submodel Optimization for Hot and Cold Data Features
    Yucheng Ding, Chaoyue Niu, Fan Wu, Shaojie Tang, Chengfei Lv, Yanghe Feng, Guihai Chen. NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.combine.base import Total, Weighted
from fedslice.core.encodings import Bits
from fedslice.core.facts import row_fields, row_name
from fedslice.core.message import Body, Field, Fields
from fedslice.core.part import NonNegative, Positive, ServerRun, State
from fedslice.core.slice import Values
from fedslice.core.spec import Spec
from fedslice.core.update import Step
from fedslice.privacy.heat import RandomizedHeat, usable

Epsilon = Annotated[float, pydantic.Field(gt=0, le=50, allow_inf_nan=False)]


class Heat(State):
    """W_m of each group of tables: the weight of the clients that say they hold row m.

    Sums of whole numbers are exact in float64: W_m does not depend on the order in which clients enrol and leave.
    """

    learned = ("weight", "numbers", "total")

    def __init__(self, run: ServerRun):
        super().__init__(run)
        self.numbers = torch.zeros(0, dtype=torch.int64)  # of the clients that secure sums have counted, ascending
        self.total = 0.0  # their weight
        self.weight: Values = {group.name: torch.zeros(group.rows).double() for group in run.spec.groups}


class HeatCorrected(Weighted):
    """Multiply a table row's mean update by N/n_m, where n_m of the N clients hold the row.

    X_m += (N / n_m) · mean over the cohort of Δ_{i,m}. A row that few clients hold gets few updates; the factor makes
    the expected step of every row the mean over its own holders. With sample weights it is W/W_m (appendix D.4), and
    ``estimator`` says how the cohort's sum stands for the population's.

    Args:
        estimator: ``ratio`` divides by the cohort's weight: bounded, slightly biased. ``horvitz-thompson`` divides by
            the expected weight: unbiased, with more variance.
        max_coef: Upper bound of the factor N/n_m; without it a row with a single holder is scaled by N.
        heat_source: How the server learns n_m when clients enrol. ``exact``: each names its rows.
            ``randomized-response``: each sends a bit per row that may be a lie, and the server estimates n_m from the
            sum (appendix F). ``secure-sum``: the server learns the sum over all clients that enrol together, three at
            least, and nobody's rows; a client that leaves stays counted.
        epsilon: Privacy loss per row with ``randomized-response``: a bit is e**epsilon times as likely to be true as to
            be a lie.
        shrink: With ``randomized-response``, standard deviations of the estimate that a row's heat counts as at least.
            The factors of rows that are rarer than the noise are so kept from being wild.
    """

    label = "heat"

    estimator: Literal["ratio", "horvitz-thompson"] = "ratio"
    max_coef: Positive | None = None
    heat_source: Literal["exact", "secure-sum", "randomized-response"] = "exact"
    epsilon: Epsilon = 2.0
    shrink: NonNegative = 1.0

    @property
    def _answers(self) -> RandomizedHeat:
        return RandomizedHeat(self.epsilon)

    def facts(self, spec: Spec) -> Fields:
        """The weight, and the rows of every group of tables or what stands for them."""
        if self.heat_source == "exact":
            return {**super().facts(spec), **row_fields(spec)}
        if self.heat_source == "secure-sum":
            return super().facts(spec)
        lie = f"{self._answers.q:.3g} (epsilon = {self.epsilon:g})"
        return {
            **super().facts(spec),
            **{
                bits_name(group.name): Field(
                    Bits(),
                    shape=(group.rows,),
                    about=f"for each row of {', '.join(group.tables)} whether it has it, a lie with chance {lie}",
                )
                for group in spec.groups
            },
        }

    def introduce(self, memory: Any, clients: Tensor) -> Body:
        """Name the rows of each client's data, or answer for each row with a bit that may be a lie."""
        out = super().introduce(memory, clients)
        if self.heat_source == "secure-sum":
            return out
        for sets in memory.run.task.index_sets:
            axis = sets.axis(clients)
            if self.heat_source == "exact":
                out[row_name(sets.tables[0])] = axis
                continue
            held = axis.flat.cpu().split(axis.counts.tolist())
            reports = [
                self._answers.report(client, own.numpy(), sets.rows, memory.run.secret)
                for client, own in zip(clients.tolist(), held, strict=True)
            ]
            out[bits_name(sets.tables[0])] = torch.from_numpy(np.stack(reports))
        return out

    def tallies(self, spec: Spec) -> Mapping[str, int]:
        """A number per row of every group of tables, if a secure sum counts them."""
        return {heat_name(group.name): group.rows for group in spec.groups} if self.heat_source == "secure-sum" else {}

    def tally(self, memory: Any, client: int) -> Mapping[str, NDArray[np.int64]]:
        """The client's weight at its rows, and zeros elsewhere."""
        if self.heat_source != "secure-sum":
            return {}
        task, one, out = memory.run.task, torch.tensor([client]), {}
        weight = int(task.federation.train.sizes_of(one)) if self.weights == "samples" else 1
        for sets in task.index_sets:
            counts = np.zeros(sets.rows, np.int64)
            counts[sets.axis(one).flat.cpu().numpy()] = weight
            out[heat_name(sets.tables[0])] = counts
        return out

    def uncounted(self, state: Heat) -> Tensor:
        """Those whom no secure sum has counted."""
        numbers = state.run.enrolled.numbers()
        return numbers[~torch.isin(numbers, state.numbers)]

    def tally_bound(self, state: Heat, clients: Tensor) -> int:
        """Their weight: what a row has that all of them hold."""
        return int(self.weigh(state, clients).sum())

    def learn_sums(self, state: Heat, clients: Tensor, sums: Mapping[str, NDArray[Any]]) -> None:
        """Add the sums to the weight of the rows."""
        for group, total in state.weight.items():
            total.add_(torch.from_numpy(sums[heat_name(group)].astype(np.float64)))
        state.numbers = torch.cat([state.numbers, clients]).sort().values
        state.total += float(self.weigh(state, clients).sum())

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
        if self.heat_source == "secure-sum":
            return
        weights = torch.full((len(clients),), sign, dtype=torch.float64)
        if self.weights == "samples":
            weights *= facts["samples"][:, 0].cpu()
        for group, total in state.weight.items():
            if self.heat_source == "randomized-response":
                total.add_(weights @ facts[bits_name(group)].cpu().double())
                continue
            axis = facts[row_name(group)]  # every client's rows in one line: padding could be many times as long
            total.index_add_(0, axis.flat.cpu(), torch.repeat_interleave(weights, axis.counts.cpu()))

    def heat(self, state: Heat, group: str, rows: Tensor | None = None) -> Tensor:
        """Return W_m of some rows of a group of tables, by default of all; n_m if all clients weigh the same."""
        weight = state.weight[group]
        own = weight if rows is None else weight.index_select(0, rows.cpu())
        if self.heat_source != "randomized-response":
            return own
        weights = self.weigh(state, state.run.enrolled.numbers())
        total, answers = float(weights.sum()), self._answers
        variance = answers.variance(float(weights.square().sum()))
        least = float(weights.min()) if len(weights) else 0.0
        return torch.from_numpy(usable(answers.estimate(own.numpy(), total), total, variance, self.shrink, least))

    def coefficients(self, state: Heat, table: str, rows: Tensor | None = None) -> Tensor:
        """Return c_m of some rows of a table, by default of all; 1 where nobody enrolled with the row."""
        spec = state.run.spec
        own = self.heat(state, spec.tables[table].name, rows)
        total = state.total if self.heat_source == "secure-sum" else self.total_weight(state)
        coef = own.new_tensor(total) / own  # a number by a tensor is inexact
        coef.nan_to_num_(nan=1.0, posinf=1.0)
        if self.max_coef is not None:
            coef.clamp_(max=self.max_coef)
        return coef.to(spec.dtypes[table]).to(state.run.device)

    def correct(self, state: Heat, mean: Step, total: Total) -> Step:
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


def heat_name(group: str) -> str:
    """Return the name of the vector with a number per row of this group."""
    return f"heat/{group}"


def bits_name(group: str) -> str:
    """Return the name of the field with a bit per row of this group."""
    return f"bits/{group}"
