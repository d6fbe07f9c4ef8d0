"""Index sets: the rows of each table that a client's training data name, S(i), and the rows' heat.

FedSubAvg (section 2): a client's submodel is the dense parameters and the embedding rows of the features
in its own training data; the heat n_m of row m is the number of clients whose index set contains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedslice.core.slice import Axis
from fedslice.data.ragged import PAD, Ragged, ranges
from fedslice.data.samples import Samples

_IDS_AT_ONCE = 1 << 23


class IndexSets:
    """The rows each client holds in a group of tables that the same features index, worked out when asked for.

    Tables that share a feature share their index sets: a client that holds an item's row holds it in all of
    them. The padding row, 0, of a sequence feature or of a table with ``padding_idx`` belongs to everyone, like a dense
    parameter.

    Args:
        samples: Clients' samples.
        features: The features whose ids are row numbers.
        tables: The tables.
        rows: How many rows each of them has.
        padding: Whether a table has a padding row of its own.
    """

    def __init__(
        self, samples: Samples, features: tuple[str, ...], tables: tuple[str, ...], rows: int, padding: bool = False
    ):
        self.features = features
        self.tables = tables
        self.rows = rows
        self._samples = samples
        self.padding = padding
        self.padded = padding or any(isinstance(samples.features[name], Ragged) for name in features)

    def over(self, samples: Samples) -> IndexSets:
        """Return the same of other samples."""
        return IndexSets(samples, self.features, self.tables, self.rows, self.padding)

    def of(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Sorted distinct row ids of the given clients, end to end, and how many each has."""
        index, owner = ranges(self._samples.offsets, clients)
        keys = []
        for name in self.features:
            column = self._samples.features[name]
            if isinstance(column, Ragged):
                ids, whose = column.distinct(index, owner)
                keys.append(whose * self.rows + ids)
            else:
                ids = column[index]
                ids = ids.flatten(1) if ids.dim() > 1 else ids[:, None]
                keys.append((owner[:, None] * self.rows + ids).flatten())
        if self.padded:
            keys.append(torch.arange(len(clients), device=index.device) * self.rows + PAD)
        named = np.sort(torch.cat(keys).cpu().numpy())  # np.unique would hash, at ten times the cost
        pairs = torch.unique_consecutive(torch.from_numpy(named)).to(index.device)
        return pairs % self.rows, torch.bincount(pairs // self.rows, minlength=len(clients))

    def relabel(self, features: dict[str, Tensor], axis: Axis | None = None, also: Axis | None = None) -> Axis:
        """Replace row ids in a batch [clients, …] by the rows' places among those that the clients hold.

        Without an axis the clients hold what the batch names, and the rows of ``also``. Where padding can occur its row
        is always among them, and keeps its id, the first.
        """
        ids = [features[name].flatten(1).long() for name in self.features]
        named = torch.cat([*ids, torch.full_like(ids[0][:, :1], PAD)] if self.padded else ids, 1)
        if axis is None:
            if also is not None:
                named = torch.cat([named, torch.where(also.counts[:, None] > 0, also.ids, named[:, :1])], 1)
            axis, places = Axis.unique(named)
        else:
            places = axis.positions_of(named)
        first = 0
        for name, part in zip(self.features, ids, strict=True):
            features[name] = places[:, first : first + part.shape[1]].reshape(features[name].shape)
            first += part.shape[1]
        return axis

    def axis(self, clients: Tensor) -> Axis:
        """The held rows as an axis of a slice; listed only if somebody looks at them."""
        return Rows(self, clients)

    @cached_property
    def counts(self) -> Tensor:
        """Rows held by each client."""
        return torch.cat([counts for _, _, counts in self._blocks()])

    @cached_property
    def heat(self) -> Tensor:
        """n_m: how many clients hold row m."""
        return self.weight(torch.ones(len(self._samples.sizes), dtype=torch.int64)).to(torch.int64)

    def weight(self, weights: Tensor) -> Tensor:
        """W_m: the summed weight of the clients that hold row m (FedSubAvg, appendix D.4), in float64."""
        total = torch.zeros(self.rows, dtype=torch.float64)
        for clients, ids, counts in self._blocks():
            held = torch.repeat_interleave(weights[clients.cpu()].to(torch.float64), counts.cpu())
            total.index_add_(0, ids.cpu(), held)
        return total

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Index sets of all clients, a bounded number of ids at a time."""
        named = torch.zeros(len(self._samples), dtype=torch.int64)
        for name in self.features:
            column = self._samples.features[name]
            named += column.lengths.cpu() if isinstance(column, Ragged) else column[0].numel()
        ends = torch.cat([named.new_zeros(1), named.cumsum(0)])[self._samples.offsets.cpu()]
        clients = len(ends) - 1
        first = 0
        while first < clients:
            last = int(torch.searchsorted(ends, ends[first] + _IDS_AT_ONCE, right=True)) - 1
            block = torch.arange(first, min(max(last, first + 1), clients), device=self._samples.offsets.device)
            yield block, *self.of(block)
            first = int(block[-1]) + 1


class Rows(Axis):
    """The rows that some clients hold."""

    def __init__(self, sets: IndexSets, clients: Tensor):
        super().__init__(sets.counts.index_select(0, clients), lambda: Axis.from_flat(*sets.of(clients)).ids)
        self._sets, self._clients = sets, clients

    @property
    def flat(self) -> Tensor:
        """The rows without padding, which is not made for it: of clients of unequal size it is the most."""
        return self._sets.of(self._clients)[0]
