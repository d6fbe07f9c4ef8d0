"""Merges that look at all updates of a coordinate: the median and the trimmed mean.

Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates
    Dong Yin, Yudong Chen, Kannan Ramchandran, Peter Bartlett. ICML 2018.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedslice.combine.base import Combine
from fedslice.combine.cohort import Cohort, Stack
from fedslice.core.capabilities import Rule
from fedslice.core.part import Positive
from fedslice.room import free_memory

_SHARE = 0.25  # of the memory that is free: the rest is for training


class Robust(Combine):
    """A merge that needs every client's update: :meth:`merge` is given them by parameter and rows.

    All clients weigh the same. The updates of a round are kept until it ends, in memory and, beyond ``memory``, in
    files. Who holds a row of a table counts for that row, and nobody else does.

    Args:
        memory (GiB): Memory that a round's updates may take before further ones go to files, and that a merge may take
            at a time; a quarter of what is free if not given.
    """

    memory: Positive | None = None

    @property
    def provides(self) -> frozenset[str]:
        """It cannot do with a sum of updates."""
        return frozenset({"needs-updates"})

    def rules(self) -> Iterable[Rule]:
        """Refuse a sum of codes, which no longer shows single updates."""
        yield Rule(
            "codec",
            "sums-codes",
            False,
            f"combine={self.label} looks at each client's update, which codec={{label}} no longer shows once codes are "
            "summed; use combine=mean or codec=dense.",
        )

    def begin(self, state: Any) -> Cohort:
        """Return a cohort of which nothing has been taken."""
        limit = _SHARE * free_memory() if self.memory is None else self.memory * 2**30

        def merge(name: str, stack: Stack) -> Tensor:
            return self.merge(state, name, *stack)

        return Cohort(merge, limit, state.run.scratch, self.label)

    @abstractmethod
    def merge(self, state: Any, name: str, rows: Tensor, values: Tensor, present: Tensor, weights: Tensor) -> Tensor:
        """Return the merged update of some rows of a parameter [rows, ...].

        It is called for each parameter once or in several pieces: nothing may depend on which rows come together. A row
        that no client trained is left out, since every update of it is zero. What it returns where nobody sent a
        coordinate does not matter.

        Args:
            state: The part's state.
            name: The parameter.
            rows: The row numbers [rows].
            values: The updates [clients, rows, ...], all finite; zero where a client did not send the coordinate.
            present: Which clients sent which coordinate [clients, rows, ...].
            weights: The clients' weights [clients].
        """
        raise NotImplementedError


class Median(Robust):
    """The median of each coordinate over the clients that sent it; of an even number the mean of the middle two.

    As long as fewer than half of a coordinate's senders are hostile, it lies between values of honest ones.

    Args:
        memory (GiB): Memory for a round's updates before further ones go to files; a quarter of what is free if not
            given.

    Example:
        >>> Recipe(combine=Median())
        Recipe(combine=Median())
    """

    label = "median"

    def merge(self, state: Any, name: str, rows: Tensor, values: Tensor, present: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        """Halve before adding: two large values must not overflow."""
        ordered, count = _ordered(values, present)
        below, above = ((count - 1).clamp(min=0) // 2)[None], (count // 2).clamp(max=len(values) - 1)[None]
        return (ordered.gather(0, below) / 2 + ordered.gather(0, above) / 2)[0].masked_fill(count == 0, 0)


class TrimmedMean(Robust):
    """The mean of each coordinate over its senders, without the ⌊trim·n⌋ smallest and largest of n values.

    Args:
        trim: The share that is left out at either end; 0 is the mean over senders.
        memory (GiB): Memory for a round's updates before further ones go to files; a quarter of what is free if not
            given.

    Example:
        >>> Recipe(combine=TrimmedMean(trim=0.2))
        Recipe(combine=TrimmedMean(trim=0.2))
    """

    label = "trimmed-mean"

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1

    def merge(self, state: Any, name: str, rows: Tensor, values: Tensor, present: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        """Sum what lies between the ends."""
        ordered, count = _ordered(values, present)
        cut = (self.trim * count.double()).long()
        rank = torch.arange(len(values), device=values.device).view(-1, *[1] * (values.dim() - 1))
        inside = (rank >= cut) & (rank < count - cut)
        return ordered.masked_fill(~inside, 0).sum(0) / (count - 2 * cut).clamp(min=1)


def _ordered(values: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Each coordinate's values in ascending order, absent ones last, and how many are present."""
    return values.masked_fill(~present, torch.inf).sort(0).values, present.sum(0)
