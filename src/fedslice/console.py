"""What a person reads: progress, tables, and numbers with units. All of it goes to standard error or the table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

Document = dict[str, Any]


class Follow:
    """Progress of one run: a bar with the time left and the newest metrics on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, title: str, rounds: int):
        self._console = console
        self._title = title
        self._rounds = rounds
        self._began = time.monotonic()
        self._first: int | None = None
        self._live = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task(title, total=rounds, metrics="")

    def __enter__(self) -> Self:
        if self._live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def round(self, done: int) -> None:
        """A round is over."""
        if self._first is None:
            self._first = done
        self._bar.update(self._task, completed=done)

    def row(self, row: Document) -> None:
        """An evaluation is there."""
        words = "  ".join(f"{name} {value(name, row[name])}" for name in row if name.startswith(("train_", "test_")))
        self._bar.update(self._task, metrics=words)
        if not self._live:
            self._console.print(f"{self._title}  round {row['round']}/{self._rounds}  {words}{self._left(row)}")

    def _left(self, row: Document) -> str:
        done = row["round"] - (self._first or 0)
        if done <= 0 or row["round"] >= self._rounds:
            return ""
        left = (time.monotonic() - self._began) / done * (self._rounds - row["round"])
        return f"  {left:.0f} s left"


def value(name: str, number: Any) -> str:
    """A number as a person reads it."""
    if number is None:
        return "-"
    if name.endswith("_bytes") or "_bytes_" in name:
        return size(number)
    if name == "seconds":
        return f"{number:.1f} s"
    return f"{number:.4f}" if isinstance(number, float) and abs(number) < 10 else f"{number:,.0f}"


def size(count: float) -> str:
    """Bytes in a readable unit.

    >>> size(1_500_000)
    '1.50 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def run_table(document: Document) -> Table:
    """The metrics of one run, at most a screenful of rows."""
    rows = document["metrics"]
    step = max(1, -(-len(rows) // 20))
    shown = rows[:-1:step] + rows[-1:]
    title = f"{document['recipe']} on {document['task']}, seed {document['seed']} ({document['source']})"
    out = _table(title, list(rows[-1]))
    for row in shown:
        out.add_row(*(value(name, row[name]) for name in rows[-1]))
    return out


def compare_table(document: Document) -> Table:
    """The comparison, one line per recipe."""
    rows = document["table"]
    several = len(rows[0]["seeds"]) > 1
    seeds = ", ".join(map(str, rows[0]["seeds"]))
    title = f"{document['task']}, seed{'s' if several else ''} {seeds} ({document['runs'][0]['source']})"
    scores = [name for name in rows[0] if name.startswith(("train_", "test_")) and not name.endswith("_std")]
    columns = ["recipe"]
    if "target" in rows[0]:
        columns += [f"rounds to {rows[0]['target']}", "up to target", "down to target"]
    out = _table(title, [*columns, *scores, "up_bytes", "down_bytes", "seconds"])
    for row in rows:
        cells = [row["recipe"]]
        if "target" in row:
            total = len(row["seeds"])
            missed = f"{row['reached']} of {total} reached" if row["reached"] else "not reached"
            rounds = row["rounds_to_target"]
            cells += [missed if rounds is None else value("round", rounds)]
            cells += [value("up_bytes", row["up_bytes_to_target"]), value("down_bytes", row["down_bytes_to_target"])]
        for name in scores:
            spread = f" ±{row[name + '_std']:.4f}" if row.get(name + "_std") is not None else ""
            cells.append(value(name, row[name]) + spread)
        out.add_row(*cells, *(value(name, row[name]) for name in ("up_bytes", "down_bytes", "seconds")))
    return out


def inspect_tables(found: Document) -> list[Table]:
    """What a task looks like."""
    main = Table(title=f"{found['task']} ({found['source']})", show_header=False, title_justify="left")
    for name, content in found.items():
        if name in ("task", "source", "tables"):
            continue
        text = _spread(name, content) if isinstance(content, dict) else value(name, content)
        main.add_row(name.replace("_", " "), text)
    shown = [main]
    for table in found["tables"]:
        part = Table(title=", ".join(table["tables"]), show_header=False, title_justify="left")
        part.add_row("indexed by", ", ".join(table["features"]))
        for name, content in table.items():
            if name in ("tables", "features"):
                continue
            text = _spread(name, content) if isinstance(content, dict) else value(name, content)
            if name == "sparsity":
                text = f"{content:.2%}"
            part.add_row(name.replace("_", " "), text)
        shown.append(part)
    return shown


def list_tables(found: Document) -> list[Table]:
    """Recipes by their parts; tasks by what they need."""
    recipes = _table("recipes", ["recipe", "select", "slices", "local", "codec", "combine", "server"], left=True)
    for row in found["recipes"]:
        recipes.add_row(*row.values())
    tasks = _table("tasks", ["task", "what it is", "data it needs", "options (--set)"], left=True)
    for row in found["tasks"]:
        tasks.add_row(row["task"], row["about"], row["needs"], ", ".join(row["options"]))
    return [recipes, tasks]


def _spread(name: str, spread: Document) -> str:
    return "  ".join(f"{word} {value(name, number)}" for word, number in spread.items())


def _table(title: str, columns: Sequence[str], left: bool = False) -> Table:
    out = Table(title=title, title_justify="left")
    for position, column in enumerate(columns):
        out.add_column(column.replace("_", " "), justify="left" if left or position == 0 else "right")
    return out
