"""Samples of all clients in flat arrays, with offsets that say where each client begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.data import columns
from fedslice.data.ragged import Ragged

Feature = Tensor | Ragged

_MOST_CLASSES = 10_000  # more different labels than this are measurements


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

    def joined(self, other: Samples) -> Samples:
        """These samples and others of the same features, as those of one client."""
        if self.features.keys() != other.features.keys():
            raise UserError(f"samples have features {[*other.features]} where others have {[*self.features]}.")
        features: dict[str, Feature] = {}
        for name, column in self.features.items():
            more = other.features[name]
            if isinstance(column, Ragged) or isinstance(more, Ragged):
                features[name] = _ragged(name, column).joined(_ragged(name, more))
            else:
                features[name] = _stacked(f"feature {name!r}", column, more)
        label = _stacked("label", self.label, other.label)
        return Samples(features, label, torch.tensor([0, len(label)]))

    def to(self, device: torch.device) -> Samples:
        """The same samples on another device."""
        moved: dict[str, Feature] = {name: column.to(device) for name, column in self.features.items()}
        return Samples(moved, self.label.to(device), self.offsets.to(device))


def _ragged(name: str, column: Feature) -> Ragged:
    """Sequences of one length, by chance, among others."""
    if isinstance(column, Ragged):
        return column
    if column.dim() != 2:
        raise UserError(f"feature {name!r} has sequences in one dataset and shape {tuple(column.shape)} in the other.")
    return Ragged(column.flatten(), torch.arange(len(column) + 1) * column.shape[1])


def _stacked(whose: str, one: Tensor, other: Tensor) -> Tensor:
    if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
        raise UserError(
            f"{whose} has rows of shape {tuple(one.shape[1:])} and type {one.dtype} to train on, and of shape "
            f"{tuple(other.shape[1:])} and type {other.dtype} to test on; give both the same."
        )
    return torch.cat([one, other])


def checked(features: Mapping[str, Any], label: Any, count: int) -> Samples:
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
        wrong = (~torch.isfinite(flat)).reshape(len(flat), -1).any(1)
        if isinstance(array, Ragged):
            so_far = torch.cat([torch.zeros(1, dtype=torch.int64), wrong.cumsum(0)])
            starts = array.offsets[: len(array)]
            wrong = so_far[starts + array.lengths] > so_far[starts]
            if not bool(wrong.any()):
                return array  # it lies in no sequence
        row = int(wrong.nonzero()[0])
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
