"""A table says the same on a page, in a terminal and in Markdown, and escapes what it is told."""

import io
from html.parser import HTMLParser

from rich.console import Console

from loadgen.report.table import (
    Cell,
    Table,
    TableRow,
    columns,
    filtered_table,
    html_table,
    markdown_table,
    table_of,
    terminal_table,
)

TABLE = Table(
    columns("pool", "tokens per s", "state", "why", text=("state",), long=("why",)),
    [
        TableRow(["prefill", "1,234", Cell("late", "bad"), "<b>[red]x[/]</b> | y"], kind="one"),
        TableRow(["decode", "5.00", "fine", "z"], "best", "two"),
    ],
    "A note & more.",
)


class Reader(HTMLParser):
    """Texts of the cells."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A cell begins."""
        self.cells += [""] if tag in ("th", "td") else []

    def handle_data(self, data: str) -> None:
        """Its text."""
        if self.cells and data.strip():
            self.cells[-1] += data


def printed(table: Table, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(terminal_table(table, width))
    return stream.getvalue()


def test_the_three_say_the_same() -> None:
    reader = Reader()
    reader.feed(html_table(Table(TABLE.columns, TABLE.rows)))
    markdown = [cell for line in markdown_table(TABLE) for cell in line.strip("| ").split(" | ")]
    del markdown[4:8]
    assert [cell.replace("|", "/") for cell in reader.cells] == markdown
    for cell in reader.cells:
        assert cell in printed(TABLE, 120)


def test_alignment_tones_and_notes_on_a_page() -> None:
    text = html_table(TABLE, anchor="rows", tall=True)
    assert '<tr data-kind="one"><th scope="row">prefill</th><td>1,234</td><td class="text bad">late</td>' in text
    assert '<tr class="best" data-kind="two">' in text
    assert '<tbody id="rows">' in text
    assert "&lt;b&gt;[red]x" in text
    assert '<p class="soft">A note &amp; more.</p>' in text
    assert "<thead>" not in html_table(table_of(columns("", ""), [["a", "b"]]))


def test_a_filter_knows_the_kinds() -> None:
    text = filtered_table(TABLE, "rows", "decision")
    assert "<option>one</option><option>two</option>" in text
    assert 'data-rows="rows" hidden' in text
    assert 'aria-label="Kind of decision"' in text


def test_a_narrow_terminal_breaks_heads_and_no_figure() -> None:
    table = table_of(columns("pool", "tokens per s"), [["prefill", "1,234,567"]])
    wide, narrow = printed(table, 120), printed(table, 20)
    assert "tokens per s" in wide
    assert "tokens per s" not in narrow
    assert "1,234,567" in narrow
