"""A federation: all clients' samples in flat arrays, with offsets that say where each client begins.

There is no object per client, so a million clients cost two arrays. Samples of variable length (histories,
token sequences) are kept end to end, or as windows on a longer sequence, and padded only inside a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice import columns
from fedslice.columns import Array
from fedslice.core import rng
from fedslice.core.errors import UserError, unknown

PAD = 0  # the id that fills a sequence up inside a batch; its row belongs to everyone

_MOST_CLASSES = 10_000  # more different labels than this are measurements


class Ragged:
    """Sequences of differing lengths: sample i is the ``lengths[i]`` values that begin at ``offsets[i]``.

    Without lengths the sequences lie end to end and ``offsets`` has one number more, the end of the last. With them
    they are windows, which may overlap: a history of the last clicks before each of a client's samples then takes
    two numbers per sample, however long it is.
    """

    def __init__(self, values: Tensor, offsets: Tensor, lengths: Tensor | None = None):
        self.values = values
        self.offsets = offsets
        self.lengths: Tensor = offsets.diff() if lengths is None else lengths

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[float]]) -> Ragged:
        """From a list of lists of ids, or of other numbers.

        >>> Ragged.from_lists([[3, 1], [], [2]]).lengths.tolist()
        [2, 0, 1]
        """
        for number, row in enumerate(rows):
            if not columns.is_sequence(row):
                raise UserError(f"Ragged.from_lists: row {number} is {columns.shown(row)}, expected a list of numbers.")
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        flat = [value for row in rows for value in row]
        try:
            values = columns.tensor("Ragged.from_lists:", flat) if flat else lengths[:0]
        except UserError:
            for number, row in enumerate(rows):  # the first that is wrong, by its own number
                columns.tensor(f"Ragged.from_lists: row {number},", row)
            raise
        return cls(values, _offsets(lengths))

    def take(self, index: Tensor) -> Ragged:
        """The chosen sequences, in the given order: as windows on the same values, unless a copy is no larger."""
        starts, lengths = self.offsets[index], self.lengths[index]
        if int(lengths.sum()) > len(self.values):
            return Ragged(self.values, starts, lengths)
        return Ragged(self.values[members(starts, lengths)[0]], _offsets(lengths))

    def distinct(self, index: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """Values of sequences ``index``, each place of the storage once per owner, and the owner of each value.

        ``owner`` [len(index)] ascends. Windows are cut where an earlier one of the same owner reaches, so the cost
        is that of the places they cover together and not of their lengths.
        """
        apart = owner * (len(self.values) + 1)  # the places of one owner lie beyond all those of the one before
        starts, order = (self.offsets[index] + apart).sort()
        ends = starts + self.lengths[index][order]
        fresh = starts.clone()
        torch.maximum(starts[1:], ends.cummax(0).values[:-1], out=fresh[1:])
        flat, window = members(fresh - apart, (ends - fresh).clamp(min=0))  # sorting by start keeps owners in order
        return self.values[flat], owner[window]

    def padded(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences ``index`` [...] as ids [..., longest], filled up with ``PAD``, and their lengths [...]."""
        start, length = self.offsets[index], self.lengths[index].long()
        longest = int(length.max()) if length.numel() else 0
        place = torch.arange(longest, device=start.device)
        valid = place < length[..., None]
        flat = (start[..., None] + place).masked_fill(~valid, 0)
        if not len(self.values):
            return flat, length
        return self.values[flat].masked_fill(~valid, PAD), length

    def to(self, device: torch.device) -> Ragged:
        """The same sequences on another device."""
        return Ragged(self.values.to(device), self.offsets.to(device), self.lengths.to(device))


Feature = Tensor | Ragged


