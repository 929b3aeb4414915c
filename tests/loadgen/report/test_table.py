"""A table says the same on a page, in a terminal and in Markdown, and escapes what it is told."""

import io
import math
from html.parser import HTMLParser

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadgen.report.chart import Axis, Bar, BarChart, Key, compact_all, thin
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


def test_tables_on_a_page() -> None:
    text = html_table(TABLE, anchor="rows", tall=True)
    assert '<tr data-kind="one"><th scope="row">prefill</th><td>1,234</td><td class="text bad">late</td>' in text
    assert '<tr class="best" data-kind="two">' in text
    assert '<tbody id="rows">' in text
    assert "&lt;b&gt;[red]x" in text
    assert '<p class="soft">A note &amp; more.</p>' in text
    assert "<thead>" not in html_table(table_of(columns("", ""), [["a", "b"]]))

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


values = st.one_of(st.none(), st.floats(-1e6, 1e6))


@given(st.lists(st.tuples(values, values), max_size=300), st.integers(1, 20))
def test_thinned_curves_keep_ends_extremes_and_order(points: list[tuple[float | None, ...]], most: int) -> None:
    xs = [float(at) for at in range(len(points))]
    columns = [[point[curve] for point in points] for curve in (0, 1)]
    kept, thinned = thin(xs, columns, most)
    assert len(kept) <= max(2 * most * 2 + 2, 2 * most + 2)
    assert kept == sorted(set(kept))
    assert kept[:1] + kept[-1:] == xs[:1] + xs[-1:]
    for whole, part in zip(columns, thinned, strict=True):
        assert [part[place] for place, _ in enumerate(kept)] == [whole[int(x)] for x in kept]
        told, shown = ([value for value in column if value is not None] for column in (whole, part))
        assert (max(shown, default=None), min(shown, default=None)) == (
            max(told, default=None),
            min(told, default=None),
        )


def test_what_the_page_gets_is_small() -> None:
    assert compact_all([1.23456789, math.nan, math.inf, None]) == [1.23457, None, None, None]

    chart = BarChart(
        id="b", title="t", x=Axis(unit="s"), lanes=["a"], lane_px=20, keys=[Key(name="k", color="blue")],
        bars=[Bar(0, 1.0, 2.0, 0), Bar(0, 2.0, 3.0, 0, "says", part=1)],
    )  # fmt: skip
    sent = msgspec.json.decode(msgspec.json.encode(chart))
    assert sent["kind"] == "bars"
    assert sent["bars"][0][:4] == [0, 1.0, 2.0, 0]
    assert sent["bars"][1] == [0, 2.0, 3.0, 0, "says", "", "", 1]
