"""As much of pandas as a federation reads, for machines without it: its types, NaN for missing values."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl


class Series:
    def __init__(self, values: np.ndarray[Any, Any]):
        self.values = values

    def to_numpy(self) -> np.ndarray[Any, Any]:
        return self.values

    def isna(self) -> "Series":
        if self.values.dtype == object:
            gone = [one is None or (isinstance(one, float) and math.isnan(one)) for one in self.values]
            return Series(np.array(gone, bool))
        if self.values.dtype.kind in "mM":
            return Series(np.isnat(self.values))
        return Series(np.isnan(self.values) if self.values.dtype.kind == "f" else np.zeros(len(self.values), bool))


class DataFrame:
    def __init__(self, columns: dict[Any, list[Any]]):
        self.columns = list(columns)
        self._columns = {name: Series(_stored(values)) for name, values in columns.items()}

    def __getitem__(self, name: Any) -> Series:
        return self._columns[name]

    @classmethod
    def of(cls, frame: pl.DataFrame) -> "DataFrame":
        return cls({name: frame[name].to_list() for name in frame.columns})


def _stored(values: list[Any]) -> np.ndarray[Any, Any]:
    kinds = {type(one) for one in values}
    if kinds <= {int, float, type(None)} and kinds & {int, float}:
        return np.array([np.nan if one is None else one for one in values])
    if kinds == {bool}:
        return np.array(values)
    if {kind.__name__ for kind in kinds} == {"datetime"}:
        return np.array(values, "datetime64[s]")
    stored = np.empty(len(values), object)
    stored[:] = [np.nan if one is None else np.array(one) if isinstance(one, list) else one for one in values]
    return stored


def module() -> ModuleType:
    """What ``sys.modules["pandas"]`` is."""
    found = ModuleType("pandas")
    found.DataFrame = DataFrame  # type: ignore[attr-defined]
    return found
