"""The work of a chunk of clients in a round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedslice.core.message import Body
from fedslice.core.slice import Slice, Values
from fedslice.core.statistics import PREFIX


def statistics_of(came: Body) -> Values:
    """Return the running statistics [clients, ...] out of what came down."""
    return {name.removeprefix(PREFIX): value for name, value in came.items() if name.startswith(PREFIX)}


@dataclass(frozen=True)
class Batch:
    """One step's samples for every client of a chunk: [clients, batch, …]."""

    features: dict[str, Tensor]
    label: Tensor
    share: Tensor  # what each sample weighs in its client's mean

    def parts(self, count: int) -> list[Batch]:
        """Return the batch in ``count`` parts, or as many as it has samples; the shares are those of the whole."""
        if count == 1:
            return [self]
        count = min(count, self.share.shape[1])
        columns = {name: column.tensor_split(count, 1) for name, column in self.features.items()}
        labels, shares = self.label.tensor_split(count, 1), self.share.tensor_split(count, 1)
        return [Batch({n: c[i] for n, c in columns.items()}, labels[i], shares[i]) for i in range(count)]


@dataclass(frozen=True)
class Work:
    """A chunk of clients, ready to train.

    Args:
        round: The round.
        clients: Their numbers [clients].
        draws: Tells apart the appearances of a client in a round [clients].
        hold: What the method says that a client holds.
        down: What came down of it.
        layout: Where the trained values sit. It may be less than ``hold``: rows that no batch names cannot change.
        start: The values that training begins with, on the layout.
        terms: Tensors that stay the same in all steps, on the layout, by term of the local method.
        rates: Step sizes [clients, steps], in float64.
        features: Batches [clients, steps, batch, ...].
        label: The same of labels.
        real: Which places of a batch are samples and not filled up [clients, steps, batch].
        squares: Whether the mean squared loss of each client's samples is asked for.
        came: Everything that came down.
        memory: The memory of the local method; for a term (:meth:`of_term`) its own.
        constants: For a term, its own of ``terms``.
        cut: Whether a step's batch has no more places than its largest client has samples, because the network
            normalises over them.
    """

    round: int
    clients: Tensor
    draws: Tensor
    hold: Slice
    down: Slice
    layout: Slice
    start: Values
    terms: dict[str, Values]
    rates: Tensor
    features: dict[str, Tensor]
    label: Tensor
    real: Tensor
    squares: bool
    came: Body
    memory: Any
    constants: Values = field(default_factory=dict)
    cut: bool = False

    @property
    def active(self) -> Tensor:
        """Whether a client has a step [clients, steps]."""
        return self.real.any(2)

    @property
    def statistics(self) -> Values:
        """Running statistics that training begins with [clients, ...]."""
        return statistics_of(self.came)

    @property
    def step_size_sum(self) -> Tensor:
        """The sum of each client's step sizes [clients], in float64 on the CPU."""
        return (self.rates * self.active.to(self.rates.device)).sum(1)

    def of_term(self, label: str) -> Work:
        """Return the work as a term sees it: with its own memory and constants."""
        return replace(self, memory=self.memory.terms[label], constants=self.terms[label])

    def steps(self) -> Iterator[Batch]:
        """Yield the batches step by step; sequences are cut to the longest of the step."""
        wide = torch.promote_types(torch.float32, next(iter(self.start.values())).dtype)
        shares = (self.real.to(wide) / self.real.sum(2, keepdim=True).clamp(min=1)).unbind(1)
        columns = {name: column.unbind(1) for name, column in self.features.items()}
        for s, (label, share) in enumerate(zip(self.label.unbind(1), shares, strict=True)):
            features = {name: column[s] for name, column in columns.items()}
            for name in self.features:
                if f"{name}_length" in features:
                    longest = int(features[f"{name}_length"].max())
                    features[name] = features[name][..., :longest]
            most = int(self.real[:, s].sum(1).max()) if self.cut else None
            yield Batch({name: column[:, :most] for name, column in features.items()}, label[:, :most], share[:, :most])

    def part(self, some: slice | Tensor) -> Work:
        """The same work for some of the clients."""
        return replace(
            self,
            clients=self.clients[some],
            draws=self.draws[some],
            start={n: v[some] for n, v in self.start.items()},
            terms={label: {n: v[some] for n, v in own.items()} for label, own in self.terms.items()},
            rates=self.rates[some.to(self.rates.device) if isinstance(some, Tensor) else some],
            features={n: v[some] for n, v in self.features.items()},
            label=self.label[some],
            real=self.real[some],
            came={n: v[some] if isinstance(v, Tensor) else v for n, v in self.came.items()},
        )

    def first(self, steps: int) -> Work:
        """The same work, cut to its first steps."""
        features = {n: v[:, :steps] for n, v in self.features.items()}
        return replace(
            self, rates=self.rates[:, :steps], features=features, label=self.label[:, :steps], real=self.real[:, :steps]
        )
