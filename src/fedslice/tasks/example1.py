"""FedSubAvg's example 1: two weights, of which one concerns a single client. Every step has a closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.task import Task
from fedslice.tasks.entry import Entry, Options


class Example1Options(Options):
    """The number of clients, which is the heat dispersion too."""

    clients: Annotated[int, Field(ge=1, le=10**7)] = 100


class Squares(nn.Module):
    """Σ of the squares of the weights that a sample names, those it does not use left out."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 1, dtype=torch.float64))  # a closed form deserves every digit

    def forward(self, weight: Tensor, used: Tensor) -> Tensor:
        """One value per sample [...] for row numbers and uses [..., 2]."""
        rows: Tensor = functional.embedding(weight, self.w).squeeze(-1)
        return (rows.square() * used).sum(-1)


def itself(output: Tensor, label: Tensor) -> Tensor:  # noqa: ARG001
    """The output is the objective."""
    return output


def example1(clients: int = 100) -> Task:
    """f_1 = w1² + w2² and f_i = w2² for everyone else (FedSubAvg, section 3.1, without the constants of the noise).

    Each client has one sample, so that weights by samples are no weights. Row 0 of the table is w1, row 1 is w2.
    """
    weight, used = np.ones((clients, 2), dtype=np.int64), np.ones((clients, 2))
    weight[0, 0] = 0
    used[1:, 0] = 0
    federation = Federation.from_arrays(
        client=np.arange(clients), features={"weight": weight, "used": used}, label=np.zeros(clients), test=0.0
    )
    return Task(
        federation,
        Squares,
        itself,
        tables={"w": "weight"},
        name="example1",
        source=f"FedSubAvg, example 1, {clients:,} clients",
    )


def make(options: Example1Options, data: Path | None) -> Task:
    """The example with the number of clients asked for."""
    if data is not None:
        raise UserError(f"task 'example1' is a formula, so --data {data} has no place in it; leave it out.")
    return example1(options.clients)


# One exact gradient step of every client per round, as the example has it.
ENTRY = Entry(
    name="example1",
    about="two weights, one of them held by a single client: the slow convergence of FedAvg in closed form",
    needs="nothing: it is a formula",
    options=Example1Options,
    make=make,
    rounds=50,
    eval_every=1,
    settings={"select": "everyone", "iterations": 1, "batch_size": None, "lr": 0.5},
)
