"""Fields that several parts declare."""

from __future__ import annotations

import torch

from fedslice.core.encodings import Floats
from fedslice.core.entries import OnSlice, View, merged
from fedslice.core.message import Body, Field, Fields
from fedslice.core.slice import Slice
from fedslice.core.spec import Spec

VALUES = "values"


def value_fields(
    spec: Spec, part: Slice, name: str = VALUES, optional: bool = False, about: str = "values of the model"
) -> Fields:
    """Return fields of values as they are: one, or one per type where a model has several."""
    dtypes = spec.dtypes
    kinds = {dtypes[parameter] for parameter in part.axes}
    if len(kinds) <= 1:
        return {name: Field(Floats(next(iter(kinds), spec.dtype)), on=part, optional=optional, about=about)}
    groups: dict[torch.dtype, list[str]] = {}
    for parameter in part.axes:
        groups.setdefault(dtypes[parameter], []).append(parameter)
    return {
        f"{name}.{dtype}".replace("torch.", ""): Field(Floats(dtype), on=part.only(own), optional=optional, about=about)
        for dtype, own in groups.items()
    }


def value_names(spec: Spec, part: Slice, name: str = VALUES) -> list[str]:
    """Return the names of :func:`value_fields`."""
    return [name] if len(spec.kinds) == 1 else list(value_fields(spec, part, name))


def named(body: Body, name: str) -> View | OnSlice:
    """Return the entries of :func:`value_fields` of this name as one."""
    return merged([entries for field, entries in body.items() if field == name or field.startswith(f"{name}.")])
