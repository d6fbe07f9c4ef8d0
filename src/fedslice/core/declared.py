"""The check that entries are what their fields declare, where they stay in memory and are only sized.

Bytes are counted from the declaration. Entries of a wider type would arrive with more than was counted, and a run in
memory would not be the run over a wire.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from fedslice.core.encodings import Bits, Floats
from fedslice.core.entries import OnSlice
from fedslice.core.errors import UserError
from fedslice.core.message import Body, Field, Fields
from fedslice.core.update import Update


def check_declared(whose: str, fields: Fields, body: Body) -> None:
    """Refuse entries that are not of their field's type, and fields that are not declared, or not there.

    Args:
        whose: The part that declares them, as ``codec=sign``.
        fields: What it declares.
        body: What it encodes.

    Raises:
        UserError: With the field and what was found.
    """
    for name in body:
        if name not in fields:
            raise UserError(f"{whose}: encode returned a field {name!r}, which fields() does not declare; declare it.")
    for name, field in fields.items():
        if name not in body:
            raise UserError(f"{whose}: encode returned no field {name!r}, which fields() declares; return both alike.")
        if not isinstance(field, Field):
            continue
        for value in _tensors(field, body[name]):
            _check(whose, name, field, value)


def _check(whose: str, name: str, field: Field, value: Tensor) -> None:
    kind = str(value.dtype).removeprefix("torch.")
    encoding = field.encoding
    if isinstance(encoding, Floats) and value.dtype != encoding.dtype:
        raise UserError(
            f"{whose}: field {name!r} holds {kind} and is declared as {encoding.words}; declare what travels, or "
            "convert the entries in encode."
        )
    if isinstance(encoding, Bits):
        most = (1 << encoding.width) - 1 if encoding.most is None else encoding.most
        if value.dtype.is_floating_point or (value.numel() and not 0 <= int(value.min()) <= int(value.max()) <= most):
            raise UserError(
                f"{whose}: field {name!r} holds {kind} beyond 0 to {most}, and is declared as {encoding.words} each."
            )


def _tensors(field: Field, entries: object) -> Iterator[Tensor]:
    """The tensors of a field: entries on slices may hold parameters of other fields as well."""
    if isinstance(entries, Tensor):
        yield entries
    elif isinstance(entries, OnSlice | Update):
        own = entries.values if field.on is None else field.on.axes
        yield from (value for name, value in entries.values.items() if name in own)
