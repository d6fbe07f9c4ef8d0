"""The directory of one run, which survives being killed at any instant.

    config.json             what determines the result; a directory belongs to one configuration for good
    environment.json        the software and hardware on which the run began
    origin.json             the command that makes this run, and its settings
    columns.json            the columns of the log: kind, unit, direction, heading
    module.safetensors      what of the model's state dict is not trained, and the names of all of it
    vocabularies.json       the values that ids and classes stand for, if the task has any
    panels.json             what task and recipe have to show in a report: at the beginning, then at the end
    metrics.jsonl           one row per line, on disk before the next step is taken
    clients.csv             a row per client, if instruments look at single clients; written when the run ends
    checkpoint.safetensors  the newest state, and how many rows of the log belong to it
    scratch                 what is too large for a checkpoint, which counts on it; removed when the run ends
    finished.json           written last: the run is complete, with what it can be checked by
    lock                    held by the process that writes the run, and released with its death

The log runs ahead of the checkpoint, never behind it, so to resume is to cut the log back to the checkpoint. Only a
process that ended without saving leaves rows behind its checkpoint; how many are cut is counted, and told.
"""

import csv
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.disk import read_bytes, reason, writing
from fedslice.panel import Panel
from fedslice.runs import checkpoint as checkpoints
from fedslice.runs.environment import describe
from fedslice.schema import Column

# The names of its files.
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
ORIGIN = "origin.json"
COLUMNS = "columns.json"
PANELS = "panels.json"
METRICS = "metrics.jsonl"
CLIENTS = "clients.csv"
_CHECKPOINT = "checkpoint.safetensors"
FINISHED = "finished.json"
MODULE = "module.safetensors"
VOCABULARIES = "vocabularies.json"
_REPLACED = (
    CONFIG,
    ENVIRONMENT,
    ORIGIN,
    COLUMNS,
    MODULE,
    VOCABULARIES,
    PANELS,
    METRICS,
    CLIENTS,
    _CHECKPOINT,
    FINISHED,
)
LOCK = "lock"
_SCRATCH = "scratch"
_ABSENT = object()

State = tuple[int, dict[str, Tensor], dict[str, Any]]  # of a checkpoint: round, tensors, meta
Accept = Callable[[State, list[dict[str, Any]]], None]


