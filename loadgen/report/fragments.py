"""Pieces of HTML. All text from outside this module is escaped: names, texts and numbers may be hostile."""

from collections.abc import Sequence
from html import escape

from loadgen.report.chart import Chart


class Html(str):
    """Text that is HTML already; any other text is escaped when it is put into a page."""

    __slots__ = ()


def html(value: object) -> Html:
    return value if isinstance(value, Html) else Html(escape(str(value)))


def join(parts: Sequence[object], between: str = "\n") -> Html:
    """Parts one after the other."""
    return Html(between.join(html(part) for part in parts if part != ""))


def element(tag: str, content: object, css: str = "") -> Html:
    """One element with an optional class."""
    attribute = f' class="{escape(css)}"' if css else ""
    return Html(f"<{tag}{attribute}>{html(content)}</{tag}>")


def section(anchor: str, title: str, *content: object) -> Html:
    """A part of the page with its heading; empty without content."""
    inner = join(content)
    return Html(f'<section><h2 id="{escape(anchor)}">{escape(title)}</h2>\n{inner}</section>') if inner else Html("")


def details(summary: str, *content: object) -> Html:
    """A block that opens on a click."""
    return Html(f"<details><summary>{escape(summary)}</summary>\n{join(content)}</details>")


def folded_warnings(warnings: Sequence[str]) -> Html:
    """A box that shows the first warning and their number, and the others after a click; on paper all of them.

    Args:
        warnings: the worst first; without any there is no box.
    """
    if not warnings:
        return Html("")
    worst, *others = warnings
    if not others:
        return Html(f'<ul class="notes"><li>{html(worst)}</li></ul>')
    lines = join([element("li", one) for one in others])
    more = "1 more" if len(others) == 1 else f"{len(others)} more"
    return Html(
        f'<details class="warnings"><summary><b>{len(warnings)} warnings, the worst first.</b> {html(worst)} '
        f'<span class="more">{more}</span></summary>\n<ul>{lines}</ul></details>'
    )


def tile(name: str, figure: object, unit: str, more: Sequence[object]) -> Html:
    """One main figure with related small print."""
    small = f" <small>{escape(unit)}</small>" if unit else ""
    lines = "".join(f'<dd class="more">{html(line)}</dd>' for line in more)
    return Html(f'<div class="tile"><dt>{escape(name)}</dt><dd class="figure">{html(figure)}{small}</dd>{lines}</div>')


def figures(charts: Sequence[Chart], *, css: str = "") -> Html:
    """Places for charts, side by side if they fit; "single" or "three" in a row if specified."""
    if not charts:
        return Html("")
    return Html(f'<div class="charts{f" {css}" if css else ""}">\n{join([_figure(chart) for chart in charts])}\n</div>')


def _figure(chart: Chart) -> Html:
    """The place of one chart; the script finds its data by its id."""
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    label = escape(f"{chart.title}. {chart.note}".strip())
    return Html(
        f'<figure class="chart" id="{escape(chart.id)}"><figcaption>'
        f'<div class="head"><h3>{escape(chart.title)}</h3></div>{note}</figcaption><div class="legend"></div>'
        f'<div class="plot" role="img" aria-label="{label}"></div></figure>'
    )
