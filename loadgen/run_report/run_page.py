"""The page of one run: what a reader must know first, the main figures, plots, tables, settings."""

from collections.abc import Mapping, Sequence

from loadgen.record import RequestRecord
from loadgen.report import numbers
from loadgen.report.chart import Chart
from loadgen.report.fragments import Html, details, element, folded_warnings, html, join
from loadgen.report.page import Page, facts
from loadgen.report.table import columns, html_table, table_of
from loadgen.result import Generator, RunResult
from loadgen.run_report.names import BUSY_MACHINE, KEPT_UP, OWN_LIMIT, generator_figures
from loadgen.run_report.run_charts import length_charts, percentile_charts, prompt_length_chart, time_charts
from loadgen.run_report.run_tables import (
    definitions_table,
    errors_table,
    latency_tables,
    lengths_table,
    outcome_bar,
    repetitions_table,
    samples_table,
    steady_state,
    tiles,
)
from loadgen.run_report.server_charts import main_server_charts, other_server_charts
from loadgen.run_report.waterfall import waterfall_chart
from loadgen.server.series import ServerSeries


def run_page(result: RunResult, *, records: Sequence[RequestRecord] | None, server_series: ServerSeries | None) -> Page:
    """The page of one run.

    Args:
        records: all requests, for the plots that show single ones; None leaves those out.
        server_series: the server's own figures; None leaves them out.
    """
    page = Page(f"Load test of {result.model or 'a server'}")
    page.body += [_heading(page.title, result), notes(result), tiles(result)]
    latency_note = (
        "Percentiles are exact. The axis gets denser towards the tail: each further nine is as wide as the last."
    )
    page.add(
        "latency", "Latency", element("p", latency_note, "soft"), page.draw(percentile_charts(result)),
        latency_tables(result), steady_state(result),
    )  # fmt: skip
    waterfall = waterfall_chart(records) if records else None
    page.add(
        "time", "Over time", page.draw(time_charts(result)),
        page.draw([waterfall], single=True) if waterfall else "",
    )  # fmt: skip
    if server_series and server_series.times_s:
        page.add("server", "The server's own figures", *_server(page, server_series))
    by_length = prompt_length_chart(records) if records else None
    lengths: list[Chart] = [*length_charts(records or ()), *([by_length] if by_length else [])]
    page.add("prompts", "Prompts and answers", page.draw(lengths), samples_table(result), short="Prompts")
    page.add("requests", "Requests", outcome_bar(result), errors_table(result), lengths_table(result))
    page.add("repetitions", "Repetitions", repetitions_table(result))
    add_ending(page, result)
    return page


def add_ending(page: Page, result: RunResult) -> None:
    """Definitions and settings, which every page ends with."""
    page.add("definitions", "What the metrics mean", definitions_table(list(result.metrics)))
    page.add("settings", "Settings", *_settings(result))


def notes(result: RunResult) -> Html:
    """The generator's verdict, and below it every warning, folded."""
    items = []
    if result.interrupted:
        items.append(_note("bad", "The run was interrupted.", ["What is shown is what was finished by then."]))
    items.extend(_generator_notes(result.generator))
    return join([Html(f'<ul class="notes">{join(items)}</ul>'), folded_warnings(result.warnings)])


def _heading(title: str, result: RunResult) -> Html:
    """Title, and where, when and how long."""
    pairs = [
        ("", result.label), ("server", f"{result.url}{result.endpoint}"), ("started", result.started_at),
        ("lasted", numbers.duration(result.duration_s)), ("requests", f"{result.requests:,}"),
        ("seed", result.seed), *result.metadata.items(),
    ]  # fmt: skip
    return join([element("h1", title), facts(pairs)])


def _note(css: str, lead: str, lines: Sequence[str]) -> Html:
    """One note: an emphasised start and the rest."""
    head = f"<b>{html(lead)}</b> " if lead else ""
    if len(lines) > 1:
        inner = f"{head}<ul>{''.join(element('li', line) for line in lines)}</ul>"
    else:
        inner = f"{head}{html(lines[0])}" if lines else head
    return Html(f"<li{f' class={chr(34)}{css}{chr(34)}' if css else ''}>{inner}</li>")


def _generator_notes(generator: Generator) -> list[Html]:
    """Whether the figures can be believed as the server's."""
    found = []
    if generator.is_bottleneck:
        found.append(_note("bad", OWN_LIMIT, generator.reasons))
    if generator.machine_was_busy:
        found.append(_note("", BUSY_MACHINE, generator.machine_reasons))
    return found or [_note("good", KEPT_UP, [generator_figures(generator)])]


def _server(page: Page, series: ServerSeries) -> list[Html]:
    """Main charts of the server's metrics, and the others in a collapsed section."""
    main, others = main_server_charts(series), other_server_charts(series)
    parts = [
        element("p", "Scraped from its /metrics during the run, on the same time axis as the plots above.", "soft"),
        page.draw(main),
    ]
    if others:
        parts.append(details(f"{len(others)} more that moved", page.draw(others)))
    return parts if main or others else []


def _settings(result: RunResult) -> list[Html]:
    """Every flag with its value, and the command."""
    rows = [[name, _value(value)] for name, value in sorted(result.settings.items()) if value not in (None, "", [])]
    command = Html(f'<code class="command">{html(result.command)}</code>') if result.command else Html("")
    if not rows:
        return [command] if command else []
    heads = columns("setting", "value", text=("setting",), long=("value",))
    return [command, details(f"All {len(rows)} settings", html_table(table_of(heads, rows)))]


def _value(value: object) -> str:
    """A setting as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={inner}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
