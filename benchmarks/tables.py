"""Federations from tables of a million and of twenty million rows: rows per second, and memory beside the table's own.

The table has text ids of clients and items, lists of ids, two columns of numbers, a time and a number to predict. Each
size has a process of its own.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedslice import Federation

SIZES = (1_000_000, 20_000_000)
SOURCES = ("frame", "parquet")
CLIENTS, ITEMS, TAGS = 200_000, 100_000, 50


def table(rows: int) -> pl.DataFrame:
    """Rows of 200,000 clients."""
    chance = np.random.default_rng(0)
    tags = chance.integers(0, TAGS, (rows, 2), np.int8)
    return pl.DataFrame(
        {
            "user": pl.Series(chance.integers(0, CLIENTS, rows)).cast(pl.String),
            "item": pl.Series(chance.zipf(1.3, rows) % ITEMS).cast(pl.String),
            "tags": pl.Series(tags).cast(pl.List(pl.Int64)),
            "age": chance.integers(18, 90, rows),
            "price": chance.random(rows),
            "when": chance.integers(0, 10**9, rows).astype("datetime64[us]"),
            "stars": chance.random(rows),
        }
    )


def measure(rows: int, source: str, folder: Path) -> dict[str, Any]:
    """One federation, from a frame in memory or from a file that another process wrote."""
    path = folder / "table.parquet"
    given: Any = path
    if source == "frame":
        given = table(rows)
    elif not path.exists():
        table(rows).write_parquet(path)
        return {}
    before, wall, cpu = _peak(), time.perf_counter(), time.process_time()
    federation = Federation.from_frame(given, client="user", label="stars", ids=["tags"], time="when")
    assert len(federation.train) + len(federation.test) == rows
    return {
        "rows": rows,
        "source": source,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "before_bytes": before,
        "peak_bytes": _peak(),
    }


def rows(repeats: int) -> list[dict[str, Any]]:
    """The quickest of so many repeats of each."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for count in SIZES:
            for source in SOURCES:
                each = [_apart(count, source, folder) for _ in range(repeats)]
                found.append(min(each, key=lambda row: float(row["seconds"])))
            Path(folder, "table.parquet").unlink()
    return found


def _apart(count: int, source: str, folder: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.tables", str(count), source, folder]
    while not (found := json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)):
        pass  # it wrote the file
    return dict(found)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))))
