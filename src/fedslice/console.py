"""What a person reads: progress, tables, and numbers with units."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, product
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from fedslice.training.divergence import Divergence

if TYPE_CHECKING:
    from fedslice.training.engines.choose import Choice

Document = dict[str, Any]
Shown = list["Text | Table | Entries"]

_BAR = 40  # characters of a histogram's longest bar
_WORDS = 50  # columns that words need beside a name
_RUN_ROWS = 20  # lines of a run's table: a screenful
_NAMES = {
    "up_bytes": "up",
    "down_bytes": "down",
    "enrol_bytes": "enrol",
    "framing_bytes": "framing",
    "seconds": "time",
    "clock": "simulated",
    "t2a": "T2A",
}  # whose unit stands in the cell


def _is_measured(column: str) -> bool:
    """Does this column of a log tell something about the model, and not about the run?"""
    from fedslice.measure.instruments import is_measured  # it loads torch, which listings and help do without

    return is_measured(column)


class Entries:
    """Names with lines of words beside them, or below them where the terminal is narrow."""

    def __init__(self, rows: Iterable[tuple[str, Sequence[str]]]):
        self._rows = [(name, "\n".join(line for line in lines if line)) for name, lines in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        beside = max(len(name) for name, _ in self._rows) + 2
        if options.max_width - beside >= _WORDS:
            table = Table.grid(padding=(0, 2, 0, 0))
            for row in self._rows:
                table.add_row(*row)
            yield table
        else:
            for name, words in self._rows:
                yield Text(name)
                yield Padding(Text(words), (0, 0, 0, 2))


class Stream(Console):
    """Standard output or standard error for plain text, which is dropped once nobody reads it.

    ``fedslice run … 2>&1 | head -1`` closes the pipe after a line. What a command computes lies in files by then or
    will, so the command goes on to its end, and its exit code tells how the work went.
    """

    def __init__(self, *, stderr: bool = False):
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Print nothing from now on."""
        self.quiet = True
        _drop(sys.stderr if self.stderr else sys.stdout)


@contextmanager
def while_read(stream: TextIO) -> Iterator[None]:
    """Write to a stream directly, under the law of :class:`Stream`."""
    try:
        yield
    except BrokenPipeError:
        _drop(stream)


def _drop(stream: TextIO) -> None:
    """Let a stream lead nowhere, with what it still holds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


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
        words = "  ".join(f"{_heading(name)} {value(name, row[name])}" for name in row if _is_measured(name))
        self._metrics.plain = words
        if not self._console.is_interactive:
            line = f"{self._title}  round {row['round']}/{self._rounds}  {words}{self._left(row['round'])}"
            self._console.print(line, soft_wrap=True)

    def _left(self, done: int) -> str:
        if self._first is None or done in (self._first, self._rounds):
            return ""
        left = (time.monotonic() - self._began) / (done - self._first) * (self._rounds - done)
        return f"  {left:.0f} s left" if left < 100 else f"  {left / 60:.0f} min left"


def show(parts: Iterable[Text | Table | Entries]) -> None:
    """Print titles and tables. No number is ever cut: a table too wide for the terminal continues below itself.

    Into a file, which has no edge, it is printed as wide as it is.
    """
    console = Stream()
    narrow = console.is_terminal or "COLUMNS" in os.environ
    for part in parts:
        for piece in _split(part, console) if narrow and isinstance(part, Table) else [part]:
            console.width = max(console.width, _width(piece, console))
            console.print(piece)
            if not isinstance(piece, Text):
                console.print()


def _width(part: Text | Table | Entries, console: Console) -> int:
    """How wide it must be: all of a table of numbers, and the longest word of what may be wrapped."""
    if isinstance(part, Entries):
        return 0
    asked = Measurement.get(console, console.options.update(max_width=1000), part)
    numbers = isinstance(part, Table) and all(column.no_wrap for column in part.columns)
    return asked.maximum if numbers else asked.minimum


def _split(table: Table, console: Console) -> list[Table]:
    """Tables that fit, each with the first column and some of the others."""
    if _width(table, console) <= console.width:
        return [table]
    first, *others = table.columns
    pieces: list[Table] = []
    taken: list[Column] = []
    for column in others:
        if taken and _width(_of(table, [first, *taken, column]), console) > console.width:
            pieces.append(_of(table, [first, *taken]))
            taken = []
        taken.append(column)
    return [*pieces, _of(table, [first, *taken])]


def _of(table: Table, columns: Sequence[Column]) -> Table:
    """A table with some of another's columns."""
    out = Table(box=table.box, show_header=table.show_header, show_edge=False, pad_edge=False, collapse_padding=True)
    for column in columns:
        out.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, max_width=column.max_width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        out.add_row(*cells)
    return out


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
    if isinstance(number, float) and _is_measured(name):
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
    title = Text(f"{document['recipe']} on {document['task']}, seed {document['seed']}: {document['source']}")
    diverged = (
        [] if document["diverged"] is None else [Text(f"{Divergence(**document['diverged'])}; this is no result")]
    )
    return [title, *diverged, table]