class RunDirectory:
    """One run on disk. Get it from `RunDirectory.open`, and leave it through `with` or `close`.

    >>> with RunDirectory.open(out, config, resume=True) as run:  # doctest: +SKIP
    ...     state = run.resume()
    ...     for t in range(state[0] + 1 if state else 0, rounds):
    ...         run.log({"round": t, "loss": loss})
    ...         run.checkpoint(t, tensors, meta={})
    ...     run.finish()
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._rows: int | None = None  # rows in the log; None while nothing may be appended to it
        self.cut = 0  # rows that resuming took off the log: they came after the checkpoint, and are computed again

    @classmethod
    def open(cls, path: Path, config: dict[str, Any], *, resume: bool) -> Self:
        """Begin a run at `path`, continue the unfinished one there, or open the finished one for reading."""
        wanted = json.loads(json.dumps(config, allow_nan=False))
        run = cls(path)
        run._refuse_strangers()
        run._refuse_other(wanted)
        if not run.finished:  # a finished run is only read: by many at once, and from a disk nobody may write to
            # Before the lock: it starts a process, which would inherit the lock and outlive a killed run by a moment.
            environment = describe()
            run._lock = _lock(path)
            try:
                run._begin(wanted, environment, resume)
            except BaseException:
                run.close()
                raise
        return run

    @property
    def finished(self) -> bool:
        """Whether the run is complete. A file that says so of another log, or of no log, is refused."""
        return self._ended() is not None

    @property
    def diverged(self) -> dict[str, Any] | None:
        """When a complete run diverged, as given to `finish`; None if it did not."""
        found = (self._ended() or {}).get("diverged")
        return found if isinstance(found, dict) else None

    @property
    def stopped(self) -> dict[str, Any] | None:
        """When and why a complete run ended before its last round; None if it did not."""
        found = (self._ended() or {}).get("stopped")
        return found if isinstance(found, dict) else None

    @property
    def scratch(self) -> Path:
        """A folder, which need not exist, for files that grow with the run."""
        return self.path / _SCRATCH

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of the log, oldest first."""
        return self._parsed(self._lines())

    def log(self, row: dict[str, Any]) -> None:
        """Append one row, and return when it is on disk. NaN and infinity, which JSON lacks, become null."""
        rows = self._writable()
        path = self.path / METRICS
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(row), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._rows = rows + 1

    def checkpoint(self, round: int, tensors: Mapping[str, Tensor], meta: dict[str, Any]) -> None:
        """Replace the checkpoint by the state after `round`; the rows logged so far belong to it."""
        bound = {**meta, "round": round, "metric_rows": self._writable()}
        checkpoints.save(self.path / _CHECKPOINT, tensors, bound)

    def origin(self, command: str, settings: Mapping[str, Any]) -> None:
        """Note the command that makes this run, and its settings as they were given."""
        self._writable()
        _write_json(self.path / ORIGIN, {"command": command, "settings": dict(settings)})

    def columns(self, columns: Sequence[Column]) -> None:
        """Note what the columns of the log are."""
        self._writable()
        _write_json(self.path / COLUMNS, [asdict(one) for one in columns])

    def vocabularies(self, text: str) -> None:
        """Note what ids and classes stand for, as :func:`fedslice.data.vocabulary.dumps` writes it."""
        self._writable()
        path = self.path / VOCABULARIES
        with writing(path), checkpoints.replacing(path) as fresh:
            fresh.write_text(text, encoding="utf-8")

    def panels(self, panels: Sequence[Panel]) -> None:
        """Replace what there is to show beside the metrics."""
        self._writable()
        _write_json(self.path / PANELS, [_finite(panel.model_dump(exclude_defaults=True)) for panel in panels])

    def clients(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Replace the table of clients; a cell whose number is NaN or infinite is empty."""
        self._writable()
        path = self.path / CLIENTS
        with writing(path), checkpoints.replacing(path) as fresh, fresh.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(columns)
            table.writerows(zip(*map(_finite, columns.values()), strict=True))

    def resume(self, accept: Accept = lambda *_: None) -> State | None:
        """The newest checkpoint as (round, tensors, meta), and the log cut back to it; None if there is none.

        Of a finished run this is the last state, and the log stays whole. Before anything is changed, a log whose
        checkpointed part is damaged is refused, and ``accept`` may refuse the state or the rows that belong to it.
        """
        found = self.state()
        if not self.finished:
            self._cut_log(found, accept)
        return found

    def state(self) -> State | None:
        """The newest checkpoint as (round, tensors, meta); None if there is none. Nothing is changed."""
        path = self.path / _CHECKPOINT
        state = checkpoints.load(path) if path.exists() else None
        if state is None:
            return None
        for name in ("round", "metric_rows"):
            _check_count(path, name, state[1].get(name))
        return state[1]["round"], *state

    @property
    def checkpoint_path(self) -> Path:
        """The path of the checkpoint, for messages."""
        return self.path / _CHECKPOINT

    @property
    def layout_path(self) -> Path:
        """The path of the entries of the model's state dict that are not trained."""
        return self.path / MODULE

    def finish(self, diverged: dict[str, Any] | None = None, stopped: dict[str, Any] | None = None) -> None:
        """Mark the run as complete. Nothing can be written to it from then on, so the lock is released."""
        digest = hashlib.sha256(read_bytes(self.path / METRICS)).hexdigest()
        found = {"metric_rows": self._writable(), "metrics_sha256": digest, "diverged": diverged, "stopped": stopped}
        shutil.rmtree(self.scratch, ignore_errors=True)
        _write_json(self.path / FINISHED, found)
        self.close()

    def close(self) -> None:
        """Let another process write this run. The lock file stays: removing it would let two processes in."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = self._rows = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, wanted: dict[str, Any], environment: dict[str, Any], resume: bool) -> None:
        """Everything that needs the lock. What was found before it was taken may have changed meanwhile."""
        self._refuse_other(wanted)
        if self.finished:
            self.close()
            return
        for name in _REPLACED:
            checkpoints.discard_partial(self.path / name)
        if not (self.path / CONFIG).exists():
            _write_json(self.path / CONFIG, wanted)
            self._cut_log(None, lambda *_: None)
        elif not resume:
            raise UserError(
                f"{self.path} holds an unfinished run with these settings; "
                "add --resume to continue it, or choose another --out"
            )
        if not (self.path / ENVIRONMENT).exists():
            _write_json(self.path / ENVIRONMENT, environment)

    def _refuse_strangers(self) -> None:
        """Never begin a run among files that are not ours; a run whose beginning was interrupted is ours."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, and a run needs a directory; choose another --out")
        if not self.path.exists():
            return
        found = {entry.name for entry in self.path.iterdir()}
        strangers = found - {LOCK, *map(checkpoints.partial_name, _REPLACED)}
        if strangers and CONFIG not in found:
            raise UserError(
                f"{self.path} holds {min(strangers)!r} but no run (no {CONFIG}); "
                "choose another --out, or an empty directory"
            )

    def _refuse_other(self, wanted: dict[str, Any]) -> None:
        path = self.path / CONFIG
        if not path.exists():
            return
        try:
            stored = json.loads(read_bytes(path))
            if not isinstance(stored, dict):
                raise ValueError("it is not an object")
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read ({reason(error)}); choose another --out") from error
        difference = _difference(stored, wanted, "")
        if difference is not None:
            key, there, here = difference
            raise UserError(
                f"{self.path} holds a run with other settings: {key} is {there} there and {here} here; "
                "choose another --out"
            )

    def _writable(self) -> int:
        if self._rows is None:
            raise RuntimeError(f"{self.path} is finished, closed, or not yet resumed: call resume() before writing")
        return self._rows

    def _cut_log(self, state: State | None, accept: Accept) -> None:
        if self._lock is None:
            raise RuntimeError(f"{self.path} is closed: open it again to resume the run")
        lines, rows = self._lines(), state[2]["metric_rows"] if state else 0
        if len(lines) < rows:
            raise UserError(
                f"{self.path / METRICS} has {len(lines)} rows, but its checkpoint was taken after {rows}; "
                "restore both from one copy, or delete both and the run starts over from its first round"
            )
        kept = self._parsed(lines[:rows])
        if state is not None:
            accept(state, kept)
        with writing(self.path / METRICS), checkpoints.replacing(self.path / METRICS) as fresh:
            fresh.write_bytes(b"".join(lines[:rows]))
        self._rows, self.cut = rows, len(lines) - rows

    def _ended(self) -> dict[str, Any] | None:
        """Return the record of the run's end, checked against the log; None if it has not ended."""
        path = self.path / FINISHED
        if not os.path.lexists(path):
            return None
        try:
            found = json.loads(read_bytes(path))
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(f"cannot be read ({reason(error)})") from error
        if not isinstance(found, dict) or "metric_rows" not in found:
            raise self._damaged("does not say how many rows the run has")
        lines = self._lines()
        if found["metric_rows"] != len(lines):
            raise self._damaged(f"counts {found['metric_rows']!r:.20} rows, but {METRICS} has {len(lines)}")
        rounds, last = self._rounds(), self._parsed(lines)[-1].get("round") if lines else None
        stopped = found.get("stopped")
        if isinstance(stopped, dict) and rounds is not None:
            rounds = stopped.get("round")
        if rounds is not None and last != rounds:
            raise self._damaged(f"calls a run of {rounds} rounds complete, but {METRICS} ends at round {last!r:.20}")
        log = read_bytes(self.path / METRICS) if lines else b""
        if found.get("metrics_sha256", digest := hashlib.sha256(log).hexdigest()) != digest:
            raise self._damaged(f"was written for another content of {METRICS}")
        return found

    def _damaged(self, what: str) -> UserError:
        return UserError(
            f"{self.path / FINISHED} {what}; restore both from a copy, or delete {FINISHED} and continue the run with "
            "--resume."
        )

    def _rounds(self) -> int | None:
        """Return the number of rounds in the configuration, if it can be read."""
        try:
            found = json.loads(read_bytes(self.path / CONFIG)).get("rounds")
        except (OSError, ValueError, RecursionError, AttributeError):
            return None  # told by those who need the configuration
        return found if type(found) is int else None

    def _lines(self) -> list[bytes]:
        """The complete lines of the log: what follows the last newline was cut off by a crash."""
        path = self.path / METRICS
        try:
            content = read_bytes(path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{path} cannot be read ({reason(error)}); choose another directory.") from error
        return [line + b"\n" for line in content.split(b"\n")[:-1]]

    def _parsed(self, lines: Sequence[bytes]) -> list[dict[str, Any]]:
        """Lines of the log as rows."""
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("expected an object")
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{self.path / METRICS}, line {number} is not JSON of a row ({error}); "
                    "restore the file from a copy, or start the run again in another --out"
                ) from error
            rows.append(row)
        return rows


