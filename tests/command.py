"""The command line as a user calls it, in this process (fast) or as a process of its own."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedslice import cli
from fedslice.config import Plan
from fedslice.runs.callbacks import Callback, RunState
from fedslice.runs.execute import execute as train

SCRIPT = Path(sys.executable).with_name("fedslice")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}

# A federation that trains in a moment.
TINY = ("clients=30", "items=40", "samples=12", "factors=3")
SMALL = ("hotcold", "--rounds", "6", "--cohort", "6", "--eval-every", "2", "--set", *TINY)


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output; anything beside it is a mistake."""
        assert self.code == 0, self.err
        assert self.out.endswith("}\n")
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of a run, without the one that differs from run to run."""
        return without_seconds(self.document)


def fedslice(*words: object) -> Done:
    """Call the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err), patch("sys.argv", ["fedslice", *map(str, words)]):
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def process(*words: object, cwd: Path) -> Done:
    """Call the installed command."""
    done = subprocess.run(
        [SCRIPT, *map(str, words)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Told(Callback):
    """Hands rounds, the first one included, and rows on to functions."""

    def __init__(self, on_round: Callable[[int], None], on_row: Callable[[dict[str, Any]], None]):
        self._on_round = on_round
        self._on_row = on_row

    def on_start(self, run: RunState) -> None:
        self._on_round(run.round)

    def on_round(self, run: RunState) -> None:
        self._on_round(run.round)

    def on_evaluation(self, run: RunState, row: Mapping[str, Any]) -> None:
        self._on_row(dict(row))


def execute(
    plan: Plan,
    out: Path,
    *,
    resume: bool,
    checkpoint_seconds: float = 30.0,
    on_round: Callable[[int], None] = lambda _: None,
    on_row: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """The document of a run."""
    told = Told(on_round, on_row)
    return train(plan, out, resume=resume, checkpoint_seconds=checkpoint_seconds, callbacks=[told]).document()


def without_seconds(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in document["metrics"]]