def compare_tables(document: Document) -> Shown:
    """When each recipe reached the target, and what it has at the end."""
    rows = document["table"]
    seeds = rows[0]["seeds"]
    words = f"mean of seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    parts: Shown = [Text(f"{document['task']}, {words}: {document['runs'][0]['source']}")]
    if rows[0]["target"] is not None:
        from fedslice.compare import cadence

        every = cadence(document["runs"])
        seen = f", seen at evaluations every {every:,} rounds" if every > 1 else ""
        parts += [Text(f"until {rows[0]['target']}{seen}"), _target_table(rows)]
    for run in document["runs"]:
        if run["diverged"] is not None:
            parts.append(Text(f"{run['recipe']} seed {run['seed']} {Divergence(**run['diverged'])}"))
    parts += [Text(f"after {value('round', rows[0]['round'])} rounds"), _end_table(rows)]
    if len(seeds) > 1:
        parts.append(Text(f"±: standard deviation over the {len(seeds)} seeds"))
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
    scores = [name for name in rows[0] if _is_measured(name) and not name.endswith("_std")]
    costs = [
        name
        for name in ("up_bytes", "down_bytes", "rejected", "clock", "seconds")
        if any(row.get(name) for row in rows)
    ]
    table = _table(["recipe", *scores, *costs])
    for row in rows:
        none = "diverged" if row["diverged"] else "-"
        cells = [none if row[name] is None else _spread(name, row[name], row.get(f"{name}_std")) for name in scores]
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
    out = _table(["heat", "rows"])
    out.add_column("", max_width=_BAR)
    most = max(one["rows"] for one in bins)
    for one in bins:
        low, high = value("heat", one["from"]), value("heat", one["to"])
        out.add_row(low if low == high else f"{low} to {high}", value("rows", one["rows"]), _Bar(one["rows"], most))
    return out