def _lock(path: Path) -> int:
    """Take the run for this process. The system releases the lock when the process ends, however it ends."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"no run can be written to {path} ({error.strerror}); choose another --out") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(
            f"another process is writing the run in {path}; wait until it ends, or choose another --out"
        ) from None
    return descriptor


def _write_json(path: Path, value: dict[str, Any] | list[Any]) -> None:
    with writing(path), checkpoints.replacing(path) as fresh:
        fresh.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _check_count(path: Path, name: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise UserError(f"checkpoint {path}: {name} is {value!r:.40}, expected 0 or more; {checkpoints.REMEDY}")


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_finite(entry) for entry in value]
        case _:
            return value


def _difference(there: Any, here: Any, key: str) -> tuple[str, str, str] | None:
    """The first key, dotted, at which two JSON values differ, and what each has there.

    Scalars are compared as JSON text, in which 1 and true are not the same.
    """
    if type(there) is type(here) and isinstance(there, dict | list):
        left, right = _entries(there), _entries(here)
        for name in dict.fromkeys([*right, *left]):
            found = _difference(left.get(name, _ABSENT), right.get(name, _ABSENT), f"{key}.{name}" if key else name)
            if found is not None:
                return found
        return None
    texts = ["absent" if value is _ABSENT else json.dumps(value) for value in (there, here)]
    return None if texts[0] == texts[1] else (key, texts[0], texts[1])


def _entries(value: dict[str, Any] | list[Any]) -> dict[str, Any]:
    return value if isinstance(value, dict) else {str(index): entry for index, entry in enumerate(value)}