@dataclass(frozen=True)
class Samples:
    """Samples sorted by client: client c owns ``offsets[c]:offsets[c + 1]``, in the order they were given."""

    features: dict[str, Feature]
    label: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.label)

    @property
    def sizes(self) -> Tensor:
        """Samples per client."""
        return self.offsets.diff()

    def sizes_of(self, clients: Tensor) -> Tensor:
        """Samples of these clients alone, however many others there are."""
        return self.offsets[clients + 1] - self.offsets[clients]

    def batch(self, index: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Features and labels of samples ``index`` [...]; a ragged feature brings ``<name>_length`` along."""
        features: dict[str, Tensor] = {}
        for name, column in self.features.items():
            if isinstance(column, Ragged):
                features[name], features[f"{name}_length"] = column.padded(index)
            else:
                features[name] = column[index]
        return features, self.label[index]

    def label_shares(self) -> Tensor:
        """[clients, classes]: how each client's samples divide among the labels; one class if labels are no classes."""
        classes, place = torch.unique(self.label.cpu(), return_inverse=True, dim=0)
        if len(classes) > _MOST_CLASSES:
            return torch.ones(len(self.sizes), 1, dtype=torch.float64)
        owner = torch.repeat_interleave(torch.arange(len(self.sizes)), self.sizes.cpu())
        counts = torch.bincount(owner * len(classes) + place, minlength=len(self.sizes) * len(classes))
        counts = counts.view(len(self.sizes), len(classes)).double()
        return counts / counts.sum(1, keepdim=True)

    def take(self, index: Tensor, offsets: Tensor) -> Samples:
        """The chosen samples, with the offsets of the clients they then belong to."""
        features = {n: c.take(index) if isinstance(c, Ragged) else c[index] for n, c in self.features.items()}
        return Samples(features, self.label[index], offsets)

    def to(self, device: torch.device) -> Samples:
        """The same samples on another device."""
        moved: dict[str, Feature] = {name: column.to(device) for name, column in self.features.items()}
        return Samples(moved, self.label.to(device), self.offsets.to(device))


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
        names, owner = _clients(client)
        samples = _checked(features, label, len(owner))
        held_out = _held_out(test, by, owner, seed)
        trainable, place = np.unique(owner[~held_out], return_inverse=True)
        if not len(trainable):
            raise UserError("the federation has no training sample; hold fewer samples out (test=...).")
        order = np.flatnonzero(~held_out)[np.argsort(place, kind="stable")]
        sizes = np.bincount(place, minlength=len(trainable))
        train = samples.take(torch.from_numpy(order), _offsets(torch.from_numpy(sizes)))
        known = np.isin(owner, trainable) & held_out
        tested = np.searchsorted(trainable, owner[known])
        strangers = np.flatnonzero(held_out & ~known)
        order = np.concatenate([np.flatnonzero(known)[np.argsort(tested, kind="stable")], strangers])
        sizes = np.bincount(tested, minlength=len(trainable))
        return cls(train, samples.take(torch.from_numpy(order), _offsets(torch.from_numpy(sizes))), names[trainable])

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


def ranges(offsets: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The members of the ranges ``index``, end to end, and for each the place in ``index`` it belongs to."""
    return members(offsets[index], offsets[index + 1] - offsets[index])


def members(starts: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """What lies in ranges of these starts and sizes, end to end, and for each the number of its range."""
    owner = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    shift = starts - (sizes.cumsum(0) - sizes)
    return torch.arange(len(owner), device=sizes.device) + shift[owner], owner


def _offsets(sizes: Tensor) -> Tensor:
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]).to(torch.int64)


def _clients(client: Any) -> tuple[Array, NDArray[np.int64]]:
    """The distinct ids in order, and for each sample its client's place among them."""
    ids = columns.array("client", client)
    if ids.ndim != 1:
        raise UserError(f"client has shape {ids.shape}; give one client id per sample.")
    given = ids
    if ids.dtype.kind in "SU" and isinstance(client, list | tuple):  # NumPy made a text of NaN, too
        given = columns.objects(client)
    if len(missing := np.flatnonzero(columns.missing(given))):
        raise UserError(
            f"client row {missing[0]} is missing ({given[missing[0]]}), expected one client id per sample; give it an "
            "id or leave the sample out."
        )
    try:
        if ids.dtype.kind == "O":
            set(ids)  # lists could be put in order, but nobody is called so
        names, place = np.unique(ids, return_inverse=True)
    except (TypeError, ValueError):
        kinds = " and ".join(sorted({type(one).__name__ for one in given}))
        raise UserError(
            f"client holds ids of type {kinds}, expected all numbers or all texts; convert them, for example with str."
        ) from None
    return names, place


def _held_out(test: Any, by: str, owner: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    if not isinstance(test, int | float | np.number):
        mask = columns.array("test", test)
        if mask.shape != owner.shape or mask.dtype != np.bool_:
            raise UserError(
                f"test has shape {mask.shape} and type {mask.dtype}; give a fraction or one boolean per sample "
                f"({len(owner)})."
            )
        return mask
    if by not in ("sample", "client"):
        raise unknown("way to split, by=", by, ("sample", "client"))
    if not 0 <= test < 1:
        raise UserError(f"test={test} is not a fraction; give a number from 0 up to, not including, 1.")
    pool = np.arange(len(owner)) if by == "sample" else np.unique(owner)
    order = rng.generator(seed, rng.Purpose.SPLIT).permutation(len(pool))
    chosen = pool[order[: round(test * len(pool))]]
    if by == "client":
        return np.isin(owner, chosen)
    mask = np.zeros(len(owner), dtype=np.bool_)
    mask[chosen] = True
    return mask


def _checked(features: Mapping[str, Any], label: Any, count: int) -> Samples:
    """Arrays as tensors, after their lengths, types and finiteness have been seen to be right."""
    _check_names(features)
    given = {name: _column(f"feature {name!r}", column, count) for name, column in features.items()}
    if isinstance(label, Ragged):
        raise UserError("label is Ragged; give one label per sample.")
    target = _column("label", label, count)
    assert isinstance(target, Tensor)
    return Samples(given, target, torch.tensor([0, count]))


def _check_names(features: Mapping[str, Any]) -> None:
    if not isinstance(features, Mapping):
        raise UserError(
            f"features is of type {type(features).__name__}, expected a dictionary of columns; write for example "
            "{name: table[name] for name in table.columns}."
        )
    for name, column in features.items():
        if not isinstance(name, str):
            raise UserError(f"a feature is called {name!r}, expected a text; the model takes features by name.")
        if name == "label":
            raise UserError("a feature is called 'label', like the argument beside it; give it another name.")
        if isinstance(column, Ragged) and f"{name}_length" in features:
            raise UserError(
                f"a feature is called '{name}_length', like the lengths that {name!r} brings; give it another name."
            )


def _column(whose: str, column: Any, count: int) -> Feature:
    array: Feature = column if isinstance(column, Ragged) else columns.tensor(whose, column)
    if isinstance(array, Tensor) and array.dim() == 0:
        raise UserError(f"{whose} is a single number; give one row per sample ({count}).")
    if len(array) != count:
        raise UserError(f"{whose} has {len(array)} rows but client has {count}; give one per sample.")
    if isinstance(array, Ragged):
        _check_windows(whose, array)
    flat = array.values if isinstance(array, Ragged) else array
    if flat.is_floating_point() and not bool(torch.isfinite(flat).all()):
        row = int((~torch.isfinite(flat)).reshape(len(flat), -1).any(1).nonzero()[0])
        raise UserError(f"{whose} row {row} is NaN or infinite; every value must be finite.")
    return array


def _check_windows(whose: str, ragged: Ragged) -> None:
    """Sequences lie inside their values."""
    if ragged.values.dim() != 1:
        raise UserError(f"{whose} has values of shape {tuple(ragged.values.shape)}, expected one number per place.")
    starts, lengths = ragged.offsets[: len(ragged)], ragged.lengths
    if len(starts) < len(lengths):
        raise UserError(f"{whose} has {len(starts)} offsets for {len(lengths)} lengths; give one for each.")
    wrong = ((starts < 0) | (lengths < 0) | (starts + lengths > len(ragged.values))).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise UserError(
            f"{whose} row {row} begins at {int(starts[row])} and has {int(lengths[row])} values, expected one "
            f"inside the {len(ragged.values)} values there are; correct its offsets or lengths."
        )
