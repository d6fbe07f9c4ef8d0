"""Fingerprints of a user's own task, model and tensors: what tells a run of one from a run of another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedslice.data.ragged import Ragged
from fedslice.data.samples import Samples
from fedslice.data.vocabulary import dumps
from fedslice.metrics import called
from fedslice.task import Task

_LENGTH = 16  # hexadecimal digits


def describe(task: Task) -> dict[str, str]:
    """Return the data and the network of a task as fingerprints, and the names of its loss and metrics."""
    kept: dict[str, str] | None = task.__dict__.get("_identity")
    if kept is None:
        metrics = ", ".join(task.metrics)
        kept = {"data": data(task), "parameters": parameters(task), "loss": called(task.loss), "metrics": metrics}
        task.__dict__["_identity"] = kept  # reading all data takes a moment, and a frozen task has the same forever
    return dict(kept)


def data(task: Task) -> str:
    """Return a fingerprint of all samples, their owners, and what their ids stand for."""
    digest = hashlib.sha256()
    for part in (task.federation.train, task.federation.test):
        _samples(digest, part)
    for client in task.federation.ids.tolist():
        digest.update(repr(client).encode())
    digest.update(dumps(task.vocabularies).encode())
    return digest.hexdigest()[:_LENGTH]


def parameters(task: Task) -> str:
    """Return a fingerprint of the names, shapes and types of all trained parameters, and of the tables."""
    shapes = {name: (tuple(shape), str(task.dtypes[name])) for name, shape in task.shapes.items()}
    tables = {name: sorted([one] if isinstance(one, str) else one) for name, one in task.tables.items()}
    text = repr((sorted(shapes.items()), sorted(tables.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def tensors(values: Mapping[str, Tensor]) -> str:
    """Return a fingerprint of named tensors with their content."""
    digest = hashlib.sha256()
    for name in sorted(values):
        _tensor(digest, name, values[name])
    return digest.hexdigest()[:_LENGTH]


def _samples(digest: Any, part: Samples) -> None:
    for name, column in sorted(part.features.items()):
        if isinstance(column, Ragged):
            for field in ("values", "offsets", "lengths"):
                _tensor(digest, f"{name}.{field}", getattr(column, field))
        else:
            _tensor(digest, name, column)
    _tensor(digest, "label", part.label)
    _tensor(digest, "offsets", part.offsets)


def _tensor(digest: Any, name: str, value: Tensor) -> None:
    digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
    flat = value.detach().cpu().contiguous().reshape(-1)
    digest.update(flat.view(torch.uint8).numpy().data)
