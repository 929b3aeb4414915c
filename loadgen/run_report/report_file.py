"""Writes report.html of a run or of a sweep."""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from loadgen.errors import explained
from loadgen.record import RequestRecord
from loadgen.report import numbers
from loadgen.report.fragments import Html, element, folded_warnings, join, tile
from loadgen.report.page import Page, facts, render, tiles
from loadgen.report.table import Cell, Table, TableRow, columns, html_table
from loadgen.result import RunResult, SweepPoint, SweepResult
from loadgen.run_folder import REPORT
from loadgen.run_report.names import METRIC_TITLES, count_by_kind
from loadgen.run_report.run_page import add_ending, run_page
from loadgen.run_report.sweep_charts import load_text, sweep_charts, sweep_warnings
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


# The page of a sweep: the server's limit, the curves, and each point with a link to its own report.

_COLUMNS = (("ttft", "50"), ("ttft", "99"), ("tpot", "50"), ("tpot", "99"))


def sweep_page(sweep: SweepResult) -> Page:
    """The page of a sweep or a saturation search."""
    first = sweep.points[0].result if sweep.points else None
    kind = "Request-rate" if sweep.parameter == "rate" else "Concurrency"
    page = Page(f"{kind} sweep of {(first.model if first else '') or 'a server'}")
    page.body.append(element("h1", page.title))
    if first:
        pairs = [
            ("server", f"{first.url}{first.endpoint}"), ("started", first.started_at), ("runs", len(sweep.points)),
            ("requests", f"{sum(point.result.requests for point in sweep.points):,}"), *first.metadata.items(),
        ]  # fmt: skip
        page.body.append(facts(pairs))
    page.body += [_notes(sweep), _tiles(sweep)]
    charts = sweep_charts(sweep)
    front = [chart for chart in charts if chart.id == "pareto"]
    trade_off = [chart for chart in charts if chart.id.startswith("throughput-")]
    page.add("front", "What a user and an NPU get", page.draw(front), short="Users and NPUs")
    page.add("trade-off", "Throughput against latency", page.draw(trade_off))
    page.add("load", "Against the load", page.draw([chart for chart in charts if chart not in [*front, *trade_off]]))
    page.add("points", "Every point", _points_table(sweep))
    if first:
        add_ending(page, first)
    return page


def _notes(sweep: SweepResult) -> Html:
    """The outcome of a search, and every warning, folded."""
    outcome = Html("")
    if sweep.explanation:
        css = " class=good" if sweep.best is not None else ""
        outcome = Html(f'<ul class="notes"><li{css}>{escape(sweep.explanation)}</li></ul>')
    return join([outcome, folded_warnings(sweep_warnings(sweep))])


def _tiles(sweep: SweepResult) -> Html:
    """Largest load within the SLOs and largest throughput."""
    parts = []
    tested = any(point.result.slo for point in sweep.points)
    if tested:
        unit = "requests/s" if sweep.parameter == "rate" else "concurrent"
        best = f"{sweep.best:.4g}" if sweep.best is not None else "none"
        failed = (
            f"first that did not: {load_text(sweep.parameter, sweep.first_failed)}"
            if sweep.first_failed is not None
            else ""
        )
        slo = next(point.result.slo for point in sweep.points if point.result.slo)
        limits = ", ".join(f"{METRIC_TITLES.get(name, name)} ≤ {numbers.limit(at)}" for name, at in slo.targets.items())
        more = [line for line in (failed, limits) if line]
        parts.append(tile("Largest load within the SLOs", best, unit if sweep.best is not None else "", more))
    if sweep.points:
        top = max(sweep.points, key=lambda point: point.result.throughput.output_tokens_per_s)
        rate = numbers.significant(top.result.throughput.output_tokens_per_s)
        parts.append(
            tile("Most output tokens per second", rate, "tokens/s", [f"at {load_text(sweep.parameter, top.value)}"])
        )
        goods = [point for point in sweep.points if point.result.throughput.goodput_per_s is not None]
        if goods:
            good = max(goods, key=lambda point: point.result.throughput.goodput_per_s or 0.0)
            figure = numbers.significant(good.result.throughput.goodput_per_s)
            parts.append(tile("Best goodput", figure, "requests/s", [f"at {load_text(sweep.parameter, good.value)}"]))
    return tiles(parts)


def _points_table(sweep: SweepResult) -> Html:
    """One row per point."""
    if not sweep.points:
        return Html("")
    tested = any(point.result.slo for point in sweep.points)
    head = ["load", "requests/s", "output tokens/s"]
    head += [f"{METRIC_TITLES[name]} {numbers.percentile_name(percentile)}" for name, percentile in _COLUMNS]
    head += ["failed", *(["within SLOs", "goodput/s"] if tested else []), "report"]
    rows = [
        TableRow(_point_row(sweep, point, tested), "best" if point.value == sweep.best else "")
        for point in sweep.points
    ]
    return html_table(Table(columns(*head), rows))


def _point_row(sweep: SweepResult, point: SweepPoint, tested: bool) -> list[object]:
    """One point's main figures."""
    result = point.result
    row: list[object] = [
        load_text(sweep.parameter, point.value),
        numbers.significant(result.throughput.requests_per_s),
        numbers.significant(result.throughput.output_tokens_per_s),
    ]
    for name, percentile in _COLUMNS:
        metric = result.metrics.get(name)
        limit = result.slo.targets.get(name) if result.slo else None
        value = metric.percentiles.get(percentile) if metric else None
        late = value is not None and limit is not None and value > limit
        row.append(Cell(numbers.duration(value), "bad" if late else ""))
    failed = count_by_kind(result.outcomes)["failed"]
    row.append(Cell(f"{failed:,}", "bad" if failed else ""))
    if tested:
        row.append(numbers.share(result.slo.attainment if result.slo else None))
        row.append(numbers.significant(result.throughput.goodput_per_s))
    row.append(Html(f'<a href="{escape(point.folder)}/{REPORT}">open</a>') if point.folder else numbers.MISSING)
    return row
