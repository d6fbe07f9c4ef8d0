"""A user's column (list, array, tensor, column of a data frame) as numbers, or one sentence that says why not.

``whose`` is what the sentence calls the column: ``feature 'age'``, ``label``.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.core.errors import UserError

Array = np.ndarray[Any, np.dtype[Any]]

_SIGNED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
"""Types of which PyTorch knows little but the name, and those that take their place."""
_TIMES = (np.datetime64, np.timedelta64, datetime.date, datetime.time, datetime.timedelta)
_LARGEST = 2**63 - 1


def tensor(whose: str, column: Any) -> Tensor:
    """The column's numbers: whole ones as they are, others in the default precision.

    They lie in the column's own memory unless that is read-only or laid out in another way than PyTorch's.
    """
    if isinstance(column, Tensor):
        found = column.detach()
        if found.layout != torch.strided or found.is_meta:
            raise UserError(f"{whose} is a sparse tensor or one without values, expected a dense one; give to_dense().")
    else:
        values = array(whose, column)
        if values.dtype.kind not in "biufc":
            raise _not_numbers(whose, values)
        kind = np.dtype(np.float64) if values.dtype == np.longdouble else values.dtype.newbyteorder("=")
        found = torch.from_numpy(np.require(values, kind, ["C", "W"]))
    if found.is_complex():
        raise UserError(f"{whose} is complex, expected real numbers; give real and imaginary parts as two features.")
    if found.dtype in _SIGNED:
        found = found.to(_SIGNED[found.dtype])
        if found.numel() and int(found.min()) < 0:
            raise UserError(
                f"{whose} has a number above {_LARGEST}, expected smaller ones; number the distinct values with "
                "np.unique(column, return_inverse=True)[1]."
            )
    return found.to(torch.get_default_dtype()) if found.is_floating_point() else found


def array(whose: str, column: Any) -> Array:
    """The column as NumPy has it; rows of differing lengths stay objects."""
    try:
        values = np.asarray(column)
    except (TypeError, ValueError):
        if not is_sequence(column):
            raise UserError(f"{whose} is {shown(column)}, expected an array.") from None
        values = objects(column)
    if isinstance(column, np.ma.MaskedArray) and (masked := np.ma.getmaskarray(column)).any():
        row = np.argwhere(np.atleast_1d(masked))[0][0]
        raise UserError(f"{whose} row {row} is masked, expected a value; fill it in or leave the sample out.")
    return values


def objects(column: Sequence[Any]) -> Array:
    """The column's values as they are, none turned into another type."""
    values = np.empty(len(column), dtype=object)
    for row, value in enumerate(column):
        values[row] = value
    return values


def missing(values: Array) -> NDArray[np.bool_]:
    """True where there is no value: NaN, NaT, None, and what data frames have for them."""
    if values.dtype.kind in "fc":
        return ~np.isfinite(values)
    if values.dtype.kind in "Mm":
        return np.isnat(values)
    if values.dtype.kind == "O":
        return np.array([_is_missing(one) for one in values], dtype=np.bool_)
    return np.zeros(values.shape, dtype=np.bool_)


def is_sequence(value: Any) -> bool:
    """Whether the value has a length and an order, and is no text."""
    other = isinstance(value, str | bytes | Mapping | Set)
    return hasattr(value, "__len__") and hasattr(value, "__iter__") and not other


def shown(value: Any) -> str:
    """A value on one line, cut after forty characters."""
    text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    return text if len(text) <= 40 else f"{text[:40]}..."


def _not_numbers(whose: str, values: Array) -> UserError:
    """The sentence about a column of something else, by the first value that is no number."""
    if not values.ndim:
        return UserError(f"{whose} is {shown(values[()])}, expected an array with one number per sample.")
    rows = enumerate(values.reshape(len(values), -1))
    odd = next(((row, value) for row, line in rows for value in line if not _is_number(value)), None)
    if odd is None:
        advice = "give for example np.asarray(column, dtype=float)"
        return UserError(f"{whose} holds numbers as Python objects, expected an array of numbers; {advice}.")
    row, value = odd
    if _is_missing(value):
        advice = "fill it in or leave the sample out"
    elif isinstance(value, str | bytes):
        advice = "number the distinct texts with np.unique(column, return_inverse=True)[1]"
        if not whose.startswith("Ragged"):
            advice += ", or give the table to Federation.from_frame"
    elif isinstance(value, _TIMES):
        advice = "turn times t into numbers, for example (t - t.min()) / np.timedelta64(1, 'D')"
    elif not is_sequence(value):
        advice = "convert the column, for example with np.asarray(column, dtype=float)"
    elif whose == "label":
        advice = "give one label per sample"
    else:
        advice = "for sequences of differing lengths write fedslice.Ragged.from_lists(column)"
    return UserError(f"{whose} row {row} is {shown(value)}, expected a number; {advice}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, _TIMES) and not _is_missing(value)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)  # noqa: PLR0124 (which NaN and NaT do)
    except TypeError:  # pandas.NA does not say
        return True
    except ValueError:  # an array says it of each of its values
        return False
