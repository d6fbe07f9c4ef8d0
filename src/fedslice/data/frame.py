"""Columns of a table as features, labels, clients and times: texts become ids, numbers stay numbers.

What a column becomes follows from its type and from what :meth:`Federation.from_frame` was told of it; anything that
cannot become a feature is refused by the column's name.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.data.columns import Array
from fedslice.data.roles import Roles
from fedslice.data.samples import Feature
from fedslice.data.split import Ints
from fedslice.data.values import Column, Kind
from fedslice.data.vocabulary import Vocabulary


class Frame:
    """A table whose columns have roles."""

    def __init__(self, table: pl.DataFrame, roles: Roles):
        self.roles = roles
        roles.check(table.columns)
        if not len(table):
            raise UserError("the table has no rows; give at least one sample.")
        chosen = roles.chosen(table.columns)
        declared = {name for group in roles.shared for name in group}
        self._columns = {
            name: Column(table[name], roles.fill, roles.lists.get(name), name in declared)
            for name in [*roles.own.values(), *chosen]
        }
        self._features = chosen

    def clients(self) -> tuple[Array, Ints]:
        """The distinct clients in order, and each sample's place among them."""
        return self._columns[self.roles.client].clients()

    def order(self) -> Ints | None:
        """All samples from the earliest to the latest, or ``None`` without a column of times."""
        if self.roles.time is None:
            return None
        return np.argsort(self._columns[self.roles.time].times(), kind="stable")

    def marked(self) -> NDArray[np.bool_]:
        """The column that marks the test samples."""
        assert self.roles.test is not None
        return self._columns[self.roles.test].booleans()

    def label(self) -> tuple[Tensor, Vocabulary | None]:
        """Labels [n], numbers or classes, and the vocabulary of the classes."""
        return self._columns[self.roles.label].label(self.roles.classes)

    def features(self, train: NDArray[np.bool_]) -> tuple[dict[str, Feature], dict[str, Vocabulary]]:
        """Features by name, and the vocabularies of those that are ids, from the samples to train on.

        To be asked for once: a column is let go of as soon as it is a feature, which halves what a large file takes.
        """
        grouped = set(self.roles.grouped)
        vocabularies = self._vocabularies(train)
        given: dict[str, Feature] = {}
        for name, members in self.roles.dense.items():
            given[name] = torch.stack([self._columns.pop(member).numbers(f"dense[{name!r}]") for member in members], 1)
        for name in self._features:
            if name not in grouped:
                given[name] = self._columns.pop(name).feature(vocabularies.get(name))
        if not given:
            raise UserError("no column is left for features beside client, label, time and test; give one at least.")
        return given, vocabularies

    def _vocabularies(self, train: NDArray[np.bool_]) -> dict[str, Vocabulary]:
        """One for each column of ids; columns declared together share one."""
        groups = [group for group in self.roles.shared if set(group) & set(self._features)]
        alone = [n for n in self._features if self._columns[n].kind is Kind.IDS and not any(n in g for g in groups)]
        found: dict[str, Vocabulary] = {}
        for group in [*groups, *((name,) for name in alone)]:
            columns = [self._columns[name] for name in group]
            if len({column.dtype for column in columns}) > 1:
                types = ", ".join(f"{column.name!r} {column.dtype}" for column in columns)
                raise UserError(f"ids that share a vocabulary are of different types ({types}); convert one of them.")
            seen = pl.concat([column.among(train) for column in columns])
            if self.roles.min_count > 1:
                counts = seen.value_counts(name="count")
                seen = counts.filter(pl.col("count") >= self.roles.min_count)[seen.name]
            found |= dict.fromkeys(group, Vocabulary(seen))
        return {name: found[name] for name in self._features if name in found}
