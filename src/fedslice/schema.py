"""Columns of a run's log: what each is called, its unit, its kind, and which direction is better.

Everything that shows or compares numbers of a run asks here: tables, charts, targets, the terminal. Metrics and
instruments declare their own columns, and a run keeps them in ``columns.json``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["round", "score", "diagnostic", "cost", "count"]
Unit = Literal["", "B", "s", "%"]

_LOWER = frozenset({"loss", "rmse", "mse", "mae"})
_SCORES = ("train_", "test_", "personal_", "stale_", "tuned_")
_DIAGNOSTICS = ("gradient_", "elementwise_", "trajectory_")


@dataclass(frozen=True)
class Column:
    """A column of a log.

    Args:
        name: Its key in the log's rows.
        kind: ``"score"`` tells how good the model is, ``"diagnostic"`` something else about it, ``"cost"`` what the
            run has used, ``"count"`` what it has counted, ``"round"`` where it is.
        unit: ``"B"`` (bytes), ``"s"`` (seconds), ``"%"`` (a share of one), or nothing.
        lower_is_better: Whether less is better, or ``None`` where neither is.
        heading: Words for people; the name in words by default.
        scientific: Whether its size says more than its digits, as of a squared norm.
    """

    name: str
    kind: Kind = "count"
    unit: Unit = ""
    lower_is_better: bool | None = None
    heading: str = ""
    scientific: bool = False

    @property
    def measured(self) -> bool:
        """Whether the column tells something about the model, and not about the run."""
        return self.kind in ("score", "diagnostic")

    @property
    def words(self) -> str:
        """The heading.

        >>> Column("test_auc").words
        'test auc'
        """
        return self.heading or self.name.replace("_", " ")

    @property
    def title(self) -> str:
        """The heading with its unit, for an axis, whose numbers may have none.

        >>> find("up_bytes").title
        'uploaded bytes'
        """
        return f"{self.words} bytes" if self.unit == "B" else self.words

    def text(self, number: Any) -> str:
        """Return a number as a person reads it; a dash where there is none.

        >>> Column("test_auc", "score").text(0.61234), Column("round").text(13.5), Column("round").text(None)
        ('0.6123', '13.5', '-')
        """
        if number is None or math.isnan(number):
            return "-"
        match self.unit:
            case "B":
                return size(number)
            case "s":
                return f"{number / 3600:,.2f} h" if number >= 3600 else f"{number:,.1f} s"
            case "%":
                return f"{number:.1%}"
        if isinstance(number, float) and self.measured:
            if self.scientific:
                return f"{number:.3e}"
            return f"{number:.4f}" if abs(number) < 100 else f"{number:.4g}"
        return f"{number:,.1f}".removesuffix(".0")


Columns = Mapping[str, Column]

KNOWN: dict[str, Column] = {
    one.name: one
    for one in (
        Column("round", "round"),
        Column("rounds", "round", lower_is_better=True),
        Column("train_loss", "score", lower_is_better=True),
        Column("test_loss", "score", lower_is_better=True),
        Column("up_bytes", "cost", "B", True, "uploaded"),
        Column("down_bytes", "cost", "B", True, "downloaded"),
        Column("enrol_bytes", "cost", "B", True, "sent at enrolment"),
        Column("framing_bytes", "cost", "B", True, "headers"),
        Column("up_words", "cost", "", True, "uploaded words"),
        Column("clock", "cost", "s", True, "simulated time"),
        Column("seconds", "cost", "s", True, "computing time"),
        Column("rejected", "count", "", True, "rejected updates"),
        Column("t2a", "cost", "%", True, "time relative to the baseline"),
    )
}
"""The columns that every run logs, and those of comparisons."""


def find(name: str, declared: Columns | None = None) -> Column:
    """Return the column of this name: as declared, as every run has it, or, in a log that declares nothing, as its name
    says.

    >>> find("test_rmse").lower_is_better, find("test_auc").lower_is_better, find("up_bytes").unit
    (True, False, 'B')
    """
    column = (declared or {}).get(name) or KNOWN.get(name)
    if column is not None:
        return column
    if name.startswith(_DIAGNOSTICS):
        return Column(name, "diagnostic", scientific=name.endswith("norm2"))
    lower = named_lower(name)
    if name.startswith(_SCORES):
        return Column(name, "score", lower_is_better=lower)
    return Column(name, "cost" if "bytes" in name else "count", "B" if "bytes" in name else "", lower or None)


def named_lower(name: str) -> bool:
    """Return whether less of a metric is better by its name alone: one that has the word loss, rmse, mse or mae."""
    return not _LOWER.isdisjoint(name.split("_"))


def value(name: str, number: Any, declared: Columns | None = None) -> str:
    """Return a number of a column as a person reads it.

    >>> value("test_auc", 0.61234), value("up_bytes", 45_720_000), value("round", 13.5), value("test_auc", math.nan)
    ('0.6123', '45.7 MB', '13.5', '-')
    """
    return find(name, declared).text(number)


def heading(name: str, declared: Columns | None = None) -> str:
    """Return a column's heading."""
    return find(name, declared).words


def size(count: float) -> str:
    """Bytes in a readable unit, three digits.

    >>> size(999), size(1_500_000), size(45_720_000), size(999_999)
    ('999 B', '1.50 MB', '45.7 MB', '1.00 MB')
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:,.{digits}f} {units[0]}"
