"""Live runs in the terminal: a chart of one metric, and a table of where each run stands."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedslice import plot
from fedslice.core.errors import unknown
from fedslice.runs.sight import FINISHED, RUNNING, STOPPED, Sight, Watcher
from fedslice.schema import Column, find

_STYLES = {RUNNING: "bold green", STOPPED: "bold red", FINISHED: "dim"}
_FIRST = ("test_auc", "test_accuracy")  # the metric to show, if a run has it
_WIDE = 72  # columns from which on there is room for a legend beside the chart
_NAME = 28  # columns of a name
_LOWEST, _USUAL, _HIGHEST = 8, 16, 24  # lines of a chart: at least, where nothing limits it, at most
_FEW = 4  # runs that a table shows at least before it gives lines to the chart
_HEAD = 2  # lines of a table's head
_PATIENCE = 5  # looks at a directory in which nothing runs before one believes that nothing will
_GAP = 2  # columns between columns


def watch(places: Sequence[Path], console: Console, *, metric: str | None = None, every: float = 1.0) -> None:
    """Show the runs until none is running any more, looking again after so many seconds; into a pipe, once.

    A directory of runs gets some patience, because the runs of a comparison come one after another.
    """
    watcher = Watcher(places)
    if not console.is_interactive:
        console.print(picture(watcher.look(), metric, console.width, None))
        return
    last: RenderableType = ""
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        quiet, patience = 0, 0
        while quiet <= patience:
            if last:
                time.sleep(every)
            sights = watcher.look()
            last = picture(sights, metric, console.width, console.height)
            live.update(last, refresh=True)
            running = any(sight.state == RUNNING for sight in sights)
            quiet = 0 if running else quiet + 1
            if running and any(sight.run.directory not in places for sight in sights):
                patience = _PATIENCE
    console.print(last)


def picture(sights: Sequence[Sight], metric: str | None, width: int, height: int | None) -> Group:
    """Chart and table, at most ``width`` columns and fewer than ``height`` lines (if None, as many as they need)."""
    columns = list(dict.fromkeys(name for sight in sights for name in sight.now if name != "round"))
    metric = _metric(metric, columns)
    lines, rows = _layout(len(sights), height)
    parts: list[RenderableType] = []
    if lines and metric is not None and (drawn := _chart(sights, metric, width, lines)) is not None:
        parts.append(drawn)
    shown = set(sorted(range(len(sights)), key=lambda k: sights[k].state != RUNNING)[:rows])
    parts.append(_table([sights[k] for k in sorted(shown)], metric, columns, width))
    if len(sights) > rows:
        counts = Counter(sight.state for k, sight in enumerate(sights) if k not in shown)
        words = ", ".join(f"{count} more {state}" for state, count in counts.items())
        parts.append(Text(f"and {words}", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _metric(asked: str | None, columns: Sequence[str]) -> str | None:
    """The metric to draw: the one asked for, or the best known one; None before the first evaluation."""
    if not columns:
        return None
    if asked is not None:
        if asked not in columns:
            raise unknown("metric", asked, columns)
        return asked
    scores = [name for name in columns if name.startswith("test_") and name != "test_loss"]
    return next((name for name in (*_FIRST, *scores, "train_loss") if name in columns), columns[0])


def _layout(runs: int, height: int | None) -> tuple[int, int]:
    """Lines of the chart, 0 for none, and rows of the table. One line stays free for the prompt that comes after."""
    if height is None:
        return _USUAL, runs
    free = height - 1 - _HEAD
    if free - runs >= _LOWEST:
        return min(free - runs, _HIGHEST), runs
    if free - 1 - _LOWEST >= _FEW:
        return _LOWEST, free - 1 - _LOWEST
    return 0, runs if runs <= free else max(free - 1, 1)


def _chart(sights: Sequence[Sight], metric: str, width: int, height: int) -> RenderableType | None:
    """The metric by round; on a narrow terminal without a legend beside it, for the table below has the colours too."""
    curves = [
        plot.Curve([row["round"] for row in sight.run.rows], [row.get(metric) for row in sight.run.rows], sight.colour)
        for sight in sights
    ]
    frame = plot.Frame.around(curves, max(1, *(max(sight.run.rounds, sight.now["round"]) for sight in sights)))
    if frame is None:
        return None
    label: Callable[[Decimal], str] = plot.plain if _column(metric, sights).measured else _column(metric, sights).text
    draw = partial(plot.chart, curves, frame, f"{_column(metric, sights).words} by round", height=height, label=label)
    if width < _WIDE:
        return draw(width=width)
    legend = Text("\n").join(_legend(sights, metric, height - plot.AROUND))
    side = max(len(line) for line in legend.plain.splitlines())
    grid = Table.grid(padding=(0, 2))
    grid.add_row(draw(width=width - side - 2), Text("\n") + legend)
    return grid


def _legend(sights: Sequence[Sight], metric: str, lines: int) -> list[Text]:
    shown = sights if len(sights) <= lines else sights[: lines - 1]
    names = [_short(sight.name, _NAME) for sight in shown]
    now = [_column(metric, sights).text(sight.now.get(metric)) for sight in shown]
    wide, long = max(map(len, names)), max(map(len, now))
    out = [
        Text.assemble((f"● {name:{wide}}", sight.colour), f"  {number:>{long}}")
        for sight, name, number in zip(shown, names, now, strict=True)
    ]
    return out + ([Text(f"and {len(sights) - len(shown)} more")] if len(sights) > len(shown) else [])


def _short(name: str, width: int) -> str:
    """Both ends of a long name, for names of runs differ in either.

    >>> _short("hotcold-fedavg-seed0", 10)
    'hotc…seed0'
    """
    return name if len(name) <= width else f"{name[: (width - 1) // 2]}…{name[len(name) - width // 2 :]}"


@dataclass(frozen=True, eq=False)
class _Column:
    heading: str
    cells: list[str]

    @property
    def width(self) -> int:
        return max(map(len, [*self.heading.split("\n"), *self.cells]))


def _table(sights: Sequence[Sight], metric: str | None, names: Sequence[str], width: int) -> Table:
    """As many columns as there is room for: scores beside the chosen one go first, then costs; the name is cut last."""
    drawn = [_numbers(metric, sights)] if metric is not None else []
    others = [_numbers(name, sights) for name in names if _column(name, sights).measured and name != metric]
    sent = [_Column("up", _numbers("up_bytes", sights).cells)] if metric != "up_bytes" else []
    took = [_Column("time", [_span(sight.now.get("seconds")) for sight in sights])] if metric != "seconds" else []
    left = _Column("left", [_span(sight.left) for sight in sights])
    rounds = _Column("round", [f"{sight.now['round']:,}/{sight.run.rounds:,}" for sight in sights])
    columns = [rounds, *drawn, *others, *sent, *took, left, _Column("state", [sight.state for sight in sights])]
    runs = _Column("run", [f"● {_short(sight.name, _NAME)}" for sight in sights])
    spare = [left, *sent, *took, *others]
    while spare and _width([runs, *columns]) > width:
        columns.remove(spare.pop())
    room = max(1, min(_NAME, width - _width(columns) - _GAP - 2))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    table.add_column("run", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="left" if column.heading == "state" else "right", no_wrap=True)
    for sight, *cells in zip(sights, *(column.cells for column in columns), strict=True):
        state = Text(cells.pop(), style=_STYLES[sight.state])
        table.add_row(Text(f"● {_short(sight.name, room)}", style=sight.colour), *map(Text, cells), state)
    return table


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width + _GAP for column in columns) - _GAP


def _numbers(name: str, sights: Sequence[Sight]) -> _Column:
    column = _column(name, sights)
    return _Column(column.words.replace(" ", "\n", 1), [column.text(sight.now.get(name)) for sight in sights])


def _column(name: str, sights: Sequence[Sight]) -> Column:
    """A column of the runs' logs, as the first that declares it does."""
    return find(name, {one: column for sight in reversed(sights) for one, column in sight.run.columns.items()})


def _span(seconds: float | None) -> str:
    """A time to two digits or so.

    >>> _span(None), _span(7.24), _span(95), _span(1_000), _span(30_000)
    ('-', '7 s', '95 s', '17 min', '8.3 h')
    """
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6_000 else f"{seconds / 3_600:,.1f} h"