@dataclass(frozen=True)
class _Bar:
    """A bar as long as its share of the widest, on as many columns as there are; what is not zero shows."""

    count: int
    most: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("█" * -(-options.max_width * self.count // self.most))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(4, options.max_width), min(_BAR, options.max_width))


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


def _facts(found: Document) -> Shown:
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


def reveal_tables(found: Document) -> Shown:
    """The fields of a client's messages, a table for each message and time, with what one message has of them."""
    title = f"what a client of {found['task']} reveals with {found['recipe']}, and is sent"
    if not found["rows"]:
        return [Text(f"{title}: nothing travels, as all data lie in one place")]
    parts: Shown = [Text(title), Text("entries and bytes are those of one message, of a few clients"), Text()]
    for when, message in dict.fromkeys((row["when"], row["message"]) for row in found["rows"]):
        rows = [row for row in found["rows"] if (row["when"], row["message"]) == (when, message)]
        table = _table(["field", "what it is", "encoding", "entries", "bytes"])
        about, encoding, *numbers = table.columns[1:]
        about.justify = encoding.justify = "left"
        about.no_wrap = False
        for row in rows:
            ranges = [_range(name, row[name]) for name in ("entries", "bytes")]
            table.add_row(row["field"], row["about"], row["encoding"], *ranges)
        for column in (table.columns[0], encoding, *numbers):
            column.min_width = max(len(str(cell)) for cell in column.cells)
        parts += [Text(f"{message}, {when}"), table]
    return parts


def privacy_tables(found: Document) -> Shown:
    """What the server learns of a client under each choice, and the bytes of one client's messages."""
    parts: Shown = [Text(f"what the server of {found['task']} learns of a client with {found['recipe']}"), Text()]
    for choice in found["choices"]:
        settings = " ".join(f"{name}={given}" for name, given in choice["settings"].items())
        parts.append(Text(choice["name"] + (f" (--set {settings})" if settings else "")))
        parts.append(Text("\n".join(choice["learns"])))
        table = _table(["message", "up", "down"])
        for message in dict.fromkeys((*choice["up"], *choice["down"])):
            sizes = [choice[way].get(message) for way in ("up", "down")]
            table.add_row(message, *("" if size is None else value("bytes", size) for size in sizes))
        parts += [table, Text()]
    return parts


def _range(name: str, spread: Document | None) -> str:
    """From the least to the most."""
    if spread is None:
        return "varies"
    low, high = value(name, spread["min"]), value(name, spread["max"])
    if low == high:
        return low
    same_unit = low.partition(" ")[2] == high.partition(" ")[2]
    return f"{low.partition(' ')[0] if same_unit else low}-{high}"


def list_tables(found: Document) -> Shown:
    """Recipes by what they do; parts, tasks and exhibits; with all that can be set, and its defaults."""
    parts: Shown = []
    if "recipes" in found:
        parts.append(Text("recipes (--recipe NAME), with the settings that make each from fedavg"))
        parts.append(Entries((row["recipe"], [row["about"], _recipe_settings(row)]) for row in found["recipes"]))
    if "parts" in found:
        parts.append(Text("parts (--set PLACE=PART), with their settings (--set lr=0.1) and defaults"))
        common = next(row["defaults"] for row in found["parts"] if row["part"] == "plain" and row["place"] == "local")
        named = ((f"{row['place']}={row['part']}", row) for row in found["parts"])
        rows = ((name, [_part_settings(row, common), *_origin(row)]) for name, row in named)
        parts.append(Entries(rows))
    if "tasks" in found:
        parts.append(Text("tasks, with their settings (--set items=500) and defaults"))
        parts.append(Entries((row["task"], _task_lines(row)) for row in found["tasks"]))
    if "exhibits" in found:
        parts.append(Text("exhibits of the papers (fedslice reproduce EXHIBIT)"))
        parts.append(Entries((row["exhibit"], [row["title"]]) for row in found["exhibits"]))
    return parts


def combination_tables(found: Document) -> Shown:
    """The matrix of parts that do not go together, a table for every two places, and the reasons below."""
    parts, refused = found["parts"], found["refused"]
    reasons = list(dict.fromkeys((row["place"], row["reason"]) for row in refused))
    numbers: dict[tuple[str, str, str, str], list[str]] = {}
    for row in refused:
        number = str(reasons.index((row["place"], row["reason"])) + 1)
        for one, other in product(row["parts"], row["refused"]):
            numbers.setdefault((row["place"], one, row["other"], other), []).append(number)
            numbers.setdefault((row["other"], other, row["place"], one), []).append(number)
    out: Shown = [
        Text("which parts go together, with their default settings"),
        Text("· they do; a number is the reason below why they do not"),
        Text("a part without a line goes with all parts of that place, and so do places"),
        Text("without a table"),
        Text(),
    ]
    for pair in combinations(parts, 2):
        down, across = sorted(pair, key=lambda place: -len(parts[place]))
        table = _table([f"{down} with {across}="])
        for name in parts[across]:
            table.add_column(name, justify="center", no_wrap=True)
        for one in parts[down]:
            cells = [" ".join(numbers.get((down, one, across, other), ["·"])) for other in parts[across]]
            if set(cells) != {"·"}:
                table.add_row(one, *cells)
        if table.row_count:
            out.append(table)
    return [*out, Text("reasons"), Entries((str(number), [reason]) for number, (_, reason) in enumerate(reasons, 1))]


def _recipe_settings(row: Document) -> str:
    """Settings as ``--set`` takes them; of the first recipe, which the others change, its parts."""
    places = {place: row[place] for place in row if place not in ("recipe", "about", "set")}
    return f"--set {_words(row['set'])}" if row["set"] else _words(places)


def _origin(row: Document) -> list[str]:
    return [f"from {row['from']}"] if "from" in row else []


def _part_settings(row: Document, common: Mapping[str, Any]) -> str:
    """A part's settings; local methods share those of ``plain``."""
    own = row["defaults"]
    if row["place"] != "local" or row["part"] == "plain":
        return _words(own)
    more = _words({key: value for key, value in own.items() if key not in common})
    return f"as local=plain, and {more}" if more else "as local=plain"


def _task_lines(row: Document) -> list[str]:
    often = "every round" if row["eval_every"] == 1 else f"every {row['eval_every']} rounds"
    usual = f"by default {row['rounds']:,} rounds, evaluated {often}, {_words(row['set'])}"
    return [row["about"], f"needs {row['needs']}", usual, f"--set {_words(row['defaults'])}"]


def _words(settings: Mapping[str, Any]) -> str:
    """Settings as one writes them on a command line."""
    return " ".join(
        f"{key}={str(value).lower() if value is None or isinstance(value, bool) else value}"
        for key, value in settings.items()
    )


def _heading(name: str) -> str:
    return _NAMES.get(name, name.replace("_", " "))


def _table(columns: Sequence[str]) -> Table:
    """A table of numbers after a first column of names."""
    out = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for position, column in enumerate(columns):
        heading = _heading(column)
        if position == 0:
            out.add_column(heading, no_wrap=True)
        else:
            part, _, rest = heading.partition(" ")
            out.add_column(f"{part}\n{rest}" if _is_measured(column) else heading, justify="right", no_wrap=True)
    return out
