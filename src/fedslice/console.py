"""What a person reads: progress, tables, and numbers with units."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedslice.compare import cadence
from fedslice.engines.choose import Choice
from fedslice.measure.instruments import is_measured

Document = dict[str, Any]
Shown = list[Text | Table]

_BAR = 40  # characters of a histogram's longest bar
_RUN_ROWS = 20  # lines of a run's table: a screenful
_NAMES = {
    "up_bytes": "up",
    "down_bytes": "down",
    "seconds": "time",
    "clock": "simulated",
    "t2a": "T2A",
}  # whose unit stands in the cell


class Display:
    """Something that moves on a terminal while a piece of work goes on; elsewhere it stands still."""

    def __init__(self, console: Console, live: Live):
        self._console = console
        self._live = live

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class Follow(Display):
    """Progress of one run: a bar with the time left and the newest metrics on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, title: str, rounds: int):
        self._title = title
        self._rounds = rounds
        self._began = 0.0
        self._first: int | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        self._task = self._bar.add_task(title, total=rounds)
        self._metrics = Text(no_wrap=True, overflow="ellipsis")
        super().__init__(console, Live(Group(self._bar, self._metrics), console=console, transient=True))

    def engine(self, choice: Choice) -> None:
        """Say so if the model forced an engine on the run."""
        if choice.forced:
            self._console.print(f"{self._title}: {choice.engine.label} engine, for {choice.reason}", soft_wrap=True)

    def round(self, done: int) -> None:
        """So many rounds are over; the first number is where the run begins or goes on."""
        if self._first is None:
            self._began, self._first = time.monotonic(), done
        self._bar.update(self._task, completed=done)

    def row(self, row: Document) -> None:
        """An evaluation is there."""
        words = "  ".join(f"{_heading(name)} {value(name, row[name])}" for name in row if is_measured(name))
        self._metrics.plain = words
        if not self._console.is_interactive:
            line = f"{self._title}  round {row['round']}/{self._rounds}  {words}{self._left(row['round'])}"
            self._console.print(line, soft_wrap=True)

    def _left(self, done: int) -> str:
        if self._first is None or done in (self._first, self._rounds):
            return ""
        left = (time.monotonic() - self._began) / (done - self._first) * (self._rounds - done)
        return f"  {left:.0f} s left" if left < 100 else f"  {left / 60:.0f} min left"


def show(parts: Iterable[Text | Table]) -> None:
    """Print titles and tables. No number is ever cut: a table that is too wide runs over the terminal's edge."""
    console = Console(highlight=False, markup=False, emoji=False)
    for part in parts:
        asked = Measurement.get(console, console.options.update(max_width=1000), part)
        numbers = isinstance(part, Table) and all(column.no_wrap for column in part.columns)
        console.width = max(console.width, asked.maximum if numbers else asked.minimum)
        console.print(part)
        if isinstance(part, Table):
            console.print()


def value(name: str, number: Any) -> str:
    """A number as a person reads it; a dash where there is none, or none that could be told.

    >>> value("test_auc", 0.61234), value("up_bytes", 45_720_000), value("round", 13.5), value("test_auc", math.nan)
    ('0.6123', '45.7 MB', '13.5', '-')
    """
    if number is None or math.isnan(number):
        return "-"
    if "bytes" in name:
        return size(number)
    if name == "seconds":
        return f"{number:,.1f} s"
    if name == "clock":
        return f"{number / 3600:,.2f} h" if number >= 3600 else f"{number:,.1f} s"
    if name == "t2a":
        return f"{number:.1%}"
    if isinstance(number, float) and is_measured(name):
        if name.endswith("norm2"):
            return f"{number:.3e}"
        return f"{number:.4f}" if abs(number) < 100 else f"{number:.4g}"
    return f"{number:,.1f}".removesuffix(".0")


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


