"""Tables as data, and their only renderings: for a terminal, for a page, and as Markdown."""

from __future__ import annotations

import html as _html
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Cell:
    """A number as text, or words.

    Args:
        text: The text.
        detail: What stands beside it in a page and below it on a terminal: a deviation, a remark.
        best: Whether it is marked.
    """

    text: str
    detail: str = ""
    best: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table whose first column names its rows.

    Args:
        caption: Its title.
        columns: The headings.
        rows: A cell per column in every row.
        numbers: Whether columns after the first are numbers, which are aligned at their right.
        prose: Whether the last column holds words that may be wrapped.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: bool = True
    prose: bool = False

    @classmethod
    def of_words(cls, caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], prose: bool = True) -> Sheet:
        """From plain texts."""
        return cls(caption, columns, [[Cell(text) for text in row] for row in rows], prose=prose)


def plain_table() -> Table:
    """Return an empty table in the style of all tables on a terminal."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)


def terminal(sheet: Sheet, *, tall: bool = False) -> Table:
    """Return the table for a terminal, without its caption.

    ``tall`` puts the words of a heading below each other, which makes columns of numbers narrow.
    """
    out = plain_table()
    last = len(sheet.columns) - 1
    for place, name in enumerate(sheet.columns):
        words = place == 0 or (sheet.prose and place == last) or not sheet.numbers
        heading = name.replace(" ", "\n") if tall and place and not words else name
        out.add_column(heading, justify="left" if words else "right", no_wrap=not (sheet.prose and place == last))
    for row in sheet.rows:
        out.add_row(*(_text(cell) for cell in row))
    return out


def _text(cell: Cell) -> Text:
    return Text(f"{cell.text}\n{cell.detail}" if cell.detail else cell.text)


def html(sheet: Sheet) -> str:
    """Return the table as an element of a page, escaped."""
    kind = ' class="numbers"' if sheet.numbers else ""
    head = "".join(f'<th scope="col">{_html.escape(column)}</th>' for column in sheet.columns)
    body = "\n".join(
        f'<tr><th scope="row">{_marked(first)}</th>{"".join(f"<td>{_marked(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in sheet.rows
    )
    caption = f"<caption>{_html.escape(sheet.caption)}</caption>\n"
    return f"<table{kind}>\n{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _marked(cell: Cell) -> str:
    text = _html.escape(cell.text)
    marked = f"<strong>{text}</strong>" if cell.best else text
    return f"{marked} <small>{_html.escape(cell.detail)}</small>" if cell.detail else marked


def markdown(sheet: Sheet) -> list[str]:
    """Return the lines of the table in Markdown, below its caption."""
    lines = [[" ".join(filter(None, (cell.text, cell.detail))) for cell in row] for row in sheet.rows]
    return [f"**{sheet.caption}**", "", _line(sheet.columns), "|" + "---|" * len(sheet.columns), *map(_line, lines)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
