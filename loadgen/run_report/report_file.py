"""Writes report.html of a run or of a sweep."""

import os
from collections.abc import Sequence
from pathlib import Path

from loadgen.output import explained
from loadgen.record import RequestRecord
from loadgen.report.html import render
from loadgen.report.page import Page
from loadgen.result import RunResult, SweepResult
from loadgen.run_report.run_page import run_page
from loadgen.run_report.sweep_page import sweep_page
from loadgen.server.series import ServerSeries


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
    write_page(path, page, version)


def write_page(path: Path, page: Page, version: str) -> None:
    """Write a page of this program's, whole or not at all. Effects: replaces the file. Raises: OutputError."""
    text = render(page, f"loadgen {version}".strip())
    with explained(path):
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
