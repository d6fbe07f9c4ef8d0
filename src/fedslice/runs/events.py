"""Runs for TensorBoard: an event file per run, whose scalars are the rows of the log.

The package ``tensorboard`` is optional and slow to import, so nothing here asks for it before an `Events` is made.
"""

from __future__ import annotations

import io
import json
import math
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedslice.core.errors import UserError
from fedslice.disk import writing
from fedslice.runs.naming import short_names
from fedslice.runs.run import Run
from fedslice.schema import find

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event


class Events:
    """The events of one run, in a folder of their own.

    A resumed run writes rows again that came after its checkpoint. So every session has a file of its own that
    begins by declaring what came at its first step or later void, which is how TensorBoard knows a restart. The file is
    made with the first row: a folder inside a run directory must not be there before the run. Rows are appended to it
    one by one and not by the package's own writer, whose thread ends with a traceback where the disk is full.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise UserError(
                "TensorBoard events need the package tensorboard, which is not installed; "
                "install it with: pip install fedslice[tensorboard]"
            ) from None
        self._folder = folder
        self._settings = settings
        self._file: Path | None = None

    def row(self, row: Mapping[str, Any]) -> None:
        """Write one row of the log, and return when a reader can see it. A metric that is no number is left out."""
        from tensorboard.compat.proto.event_pb2 import Event
        from torch.utils.tensorboard.summary import scalar

        step = row["round"]
        events = [] if self._file is not None else self._session(step)
        for name, value in row.items():
            if name != "round" and isinstance(value, int | float) and math.isfinite(value):
                events.append(Event(step=step, summary=scalar(tag(name), value)))
        self._append(events)

    def close(self) -> None:
        """End the session; another row would begin a new one."""
        self._file = None

    def _session(self, step: int) -> list[Event]:
        """Name the file; the events with which it begins."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard.summary import text

        goes_on = step > 0 and any(self._folder.glob("events.out.tfevents.*"))
        second, rest = divmod(time.time_ns(), 10**9)
        self._file = self._folder / f"events.out.tfevents.{second:010d}.{rest:09d}"  # sessions are read in this order
        events = [
            Event(file_version="brain.Event:2"),
            Event(step=step, session_log=SessionLog(status=SessionLog.START)),
        ]
        if not goes_on:
            settings = textwrap.indent(json.dumps(self._settings, indent=2), " " * 4)
            events.append(Event(step=step, summary=text("settings", settings)))
        return events

    def _append(self, events: Sequence[Event]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._file is not None
        records = io.BytesIO()
        writer = RecordWriter(records)
        for event in events:
            event.wall_time = time.time()
            writer.write(event.SerializeToString())
        with writing(self._file):
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(records.getvalue())


def tag(name: str) -> str:
    """A column's name among TensorBoard's, which groups by what comes before the slash.

    >>> tag("test_auc"), tag("up_bytes"), tag("rejected")
    ('test/auc', 'cost/up_bytes', 'rejected')
    """
    if find(name).kind == "cost":
        return f"cost/{name}"
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if group in ("train", "test") and rest else name


def export(runs: Sequence[Run], folder: Path) -> None:
    """Write the events of runs that exist, each to a folder below this one; what an earlier export wrote is void."""
    for run, name in zip(runs, short_names([run.directory for run in runs]), strict=True):
        with closing(Events(folder / name, run.config)) as events:
            for row in run.rows:
                events.row(row)
