"""Console output: progress, tables, and numbers with units."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, product
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from fedslice.runs.callbacks import Callback, RunState
from fedslice.schema import find, value
from fedslice.sheets import plain_table, terminal
from fedslice.training.divergence import Divergence

if TYPE_CHECKING:
    from fedslice.runs.comparison import Comparison
    from fedslice.runs.run import Run

Document = dict[str, Any]
Shown = list["Text | Table | Entries"]

_BAR = 40  # characters of a histogram's longest bar
_WORDS = 50  # columns that words need beside a name


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
                yield Padding(Text(words), (0, 0, 0, len(name) - len(name.lstrip()) + 2))


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


class Follow(Callback):
    """Progress of one run: a bar with the time left and the newest metrics on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, title: str):
        self._console = console
        self._title = title
        self._rounds = 0
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
        self._task = self._bar.add_task(title, total=None)
        self._metrics = Text(no_wrap=True, overflow="ellipsis")
        self._live = Live(Group(self._bar, self._metrics), console=console, transient=True)

    def on_start(self, run: RunState) -> None:
        """Begin to show a run; say so if the model forced an engine on it."""
        choice = run.engine
        if choice is not None and choice.forced:
            self._console.print(f"{self._title}: {choice.engine.label} engine, for {choice.reason}", soft_wrap=True)
        self._rounds, self._first, self._began = run.rounds, run.round, time.monotonic()
        self._bar.update(self._task, completed=run.round, total=run.rounds)
        if self._console.is_interactive and not run.finished:
            self._live.start()

    def on_end(self, run: RunState, error: BaseException | None) -> None:  # noqa: ARG002
        """Leave the terminal to others."""
        self._live.stop()

    def on_round(self, run: RunState) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=run.round)

    def on_evaluation(self, run: RunState, row: Mapping[str, Any]) -> None:
        """Show the newest scores."""
        shown = [column for column in (find(name, run.columns) for name in row) if column.measured]
        words = "  ".join(f"{column.words} {column.text(row[column.name])}" for column in shown)
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
    """Minimum width: all of a table of numbers, and the longest word of text that may be wrapped."""
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


def run_tables(run: Run) -> Shown:
    """The metrics of one run, at most a screenful of rows."""
    from fedslice.runs.results import run_sheet

    title = f"{run.recipe} on {run.task}, seed {run.seed}: {run.config['task'].get('source', '')}"
    remarks = [] if run.diverged is None else [Text(f"{Divergence(**run.diverged)}; this is no result")]
    if run.stopped is not None:
        remarks.append(Text(f"stopped after round {run.stopped['round']:,} of {run.rounds:,}: {run.stopped['reason']}"))
    return [Text(title), *remarks, terminal(run_sheet("", run.rows, run.columns), tall=True)]


def compare_tables(found: Comparison) -> Shown:
    """When each recipe reached the target, and what it has at the end."""
    from fedslice.runs.results import legend

    seeds = list(dict.fromkeys(run.seed for run in found.runs))
    words = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    parts: Shown = [Text(f"{found.task}, {words}: {found.runs[0].config['task'].get('source', '')}")]
    for run in found.runs:
        if run.diverged is not None:
            parts.append(Text(f"{run.recipe} seed {run.seed} {Divergence(**run.diverged)}"))
        if run.stopped is not None:
            at = f"stopped after round {run.stopped['round']:,}: {run.stopped['reason']}"
            parts.append(Text(f"{run.recipe} seed {run.seed} {at}"))
    for sheet in found.sheets():
        parts += [Text(sheet.caption), terminal(sheet, tall=True)]
    note = legend(found.sheets(), marks=False)
    return [*parts, Text(note)] if note else parts


def inspect_tables(found: Document) -> Shown:
    """Return tables of a task's statistics."""
    parts: Shown = [Text(f"{found['task']}: {found['source']}"), *_facts(found)]
    for table in found["tables"]:
        names, features = ", ".join(table["tables"]), ", ".join(table["features"])
        parts += [Text(f"rows of {names}, indexed by {features}"), *_facts(table), _histogram(table["histogram"])]
    if "conditioning" in found:
        parts += _conditioning(found["conditioning"])
    return parts


def _histogram(bins: Sequence[Document]) -> Table:
    """Rows by heat (FedSubAvg, figure 5)."""
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
    """Return tables of what the server learns of a client under each choice, and the bytes of one client's messages."""
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


def _table(columns: Sequence[str]) -> Table:
    """A table of numbers after a first column of names."""
    out = plain_table()
    for position, column in enumerate(columns):
        out.add_column(column.replace("_", " "), justify="right" if position else "left", no_wrap=True)
    return out