def run_tables(document: Document) -> Shown:
    """The metrics of one run, at most a screenful of rows."""
    rows = document["metrics"]
    step = max(1, -(-len(rows) // _RUN_ROWS))
    shown = rows[:-1:step] + rows[-1:]
    columns = [name for name in rows[-1] if name != "rejected" or rows[-1][name]]
    table = _table(columns)
    for row in shown:
        table.add_row(*(value(name, row.get(name)) for name in columns))
    return [Text(f"{document['recipe']} on {document['task']}, seed {document['seed']}: {document['source']}"), table]


def compare_tables(document: Document) -> Shown:
    """When each recipe reached the target, and what it has at the end."""
    rows = document["table"]
    seeds = rows[0]["seeds"]
    several = f"mean of seeds {', '.join(map(str, seeds))} ± standard deviation"
    words = several if len(seeds) > 1 else f"seed {seeds[0]}"
    parts: Shown = [Text(f"{document['task']}, {words}: {document['runs'][0]['source']}")]
    if rows[0]["target"] is not None:
        every = cadence(document["runs"])
        seen = f", seen at evaluations every {every:,} rounds" if every > 1 else ""
        parts += [Text(f"until {rows[0]['target']}{seen}"), _target_table(rows)]
    parts += [Text(f"after {value('round', rows[0]['round'])} rounds"), _end_table(rows)]
    return parts


def _target_table(rows: Sequence[Document]) -> Table:
    names = [name for name in ("rounds", "up_bytes", "down_bytes", "clock") if f"{name}_to_target" in rows[0]]
    relative = ["t2a"] if "t2a" in rows[0] else []
    table = _table(["recipe", *names, *relative, "seeds that reached it"])
    for row in rows:
        costs = [_spread(name, row.get(f"{name}_to_target"), row.get(f"{name}_to_target_std")) for name in names]
        costs += [value(name, row[name]) for name in relative]
        table.add_row(row["recipe"], *costs, f"{row['reached']} of {len(row['seeds'])}")
    return table


def _end_table(rows: Sequence[Document]) -> Table:
    scores = [name for name in rows[0] if is_measured(name) and not name.endswith("_std")]
    costs = [
        name
        for name in ("up_bytes", "down_bytes", "rejected", "clock", "seconds")
        if any(row.get(name) for row in rows)
    ]
    table = _table(["recipe", *scores, *costs])
    for row in rows:
        cells = [_spread(name, row[name], row.get(f"{name}_std")) for name in scores]
        table.add_row(row["recipe"], *cells, *(value(name, row.get(name)) for name in costs))
    return table


def _spread(name: str, found: float | None, deviation: float | None) -> str:
    """A mean, and below it the standard deviation over seeds if there is one."""
    return value(name, found) if deviation is None else f"{value(name, found)}\n±{value(name, deviation)}"


def inspect_tables(found: Document) -> Shown:
    """What a task looks like."""
    parts: Shown = [Text(f"{found['task']}: {found['source']}"), *_facts(found)]
    for table in found["tables"]:
        names, features = ", ".join(table["tables"]), ", ".join(table["features"])
        parts += [Text(f"rows of {names}, indexed by {features}"), *_facts(table), _histogram(table["histogram"])]
    if "conditioning" in found:
        parts += _conditioning(found["conditioning"])
    return parts


def _histogram(bins: Sequence[Document]) -> Table:
    """Rows by heat (S0, figure 5)."""
    out = _table(["heat", "rows", ""])
    out.columns[2].justify = "left"
    most = max(one["rows"] for one in bins)
    for one in bins:
        low, high = value("heat", one["from"]), value("heat", one["to"])
        bar = "█" * -(-_BAR * one["rows"] // most)
        out.add_row(low if low == high else f"{low} to {high}", value("rows", one["rows"]), bar)
    return out


def _conditioning(found: Document) -> Shown:
    """κ of the Hessian as it stands and as the heat correction sees it."""
    ridge = f", ridge {found['ridge']:g}" if found["ridge"] else ""
    title = f"conditioning at the initial model{ridge}: {found['coordinates']:,} coordinates, {found['method']}"
    out = _table(["matrix", "largest σ", "smallest σ", "smallest eigenvalue", "κ", "κ is"])
    for name, key in (("H", "hessian"), ("D^½ H D^½", "preconditioned")):
        row = found[key]
        numbers = [row[k] for k in ("sigma_max", "sigma_min", "eigenvalue_min", "kappa")]
        out.add_row(name, *("-" if number is None else f"{number:.4g}" for number in numbers), row["kappa_is"])
    return [Text(title), out]


def _facts(found: Document) -> list[Table]:
    """Single numbers, then those that differ by client."""
    single = Table(box=None, show_header=False, pad_edge=False)
    single.add_column()
    single.add_column(justify="right")
    spreads = _table(["per client", "min", "median", "mean", "max"])
    for name, content in found.items():
        words = name.replace("_", " ")
        if isinstance(content, dict) and "median" in content:
            label = words.removesuffix(" per client")
            spreads.add_row(label, *(value(name, content[key]) for key in ("min", "median", "mean", "max")))
        elif isinstance(content, int | float):
            single.add_row(words, f"{content:.2%}" if name == "sparsity" else value(name, content))
    return [single, spreads]


def list_tables(found: Document) -> Shown:
    """Recipes by their parts; parts by their settings; tasks by what they need."""
    titles = {
        "recipes": "recipes: the parts of the first, and how each other one differs from it",
        "parts": "parts (--set combine=heat) and their settings (--set lr=0.1)",
        "tasks": "tasks and their settings (--set items=500)",
    }
    parts: Shown = []
    for key, rows in (found | {"recipes": _differences(found["recipes"])}).items():
        table = _table(list(rows[0]), prose=True)
        for row in rows:
            table.add_row(*(text if isinstance(text, str) else ", ".join(text) for text in row.values()))
        parts += [Text(titles[key]), table]
    return parts


def _differences(recipes: Sequence[Document]) -> list[Document]:
    """Each recipe as one would build it from the first: the parts to replace, as ``--set`` takes them."""
    first, *others = ({k: v for k, v in row.items() if k != "recipe"} for row in recipes)
    own = [first, *({k: v for k, v in parts.items() if v != first[k]} for parts in others)]
    return [
        {"recipe": row["recipe"], "parts": " ".join(f"{k}={v}" for k, v in parts.items())}
        for row, parts in zip(recipes, own, strict=True)
    ]


def _heading(name: str) -> str:
    return _NAMES.get(name, name.replace("_", " "))


def _table(columns: Sequence[str], prose: bool = False) -> Table:
    """A table of numbers after a first column of names, or of prose, which may be wrapped."""
    out = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for position, column in enumerate(columns):
        heading = _heading(column)
        if prose or position == 0:
            out.add_column(heading, no_wrap=position == 0)
        else:
            part, _, rest = heading.partition(" ")
            out.add_column(f"{part}\n{rest}" if is_measured(column) else heading, justify="right", no_wrap=True)
    return out
