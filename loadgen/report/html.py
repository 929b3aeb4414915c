"""A page as one self-contained HTML file, without other files or network access.

The page's own content security policy forbids every request, so a slip would show as an empty plot in the test that
opens it, not as a silent download. Data is JSON inside the page; `<` is escaped in it, so no text can end the script.
"""

import importlib.resources
from html import escape
from string import Template

import msgspec

from loadgen.report.page import Page
from loadgen.report.palette import with_colors

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
