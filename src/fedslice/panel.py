"""A chart that a part of a recipe, or a task, brings to the report: data and two axes, nothing about drawing."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

Cell = int | float | str | None
LARGEST = 1e300  # beyond it a number is no measurement, and sums of such numbers overflow
_BINS = 30
_STEPS = 10**6  # values closer than this share of their range are one


class Panel(BaseModel):
    """Rows of named cells, of which ``x`` and ``y`` (and ``color``, if there are several curves) are drawn.

    The names of the columns are the titles of the axes. Runs whose panels are equal show one of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    note: str = ""  # a sentence below the title: what is seen, with its main number
    mark: Literal["bar", "line", "point"]
    x: str
    y: str
    color: str | None = None
    log: list[Literal["x", "y"]] = Field(default_factory=list)  # axes in powers of ten
    rows: list[dict[str, Cell]] = Field(max_length=20_000)

    @model_validator(mode="after")
    def _columns(self) -> Panel:
        for name in (self.x, self.y, *([self.color] if self.color else [])):
            if any(name not in row for row in self.rows):
                raise ValueError(f"a row has no {name!r}")
        return self


def histogram(title: str, values: Tensor, x: str, y: str = "clients", note: str = "") -> Panel:
    """Return a histogram of ``values`` with bins of one width.

    Sizes come in steps, those of a row or a channel. A bin holds a whole number of steps: else some would hold one
    more than their neighbours, and the histogram had teeth.
    """
    values = values.detach().cpu().double()
    low, high = (float(value) for value in values.aminmax())
    gaps = values.unique().diff()
    step = max(float(gaps.min()), (high - low) / _STEPS) if len(gaps) else 1.0
    places = ((values - low) / step).round().long()
    steps = -(-(int(places.max()) + 1) // _BINS)
    rows: list[dict[str, Cell]] = [
        {x: min(low + (k * steps + (steps - 1) / 2) * step, high), y: count}
        for k, count in enumerate(torch.bincount(places // steps).tolist())
    ]
    return Panel(title=title, note=note, mark="bar", x=x, y=y, rows=rows)
