"""The server's own figures on the run's time axis: the most useful ones first, then all others."""

import re
from collections.abc import Sequence

from loadgen.report.chart import Axis, Line, LineChart, compact_all
from loadgen.run_report.run_charts import TIME_AXIS, TIME_GROUP
from loadgen.server.series import HIT_SHARE, ServerSeries

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
