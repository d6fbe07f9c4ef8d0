"""PyTorch's map-style datasets as arrays: every sample is read once, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from fedslice.core.errors import UserError
from fedslice.data import columns
from fedslice.data.ragged import Ragged, offsets_of
from fedslice.data.samples import Feature

PAIR = ("x", "label")


def read(dataset: Any, names: Sequence[str] | None) -> dict[str, Feature]:
    """All samples by name of their items: [n, …], or sequences of differing lengths.

    Args:
        dataset: A dataset with a length, whose samples are tuples or dictionaries of arrays and numbers.
        names: What the items of a tuple are called, ``("x", "label")`` for pairs.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UserError(
            f"{type(dataset).__name__} has no length or no samples by number, expected a map-style dataset; read it "
            "into a TensorDataset."
        )
    if not len(dataset):
        raise UserError(f"{type(dataset).__name__} has no samples; give at least one.")
    if isinstance(dataset, TensorDataset):
        return dict(zip(_named(len(dataset.tensors), names), dataset.tensors, strict=True))
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, TensorDataset):
        index = torch.as_tensor(dataset.indices, dtype=torch.int64)
        return {
            name: column[index] for name, column in read(dataset.dataset, names).items() if isinstance(column, Tensor)
        }
    first = _sample(dataset[0], names)
    found = {name: _Items(name, len(dataset)) for name in first}
    for number in range(len(dataset)):
        sample = first if number == 0 else _sample(dataset[number], names)
        if sample.keys() != first.keys():
            raise UserError(f"sample {number} has items {', '.join(sample)}, expected {', '.join(first)} as the first.")
        for name, value in sample.items():
            found[name].add(number, value)
    return {name: items.column() for name, items in found.items()}


def _sample(sample: Any, names: Sequence[str] | None) -> dict[str, Any]:
    if isinstance(sample, Mapping):
        if names is not None:
            raise UserError("samples are dictionaries, which name their items; leave names out.")
        return dict(sample)
    if not isinstance(sample, tuple | list):
        raise UserError(f"a sample is {type(sample).__name__}, expected a tuple or a dictionary with its label.")
    return dict(zip(_named(len(sample), names), sample, strict=True))


def _named(count: int, names: Sequence[str] | None) -> Sequence[str]:
    given = PAIR if names is None else names
    if isinstance(given, str) or len(given) != count or len(set(given)) < count or "label" not in given:
        raise UserError(
            f"samples have {count} items and names are {columns.shown(given)}, expected one each, and 'label' among "
            f"them; give for example names={(*(f'x{i}' for i in range(count - 1)), 'label')}."
        )
    return given


class _Items:
    """One item of all samples: in one tensor while they have one shape, else end to end."""

    def __init__(self, name: str, count: int):
        self._name, self._count = name, count
        self._filled: Tensor | None = None
        self._rows: list[Tensor] | None = None

    def add(self, number: int, value: Any) -> None:
        row = columns.tensor(f"{self._name!r} of sample {number}", value)
        if self._filled is None:
            self._filled = torch.empty((self._count, *row.shape), dtype=row.dtype)
        if row.dtype != self._filled.dtype:
            raise UserError(
                f"{self._name!r} of sample {number} is of type {row.dtype}, expected {self._filled.dtype} as the first."
            )
        if self._rows is None and row.shape != self._filled.shape[1:]:
            if row.dim() != 1 or self._filled.dim() != 2:
                shape = tuple(self._filled.shape[1:])
                raise UserError(
                    f"{self._name!r} of sample {number} has shape {tuple(row.shape)}, expected {shape} as the first; "
                    "only sequences may differ."
                )
            self._rows = list(self._filled[:number])
        if self._rows is None:
            self._filled[number] = row
        else:
            self._rows.append(row)

    def column(self) -> Feature:
        assert self._filled is not None
        if self._rows is None:
            return self._filled
        lengths = torch.tensor([len(row) for row in self._rows], dtype=torch.int64)
        return Ragged(torch.cat(self._rows), offsets_of(lengths))
