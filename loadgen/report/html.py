"""Writes report.html: one file that needs nothing else, neither beside it nor from a network.

The page's own content security policy forbids every request, so a slip would show as an empty plot in the test that
opens it, not as a silent download. Data is JSON inside the page; `<` is escaped in it, so no text can end the script.
"""

import importlib.resources
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import msgspec

from loadgen.record import RequestRecord
from loadgen.report.page import Page
from loadgen.report.run_page import run_page
from loadgen.report.sweep_page import sweep_page
from loadgen.result import RunResult, SweepResult
from loadgen.run_folder import explained
from loadgen.server.series import ServerSeries

_SCRIPTS = ("format.js", "plot.js", "lines.js", "scatter.js", "waterfall.js", "page.js")


def write_report(
    path: Path,
    result: RunResult | SweepResult,
    *,
    records: Sequence[RequestRecord] | None = None,
    server_series: ServerSeries | None = None,
) -> None:
    """Write the report of a run or of a sweep, whole or not at all.

    Args:
        path: the file to write; an existing one is replaced.
        records: a run's requests, for the plots that show single ones. Not used for sweeps.
        server_series: the server's own figures during a run. Not used for sweeps.
    Raises: OutputError if it cannot be written.
    """
    if isinstance(result, SweepResult):
        page, version = sweep_page(result), result.points[0].result.version if result.points else ""
    else:
        page, version = run_page(result, records=records, server_series=server_series), result.version
    text = render(page, version)
    with explained(path):
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)


def render(page: Page, version: str) -> str:
    """A page as the text of an HTML file."""
    data = msgspec.json.encode(page.charts).decode().replace("<", "\\u003c")
    return Template(_asset("page.html")).substitute(
        title=escape(page.title),
        navigation="".join(f'<a href="#{escape(anchor)}">{escape(title)}</a>' for anchor, title in page.navigation),
        body="\n".join(page.body),
        version=escape(version),
        licence=escape(_asset("uPlot.LICENSE.txt").strip()),
        charts=data,
        uplot_css=_asset("uPlot.min.css").strip(),
        css=_asset("report.css"),
        uplot=_asset("uPlot.iife.min.js").strip(),
        script="\n".join(_asset(name) for name in _SCRIPTS),
    )


def _asset(name: str) -> str:
    """A file that the page is made of."""
    return (importlib.resources.files("loadgen.report") / "assets" / name).read_text(encoding="utf-8")
