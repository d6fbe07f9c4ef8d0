"""Runs for TensorBoard: an event file per run, whose scalars are the rows of the log.

The package ``tensorboard`` is optional and slow to import, so nothing here asks for it before an `Events` is made.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedslice.errors import UserError
from fedslice.runs.naming import short_names
from fedslice.runs.reading import Run

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_COSTS = ("up_bytes", "down_bytes", "seconds")


class Events:
    """The events of one run, in a folder of their own.

    A resumed run writes rows again that came after its checkpoint. So every session has a file of its own that
    begins by declaring what came at its first step or later void, which is how TensorBoard knows a restart. The file is
    made with the first row: a folder inside a run directory must not be there before the run.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "TensorBoard events need the package tensorboard, which is not installed; "
                "install it with: pip install fedslice[tensorboard]"
            ) from None
        self._begin = SummaryWriter
        self._folder = folder
        self._settings = settings
        self._writer: SummaryWriter | None = None

    def row(self, row: Mapping[str, Any]) -> None:
        """Write one row of the log, and return when a reader can see it. A metric that is no number is left out."""
        step = row["round"]
        if self._writer is None:
            self._writer = self._session(step)
        for name, value in row.items():
            if name != "round" and isinstance(value, int | float) and math.isfinite(value):
                self._writer.add_scalar(tag(name), value, step)
        self._writer.flush()

    def close(self) -> None:
        """End the session."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _session(self, step: int) -> SummaryWriter:
        goes_on = step > 0 and any(self._folder.glob("events.out.tfevents.*"))
        writer = self._begin(str(self._folder), purge_step=step)
        if not goes_on:
            writer.add_text("settings", textwrap.indent(json.dumps(self._settings, indent=2), " " * 4), step)
        return writer


def tag(name: str) -> str:
    """A column's name among TensorBoard's, which groups by what comes before the slash.

    >>> tag("test_auc"), tag("up_bytes"), tag("rejected")
    ('test/auc', 'cost/up_bytes', 'rejected')
    """
    if name in _COSTS:
        return f"cost/{name}"
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if group in ("train", "test") and rest else name


def export(runs: Sequence[Run], folder: Path) -> None:
    """Write the events of runs that exist, each to a folder below this one; what an earlier export wrote is void."""
    for run, name in zip(runs, short_names([run.path for run in runs]), strict=True):
        with closing(Events(folder / name, run.config)) as events:
            for row in run.rows:
                events.row(row)
