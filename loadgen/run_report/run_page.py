"""The page of one run: what a reader must know first, the main figures, plots, tables, settings."""

import re
from collections.abc import Mapping, Sequence

from loadgen.record import RequestRecord
from loadgen.report import numbers
from loadgen.report.chart import Axis, Chart, Line, LineChart, compact_all
from loadgen.report.fragments import Html, details, element, folded_warnings, html, join
from loadgen.report.job_table import job_section
from loadgen.report.page import Page, facts
from loadgen.report.table import columns, html_table, table_of
from loadgen.result import Generator, RunResult
from loadgen.run_report.names import BUSY_MACHINE, KEPT_UP, OWN_LIMIT, generator_figures
from loadgen.run_report.run_charts import (
    TIME_AXIS,
    TIME_GROUP,
    length_charts,
    percentile_charts,
    prompt_length_chart,
    time_charts,
)
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
from loadgen.run_report.waterfall import waterfall_chart
from loadgen.server.series import HIT_SHARE, ServerSeries

# The server's own figures on the run's time axis: the most useful ones first, then all others.

_COLORS = ("blue", "orange", "green", "violet")

_FAMILIES = (
    (
        "server-requests", "Requests in the server", "At the moment of each scrape.", "count",
        {"vllm:num_requests_running": "running", "vllm:num_requests_waiting": "waiting"},
    ),
    (
        "server-kv", "KV cache in use", "At the moment of each scrape.", "share",
        {"vllm:kv_cache_usage_perc": "in use", "vllm:gpu_cache_usage_perc": "in use"},
    ),
    (
        "server-hits", "Prefix cache hits", "Share of the prompt tokens looked up since the scrape before.", "share",
        {HIT_SHARE: "hit share"},
    ),
    (
        "server-tokens", "Tokens per second in the server", "Counted by the server, between scrapes.", "per_s",
        {"vllm:prompt_tokens_per_s": "prompt", "vllm:generation_tokens_per_s": "generated"},
    ),
    (
        "server-times", "Mean times reported by the server", "Of the requests observed between scrapes.", "s",
        {
            "vllm:request_queue_time_seconds_mean": "queueing",
            "vllm:time_to_first_token_seconds_mean": "time to first token",
        },
    ),
)  # fmt: skip
_UNITS = (("_seconds_mean", "s"), ("_perc", "share"), ("_share", "share"), ("_per_s", "per_s"))


def main_server_charts(series: ServerSeries) -> list[LineChart]:
    """Running and waiting requests, KV cache, prefix cache hits, tokens and times, as far as the server has them."""
    charts = []
    for chart_id, title, note, unit, members in _FAMILIES:
        lines = [
            (label, series.values[name]) for name, label in members.items() if _has_values(series.values.get(name, []))
        ]
        if lines:
            charts.append(_chart(chart_id, title, note, unit, series.times_s, lines))
    return charts


def other_server_charts(series: ServerSeries) -> list[LineChart]:
    """One chart for each other figure that moved during the run, by name."""
    shown = {name for *_, members in _FAMILIES for name in members}
    return [
        _chart(f"server-{number}", _title(name), "", _unit(name), series.times_s, [(_title(name), values)])
        for number, (name, values) in enumerate(sorted(series.values.items()))
        if name not in shown and _moved(values)
    ]


def _chart(
    chart_id: str,
    title: str,
    note: str,
    unit: str,
    times_s: Sequence[float],
    lines: Sequence[tuple[str, Sequence[float | None]]],
) -> LineChart:
    """Some curves over the run's time."""
    return LineChart(
        id=chart_id,
        title=title,
        note=note,
        x=TIME_AXIS,
        y=Axis(unit=unit),
        xs=[round(time, 3) for time in times_s],
        lines=[
            Line(name=name, values=compact_all(values), color=color)
            for (name, values), color in zip(lines, _COLORS, strict=False)
        ],
        group=TIME_GROUP,
    )


def _title(name: str) -> str:
    """A metric's name without the part shown on its axis."""
    return re.sub(r"(_per_s|_mean)$", "", name)


def _unit(name: str) -> str:
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), "number")


def _has_values(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _moved(values: Sequence[float | None]) -> bool:
    """Whether it was not the same all the time."""
    return len({value for value in values if value is not None}) > 1


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
    page.add("jobs", "Jobs", *job_section(result.jobs))
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
