"""Fields that several parts declare."""

from __future__ import annotations

import torch

from fedslice.core.encodings import Floats
from fedslice.core.entries import OnSlice, View, merged
from fedslice.core.message import Body, Field, Fields
from fedslice.core.slice import Slice
from fedslice.core.spec import Spec

VALUES = "values"


def value_fields(spec: Spec, part: Slice, name: str = VALUES, optional: bool = False) -> Fields:
    """Return fields of values as they are: one, or one per type where a model has several."""
    groups: dict[torch.dtype, list[str]] = {}
    for parameter in part.axes:
        groups.setdefault(spec.dtypes[parameter], []).append(parameter)
    if len(groups) <= 1:
        return {name: Field(Floats(next(iter(groups), spec.dtype)), on=part, optional=optional)}
    return {
        f"{name}.{dtype}".replace("torch.", ""): Field(Floats(dtype), on=part.only(own), optional=optional)
        for dtype, own in groups.items()
    }


def named(body: Body, name: str) -> View | OnSlice:
    """Return the entries of :func:`value_fields` of this name as one."""
    return merged([entries for field, entries in body.items() if field == name or field.startswith(f"{name}.")])
