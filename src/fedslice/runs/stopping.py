"""Conditions on a run's log: a target to reach, and stopping where nothing gets better.

A condition looks at the rows of the log and at nothing else, so a run that was killed stops where it would have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fedslice.core.errors import UserError, shown, unknown
from fedslice.schema import Columns, find

Row = Mapping[str, Any]

_TARGET = re.compile(r"\s*([^\s=<>]*)\s*(>=|<=|==|=|>|<)\s*(.*?)\s*")
_PATIENCE = re.compile(r"\s*([^\s=<>]+)((?:\s+\w+\s*=\s*\S+)+)\s*")


class Stop(Protocol):
    """A condition that ends a run at an evaluation."""

    def bound(self, columns: Columns) -> Stop:
        """Return the condition for a log with these columns; refuse a metric that is not among them."""

    def reason(self, rows: Sequence[Row]) -> str | None:
        """Return why the run ends after these rows, oldest first; ``None`` if it goes on."""


@dataclass(frozen=True)
class Target:
    """A metric and the value to reach: from above if less of it is better, else from below.

    Args:
        metric: A column of the log.
        value: The value to reach.
        lower: Whether less is better; ``None`` leaves that to the metric's declaration, or else its name.
        strict: Whether the value itself is not enough.

    Example:
        >>> Target.parse("test_rmse < 0.9", {}).reached({"test_rmse": 0.9})
        False
    """

    metric: str
    value: float
    lower: bool | None = None
    strict: bool = False

    @classmethod
    def parse(cls, text: str, columns: Columns | None = None, option: str = "--target") -> Target:
        """From ``metric=value``, or with ``>=``, ``<=``, ``>`` or ``<``. The metric is one of the columns, if given."""
        found = _TARGET.fullmatch(text)
        name, sign, number = found.groups() if found else (text.strip(), "=", "")
        if columns and name not in columns:
            raise unknown("metric", name, columns)
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"{option} {text!r}: {number!r} is not a number; write for example {name}=0.6.")
        lower = None if sign in ("=", "==") else sign in ("<", "<=")
        return cls(name, value, lower, sign in ("<", ">")).declared(columns or {})

    def declared(self, columns: Columns) -> Target:
        """Return the target with the metric's direction, unless it has one."""
        known = find(self.metric, columns).lower_is_better if self.metric in columns else None
        return replace(self, lower=known) if self.lower is None else self

    @property
    def from_above(self) -> bool:
        """Whether less of the metric is better."""
        return bool(find(self.metric).lower_is_better) if self.lower is None else self.lower

    @property
    def sign(self) -> str:
        """The comparison."""
        return ("<" if self.from_above else ">") + ("" if self.strict else "=")

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.value!r}"

    def reached(self, row: Row) -> bool:
        """Return whether this row reaches it; a metric that is undefined or infinite there does not."""
        found = row.get(self.metric)
        if found is None or not abs(found) < math.inf or (self.strict and found == self.value):
            return False
        return bool(found <= self.value if self.from_above else found >= self.value)

    def bound(self, columns: Columns) -> Target:
        """The condition for a log with these columns."""
        if self.metric not in columns:
            raise unknown("metric", self.metric, columns)
        return self.declared(columns)

    def reason(self, rows: Sequence[Row]) -> str | None:
        """That the newest row reaches it."""
        if not rows or not self.reached(rows[-1]):
            return None
        return f"{self} is reached: {self.metric} is {rows[-1][self.metric]:.6g}"


@dataclass(frozen=True)
class EarlyStopping:
    """End a run when a metric has not become better for a number of evaluations.

    Args:
        metric: A column of the log, for example ``"test_auc"``.
        patience: Evaluations without a gain after which the run ends.
        min_delta: By how much a value must be better than the best so far to be a gain.
        lower: Whether less is better; ``None`` leaves that to the metric's declaration.

    Example:
        >>> EarlyStopping("test_loss", patience=2).reason([{"test_loss": v} for v in (3, 1, 2, 2)])
        'test_loss has not improved for 2 evaluations'
    """

    metric: str
    patience: int = 5
    min_delta: float = 0.0
    lower: bool | None = None

    def __post_init__(self) -> None:
        if type(self.patience) is not int or self.patience < 1:
            raise UserError(f"EarlyStopping: patience={shown(self.patience)}; give a number of evaluations from 1 on.")
        if not isinstance(self.min_delta, int | float) or not 0 <= self.min_delta < math.inf:
            raise UserError(f"EarlyStopping: min_delta={shown(self.min_delta)}; give a number from 0 on.")

    def __str__(self) -> str:
        more = f" min_delta={self.min_delta!r}" if self.min_delta else ""
        return f"{self.metric} patience={self.patience}{more}"

    def bound(self, columns: Columns) -> EarlyStopping:
        """The condition for a log with these columns."""
        if self.metric not in columns:
            raise unknown("metric", self.metric, columns)
        known = find(self.metric, columns).lower_is_better
        return replace(self, lower=bool(known)) if self.lower is None else self

    def reason(self, rows: Sequence[Row]) -> str | None:
        """That the newest rows bring no gain. A value that is undefined is none."""
        lower = find(self.metric).lower_is_better if self.lower is None else self.lower
        best, waited = None, 0
        for row in rows:
            found = row.get(self.metric)
            if found is not None and math.isfinite(found):
                gain = math.inf if best is None else (best - found if lower else found - best)
                if gain > self.min_delta:
                    best, waited = found, 0
                    continue
            waited += 1
        if waited < self.patience:
            return None
        counted = f"{self.patience} evaluation{'s' * (self.patience > 1)}"
        return f"{self.metric} has not improved for {counted}"


def parse(condition: Any, columns: Columns) -> Stop:
    """Return a condition for a log with these columns, from its text or from itself."""
    if not isinstance(condition, str):
        if not all(callable(getattr(condition, name, None)) for name in ("bound", "reason")):
            raise UserError(f"stop={shown(condition)}: expected a text such as 'test_auc >= 0.7' or an EarlyStopping.")
        found: Stop = condition.bound(columns)
        return found
    patience = _PATIENCE.fullmatch(condition)
    if patience is None:
        return Target.parse(condition, columns, "stop=")
    settings: dict[str, Any] = {}
    for word in re.sub(r"\s*=\s*", "=", patience[2]).split():
        name, _, number = word.partition("=")
        if name not in ("patience", "min_delta"):
            raise unknown(f"setting of stop={condition!r}", name, ("patience", "min_delta"))
        try:
            settings[name] = int(number) if name == "patience" else float(number)
        except ValueError:
            raise UserError(
                f"stop={condition!r}: {name} is {number!r}; write for example {patience[1]} patience=5."
            ) from None
    return EarlyStopping(patience[1], **settings).bound(columns)
