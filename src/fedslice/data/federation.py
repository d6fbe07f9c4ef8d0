"""A federation: all clients' samples in flat arrays, with offsets that say where each client begins.

There is no object per client, so a million clients cost two arrays. Samples of variable length (histories,
token sequences) are kept end to end, or as windows on a longer sequence, and padded only inside a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedslice.core.errors import UserError
from fedslice.data.columns import Array
from fedslice.data.ragged import offsets_of
from fedslice.data.samples import Samples, checked
from fedslice.data.split import clients_of, held_out

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Federation:
    """The clients that can train (those with at least one training sample) and the samples to test on.

    ``ids`` are the clients' own names in the order of ``train``; inside the library a client is its place in
    that order. Test samples may come from clients that do not train.
    """

    train: Samples
    test: Samples
    ids: Array

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def from_arrays(
        cls,
        *,
        client: Any,
        features: Mapping[str, Any],
        label: Any,
        test: Any = 0.2,
        by: Literal["sample", "client"] = "sample",
        seed: int = 0,
    ) -> Federation:
        """Group samples by client and hold some out.

        ``test`` is a fraction, drawn over samples or over whole clients (``by``), or a boolean array that marks
        the test samples. Features are arrays of numbers with one row per sample, or :class:`Ragged` for sequences of
        differing lengths; a client's id is a number or a text.

        >>> f = Federation.from_arrays(client=[7, 3, 7], features={"x": [0, 1, 2]}, label=[0.0, 1.0, 1.0], test=0.0)
        >>> f.ids.tolist(), f.train.sizes.tolist()
        ([3, 7], [1, 2])
        """
        names, owner = clients_of(client)
        samples = checked(features, label, len(owner))
        return cls._grouped(names, owner, samples, held_out(test, by, owner, seed))

    @classmethod
    def _grouped(cls, names: Array, owner: Ints, samples: Samples, tested: NDArray[np.bool_]) -> Federation:
        """Sort samples by their owner, keeping the order within each; those with ``tested`` go to the test set."""
        trainable, place = np.unique(owner[~tested], return_inverse=True)
        if not len(trainable):
            raise UserError("the federation has no training sample; hold fewer samples out (test=...).")
        order = np.flatnonzero(~tested)[np.argsort(place, kind="stable")]
        sizes = np.bincount(place, minlength=len(trainable))
        train = samples.take(torch.from_numpy(order), offsets_of(torch.from_numpy(sizes)))
        known = np.isin(owner, trainable) & tested
        place = np.searchsorted(trainable, owner[known])
        strangers = np.flatnonzero(tested & ~known)
        order = np.concatenate([np.flatnonzero(known)[np.argsort(place, kind="stable")], strangers])
        sizes = np.bincount(place, minlength=len(trainable))
        return cls(train, samples.take(torch.from_numpy(order), offsets_of(torch.from_numpy(sizes))), names[trainable])

    def pooled(self) -> Federation:
        """All training samples in the hands of one client: the reference that is not federated."""
        offsets = self.train.offsets[[0, -1]]
        return replace(self, train=replace(self.train, offsets=offsets), ids=np.array(["pooled"]))

    def numbered(self, number: int) -> Federation:
        """Return a federation of one client, under another number than 0; clients below it have no samples."""
        before = torch.zeros(number, dtype=torch.int64)
        train, test = (replace(part, offsets=torch.cat([before, part.offsets])) for part in (self.train, self.test))
        return Federation(train, test, np.arange(number + 1))

    def to(self, device: torch.device) -> Federation:
        """The same federation on another device."""
        return Federation(self.train.to(device), self.test.to(device), self.ids)
