"""A table as plain values, with its renderings for a page, a terminal and Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from rich.table import Table as TerminalTable
from rich.text import Text

from loadgen.report.fragments import Html, element, html, join

Tone = Literal["", "good", "bad", "warn", "soft", "best"]
"""Meaning of a value, shown as its colour on a page and in a terminal."""
Kind = Literal["number", "text", "long"]

_STYLES: dict[Tone, str] = {
    "": "", "good": "green", "bad": "red", "warn": "yellow", "soft": "dim", "best": "bold green",
}  # fmt: skip
_NARROW_COLUMNS = 6
"""Fewer columns of figures than this do not take the page's whole width."""
_GAP = 2
"""Between the columns of a terminal."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: figures to the right, text to the left, `long` text in lines. The first one is always to the left."""

    name: str
    kind: Kind = "number"


@dataclass(frozen=True, slots=True)
class Cell:
    """Text with a tone."""

    text: object
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row. `kind`: its value for a filter."""

    cells: Sequence[object]
    tone: Tone = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table's contents, with a sentence under it."""

    columns: Sequence[Column]
    rows: Sequence[TableRow]
    note: str = ""


def columns(*names: str, text: Sequence[str] = (), long: Sequence[str] = ()) -> list[Column]:
    """Columns in this order: of figures, but for those that are named again as `text` or `long`."""
    return [Column(name, "text" if name in text else "long" if name in long else "number") for name in names]


def table_of(heads: Sequence[Column], rows: Iterable[Sequence[object]], note: str = "") -> Table:
    """A table whose rows are just cells."""
    return Table(heads, [TableRow(cells) for cells in rows], note)


def select(table: Table, *names: str) -> Table:
    """Some columns of a table, in this order.

    Raises: ValueError if there is no such column.
    """
    heads = [column.name for column in table.columns]
    places = [heads.index(name) for name in names]
    rows = [TableRow([row.cells[place] for place in places], row.tone, row.kind) for row in table.rows]
    return Table([table.columns[place] for place in places], rows, table.note)


def html_table(table: Table, *, anchor: str = "", tall: bool = False, stack: bool = False) -> Html:
    """A table in a panel that scrolls by itself; empty if it has no rows.

    Args:
        anchor: id of its rows, for a filter.
        tall: many rows, scrolled inside the panel with the heads in view.
        stack: on a narrow page the cells of a row are stacked.
    """
    if not table.rows:
        return Html("")
    kinds = [column.kind for column in table.columns]
    figures = all(kind != "long" for kind in kinds)
    panel = ["panel", "scroll", *(["tall"] if tall else [])]
    if figures and not tall and len(kinds) < _NARROW_COLUMNS:
        panel.append("narrow")
    heads = "".join(
        f'<th scope="col"{_class("" if kind == "number" else kind)}>{html(column.name)}</th>'
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    lines = "\n".join(_html_row(row, kinds) for row in table.rows)
    head = f"<thead><tr>{heads}</tr></thead>" if any(column.name for column in table.columns) else ""
    body = f"<tbody{_attribute('id', anchor)}>\n{lines}\n</tbody>"
    css = _class("stack" if stack else "")
    whole = Html(f'<div class="{" ".join(panel)}"><table{css}>{head}{body}</table></div>')
    return join([whole, element("p", table.note, "soft") if table.note else ""])


def filtered_table(table: Table, anchor: str, what: str) -> Html:
    """A tall table with a field for words and a list of its rows' kinds above; a page without script has all rows.

    Args:
        what: the rows' kind in words, such as "decision".
    """
    if not table.rows:
        return Html("")
    options = "".join(f"<option>{html(kind)}</option>" for kind in sorted({row.kind for row in table.rows}))
    bar = Html(
        f'<div class="filter" data-rows="{escape(anchor)}" hidden>'
        f'<input type="search" placeholder="words to look for" aria-label="Words to look for">'
        f'<select aria-label="Kind of {escape(what)}"><option value="">every kind</option>{options}</select>'
        f'<span class="shown" role="status"></span></div>'
    )
    return join([bar, html_table(table, anchor=anchor, tall=True)])


def terminal_table(table: Table, width: int) -> TerminalTable:
    """A table for rich. Where its heads do not fit, they have one word per line, so that no figure is cut off.

    Args:
        width: of the terminal.
    """
    shown = TerminalTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    lines = [[column.name for column in table.columns], *([_plain(cell) for cell in row.cells] for row in table.rows)]
    narrow = sum(max(map(_width, cells)) + _GAP for cells in zip(*lines, strict=True)) > width
    for place, column in enumerate(table.columns):
        shown.add_column(
            Text(column.name.replace(" ", "\n") if narrow else column.name),
            justify="right" if place and column.kind == "number" else "left",
            no_wrap=column.kind != "long",
        )
    for row in table.rows:
        shown.add_row(*map(_terminal_cell, row.cells), style=_STYLES[row.tone])
    return shown


def markdown_table(table: Table) -> list[str]:
    """Lines of a Markdown table."""
    rules = ["---:" if place and column.kind == "number" else "---" for place, column in enumerate(table.columns)]
    heads = [column.name for column in table.columns]
    lines = [heads, rules, *([_plain(cell) for cell in row.cells] for row in table.rows)]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]


def _html_row(row: TableRow, kinds: Sequence[Kind]) -> str:
    cells = []
    for place, (cell, kind) in enumerate(zip(row.cells, kinds, strict=True)):
        content, tone = (cell.text, cell.tone) if isinstance(cell, Cell) else (cell, "")
        css = " ".join(one for one in ("" if kind == "number" else kind, tone) if one)
        text = html(content)
        cells.append(f"<td{_class(css)}>{text}</td>" if place else f'<th scope="row"{_class(css)}>{text}</th>')
    return f"<tr{_class(row.tone)}{_attribute('data-kind', row.kind)}>{''.join(cells)}</tr>"


def _terminal_cell(cell: object) -> Text:
    return Text(str(cell.text), style=_STYLES[cell.tone]) if isinstance(cell, Cell) else Text(str(cell))


def _plain(cell: object) -> str:
    return str(cell.text if isinstance(cell, Cell) else cell)


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def _class(css: str) -> str:
    return _attribute("class", css)


def _attribute(name: str, value: str) -> str:
    return f' {name}="{escape(value)}"' if value else ""
