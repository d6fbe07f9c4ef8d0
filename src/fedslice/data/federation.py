"""A federation: all clients' samples in flat arrays, with offsets that say where each client begins.

There is no object per client, so a million clients cost two arrays. Samples of variable length (histories,
token sequences) are kept end to end, or as windows on a longer sequence, and padded only inside a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.data import torch_datasets
from fedslice.data.columns import Array
from fedslice.data.frame import Frame
from fedslice.data.partition import NOBODY, Partition
from fedslice.data.ragged import offsets_of
from fedslice.data.roles import Roles
from fedslice.data.samples import Feature, Samples, checked
from fedslice.data.sources import read
from fedslice.data.split import By, Ints, by_client, clients_of, held_out
from fedslice.data.vocabulary import Vocabulary


@dataclass(frozen=True)
class Federation:
    """The clients that can train (those with at least one training sample) and the samples to test on.

    ``ids`` are the clients' own names in the order of ``train``; inside the library a client is its place in
    that order. Test samples may come from clients that do not train. ``vocabularies`` say, for each feature that is
    made of ids and for a label that is a class, which value a number stands for.
    """

    train: Samples
    test: Samples
    ids: Array
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)

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
        by: By = "sample",
        seed: int = 0,
    ) -> Federation:
        """Group samples by client and hold some out.

        ``test`` is a fraction, drawn over all samples, whole clients or each client's samples (``by``, see
        :meth:`from_frame`), or a boolean array that marks the test samples. Features are arrays of numbers with one row
        per sample, or :class:`Ragged` for sequences of differing lengths; a client's id is a number or a text.

        >>> f = Federation.from_arrays(client=[7, 3, 7], features={"x": [0, 1, 2]}, label=[0.0, 1.0, 1.0], test=0.0)
        >>> f.ids.tolist(), f.train.sizes.tolist()
        ([3, 7], [1, 2])
        """
        names, owner = clients_of(client)
        samples = checked(features, label, len(owner))
        return cls._grouped(names, owner, samples, held_out(test, by, owner, seed))

    @classmethod
    def from_frame(
        cls,
        source: Any,
        client: str = "client",
        label: str = "label",
        *,
        features: Sequence[str] | None = None,
        ids: Sequence[str | Sequence[str]] = (),
        dense: Mapping[str, Sequence[str]] | None = None,
        lists: Mapping[str, str] | None = None,
        fill: Mapping[str, Any] | None = None,
        classes: bool | None = None,
        time: str | None = None,
        test: Any = 0.2,
        by: By = "within",
        min_count: int = 1,
        seed: int = 0,
    ) -> Federation:
        """Group the rows of a table by client and hold some out.

        Every other column becomes a feature of its own name. Texts become ids, int32 [n], by a :class:`Vocabulary`
        of the training samples, in which 0 stands for values that are not in it. Numbers, true and false become floats
        [n]. Lists of either become sequences of differing lengths, which a model gets padded with 0, and beside them
        their lengths as ``<name>_length``. Times and missing values are refused.

        Args:
            source: A polars or pandas DataFrame, a Hugging Face ``Dataset``, a path to a CSV or Parquet file, or to a
                folder with one such file for each client, named after it.
            client: The column of clients' ids, texts or whole numbers; of a folder, the name for this column.
            label: The column of labels. Floats are numbers to predict, texts and booleans classes 0, 1, … (int64);
                whole numbers are classes if they are 0, 1, … without a gap, else ``classes`` must say it.
            features: The columns to use; all by default.
            ids: Columns of whole numbers, or of lists of them, that are ids. Columns in a list of their own share a
                vocabulary: ``ids=["shop", ["item", "history"]]``.
            dense: Columns of numbers to put into one feature [n, columns], by its name: ``{"x": ["age", "price"]}``.
            lists: Columns of texts that hold lists, as in a CSV file, and what separates the items: ``{"tags": "|"}``.
            fill: A value for missing ones, by column.
            classes: Whether labels are classes.
            time: The column of times, or of numbers that grow with time. Samples of a client are then in its order, and
                the latest are held out. It is no feature.
            test: The share of samples to hold out, or the column of booleans that marks them.
            by: Of what ``test`` is a share: of each client's samples (``"within"``, at least one stays), of all samples
                (``"sample"``), or of the clients (``"client"``), who then do not train.
            min_count: How often an id must occur in training samples to have a number other than 0.
            seed: The seed of the draw of test samples.

        Example:
            >>> shop = pl.DataFrame({"user": ["ann", "bob", "ann"], "item": ["tea", "oil", "oil"], "y": [1.0, 5, 2]})
            >>> f = Federation.from_frame(shop, client="user", label="y", test=0.0)
            >>> f.ids.tolist(), f.train.features["item"].tolist(), f.vocabularies["item"].size
            (['ann', 'bob'], [2, 1, 1], 3)
        """
        marks = test if isinstance(test, str) else None
        roles = Roles(
            client, label, features, ids, dense or {}, lists or {}, fill or {}, classes, time, marks, min_count
        )
        frame = Frame(read(source, client), roles)
        names, owner = frame.clients()
        order = frame.order()
        tested = frame.marked() if marks else held_out(test, by, owner, seed, order)
        given, vocabularies = frame.features(~tested)
        target, kinds = frame.label()
        if kinds is not None:
            vocabularies[label] = kinds
        grouped = cls._grouped(names, owner, checked(given, target, len(owner)), tested, order)
        return replace(grouped, vocabularies=vocabularies)

    @classmethod
    def partition(
        cls,
        dataset: Any,
        how: Partition,
        clients: int = 100,
        *,
        names: Sequence[str] | None = None,
        test: Any = 0.2,
        seed: int = 0,
    ) -> Federation:
        """Spread the samples of a PyTorch dataset over clients.

        Every sample is read once. Items that are sequences of differing lengths are taken as such.

        Args:
            dataset: A map-style dataset whose samples are tuples or dictionaries with an item ``label``.
            how: Who gets which samples, for example ``partition.dirichlet(0.1)``, see :mod:`fedslice.data.partition`.
            clients: Number of clients.
            names: What the items of a tuple are called, ``("x", "label")`` for pairs. A model gets them by name.
            test: The share of each client's samples to hold out, or a dataset to test on, which belongs to nobody
                unless ``how`` deals it out.
            seed: The seed of the draws.

        Example:
            >>> pairs = torch.utils.data.TensorDataset(torch.rand(60, 4), torch.arange(60) % 3)
            >>> Federation.partition(pairs, partition.pathological(classes=1), clients=3, test=0.0).train.sizes.tolist()
            [20, 20, 20]
        """
        if not isinstance(how, Partition):
            raise UserError(f"a partition is {how!r:.40}, expected one such as fedslice.partition.dirichlet(0.1).")
        parts = [torch_datasets.read(dataset, names)]
        share = isinstance(test, int | float)
        if not share:
            parts.append(torch_datasets.read(test, names))
        samples = [_labelled(part) for part in parts]
        kinds = [_kinds(part.label, how) for part in samples]
        owner, tested = how.owners(kinds[0], np.zeros(0, np.int64) if share else kinds[1], clients, seed)
        used = np.flatnonzero(owner != NOBODY)
        train = samples[0].take(torch.from_numpy(used), torch.tensor([0, len(used)]))
        owner = owner[used]
        if share:
            return cls._grouped(np.arange(clients), owner, train, held_out(test, "within", owner, seed))
        tested = np.where(tested == NOBODY, clients, tested)
        return cls._grouped(
            np.arange(clients + 1),
            np.concatenate([owner, tested]),
            train.joined(samples[1]),
            np.arange(len(owner) + len(tested)) >= len(owner),
        )

    @classmethod
    def _grouped(
        cls, names: Array, owner: Ints, samples: Samples, tested: NDArray[np.bool_], order: Ints | None = None
    ) -> Federation:
        """Sort samples by their owner, in the given order within each; those with ``tested`` go to the test set."""
        counts = np.bincount(owner[~tested], minlength=len(names))
        trainable = np.flatnonzero(counts)
        if not len(trainable):
            raise UserError("the federation has no training sample; hold fewer samples out (test=...).")
        place = np.where(counts > 0, np.cumsum(counts > 0) - 1, len(trainable))[owner]  # strangers come last
        order = np.arange(len(owner)) if order is None else order
        parts = []
        for chosen in (~tested, tested):
            rows = order[chosen[order]]
            rows = rows[by_client(place[rows], len(trainable) + 1)]
            sizes = np.bincount(place[rows], minlength=len(trainable))[: len(trainable)]
            parts.append(samples.take(torch.from_numpy(rows), offsets_of(torch.from_numpy(sizes))))
        return cls(parts[0], parts[1], names[trainable])

    def pooled(self) -> Federation:
        """All training samples in the hands of one client: the reference that is not federated."""
        offsets = self.train.offsets[[0, -1]]
        return replace(self, train=replace(self.train, offsets=offsets), ids=np.array(["pooled"]))

    def numbered(self, number: int) -> Federation:
        """Return a federation of one client, under another number than 0; clients below it have no samples."""
        before = torch.zeros(number, dtype=torch.int64)
        train, test = (replace(part, offsets=torch.cat([before, part.offsets])) for part in (self.train, self.test))
        return replace(self, train=train, test=test, ids=np.arange(number + 1))

    def to(self, device: torch.device) -> Federation:
        """The same federation on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))


def _labelled(columns: dict[str, Feature]) -> Samples:
    if "label" not in columns:
        raise UserError(f"samples have {', '.join(columns)} and no item 'label'; add it or rename one.")
    label = columns["label"]
    return checked({name: column for name, column in columns.items() if name != "label"}, label, len(label))


def _kinds(label: Tensor, how: Partition) -> Ints:
    """Labels as the partition looks at them."""
    if how.way == "iid":
        return np.zeros(len(label), np.int64)
    if label.dim() != 1 or label.is_floating_point():
        raise UserError(
            f"partition {how.way} goes by classes, and labels have shape {tuple(label.shape)} and type "
            f"{label.dtype}; give one whole number each, or partition.iid()."
        )
    return label.cpu().numpy().astype(np.int64)
