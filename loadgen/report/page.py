"""A page while it is put together: its sections, the charts that they want, and its navigation."""

import importlib.resources
from collections.abc import Sequence
from html import escape
from string import Template

import msgspec

from loadgen.report.chart import Chart
from loadgen.report.fragments import Html, element, figures, html, join, section
from loadgen.report.palette import with_colors


class Page:
    """Parts of a page, collected: body, the charts that its figures want, and where the navigation leads.

    Args:
        footnote: sentences at the end of the page, next to its generator's name.
    """

    def __init__(self, title: str, *, footnote: str = "") -> None:
        self.title = title
        self.footnote = footnote
        self.charts: list[Chart] = []
        self.navigation: list[tuple[str, str]] = []
        self.body: list[Html] = []

    def add(self, anchor: str, title: str, *content: object, short: str = "") -> None:
        """A section, unless it is empty; in the navigation by its title or `short`."""
        part = section(anchor, title, *content)
        if part:
            self.body.append(part)
            self.navigation.append((anchor, short or title))

    def draw(self, charts: Sequence[Chart], *, single: bool = False, three: bool = False) -> Html:
        """Places for charts, side by side if they fit; stores their data."""
        self.charts.extend(charts)
        return figures(charts, css="single" if single or len(charts) == 1 else "three" if three else "")


def tiles(parts: Sequence[Html]) -> Html:
    """The main figures, large; see `fragments.tile`."""
    return Html(f'<dl class="tiles">{join(parts)}</dl>') if parts else Html("")


def facts(pairs: Sequence[tuple[str, object]]) -> Html:
    """One line of names and values; pairs whose value is None or empty are left out."""
    items = [
        Html(f"<span>{html(name)} <b>{html(value)}</b></span>") for name, value in pairs if value not in ("", None)
    ]
    return element("p", join(items), "facts")


# A page as one self-contained HTML file, without other files or network access.
#
# The page's own content security policy forbids every request, so a slip would show as an empty plot in the test that
# opens it, not as a silent download. Data is JSON inside the page; `<` is escaped in it, so no text can end the script.

_SCRIPTS = ("format.js", "plot.js", "lines.js", "scatter.js", "bars.js", "filter.js", "page.js")


def render(page: Page, author: str) -> str:
    """A page as the text of an HTML file: the same page gives the same text.

    Args:
        author: program and version, such as "loadgen 1.2".
    """
    data = msgspec.json.encode(page.charts).decode().replace("<", "\\u003c")
    return Template(_asset("page.html")).substitute(
        title=escape(page.title),
        navigation="".join(f'<a href="#{escape(anchor)}">{escape(title)}</a>' for anchor, title in page.navigation),
        body="\n".join(page.body),
        author=escape(author),
        footnote=escape(page.footnote),
        licence=escape(_asset("uPlot.LICENSE.txt").strip()),
        charts=data,
        uplot_css=_asset("uPlot.min.css").strip(),
        css=stylesheet(),
        uplot=_asset("uPlot.iife.min.js").strip(),
        script="\n".join(_asset(name) for name in _SCRIPTS),
    )


def stylesheet() -> str:
    """The look of every page of this project."""
    return with_colors(_asset("report.css"))


def _asset(name: str) -> str:
    return (importlib.resources.files("loadgen.report") / "assets" / name).read_text(encoding="utf-8")
