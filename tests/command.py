"""The command line as a user calls it, in this process (fast) or as a process of its own."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedslice import cli

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


def without_seconds(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in document["metrics"]]
