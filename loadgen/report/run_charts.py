"""The plots of one run: percentile curves, time line, and how a first token depends on the prompt's length."""

from collections.abc import Sequence

from loadgen.record import SUCCESSES, RequestRecord
from loadgen.report.chart import (
    Axis,
    Limit,
    Line,
    LineChart,
    ScatterChart,
    Trace,
    compact,
    compact_all,
    percentile_position,
)
from loadgen.report.names import METRIC_TITLES
from loadgen.report.numbers import duration, share
from loadgen.report.numbers import limit as limit_text
from loadgen.result import Distribution, RunResult, TimelinePoint

TIME_GROUP = "time"
TIME_AXIS = Axis(unit="s", label="time since the start of the run")
MAX_DOTS = 2000

_CURVES = (
    ("ttft", "Time to first token", (("ttft", "from the intended send"), ("ttft_sent", "from the actual send"))),
    ("e2e", "End to end", (("e2e", "from the intended send"), ("e2e_sent", "from the actual send"))),
    ("tpot", "Time per output token", (("tpot", "mean of a request (TPOT)"),)),
    ("itl", "Gaps inside a stream", (("itl", "between chunks (ITL)"), ("itl_token", "per token"))),
)


def percentile_charts(result: RunResult) -> list[LineChart]:
    """One chart of percentile curves for each latency that was measured, SLOs as lines."""
    limits = result.slo.targets if result.slo else {}
    charts = []
    for name, title, curves in _CURVES:
        found = [(label, result.metrics[metric]) for metric, label in curves if _has_curve(result, metric)]
        if found:
            charts.append(_percentile_chart(name, title, found, limits.get(name)))
    return charts


def time_charts(result: RunResult) -> list[LineChart]:
    """What happened over the run's time; empty if the result has no time line."""
    points = result.timeline
    if not points:
        return []
    limits = result.slo.targets if result.slo else {}
    charts = [
        _rates(points),
        _time_chart(points, "running", "Requests open", "Sent and not ended, at the end of each bin.", "count"),
        _time_chart(points, "tokens", "Output tokens per second", "Tokens that reached the client.", "per_s"),
    ]
    for name, title in (("ttft", "Time to first token"), ("tpot", "Time per output token")):
        chart = _percentiles_over_time(points, name, title, limits.get(name))
        if any(value is not None for line in chart.lines for value in line.values):
            charts.append(chart)
    return charts


def prompt_length_chart(records: Sequence[RequestRecord]) -> ScatterChart | None:
    """TTFT of each request against its input tokens; None unless lengths differ and were told."""
    answered = [
        record
        for record in records
        if not record.warmup and record.outcome in SUCCESSES and record.chunk_times and record.started_s is not None
    ]
    lengths = {_input_tokens(record) for record in answered} - {None}
    if len(lengths) < 3:
        return None
    step = -(-len(answered) // MAX_DOTS)
    chosen = [record for record in answered[::step] if _input_tokens(record) is not None]
    cached = [record for record in chosen if record.cached_tokens]
    plain = [record for record in chosen if not record.cached_tokens]
    note = "From the actual send: the server's part, without the schedule's."
    return ScatterChart(
        id="ttft-by-input",
        title="Time to first token by prompt length",
        note=note if step == 1 else f"{note} Every {_ordinal(step)} successful request.",
        x=Axis(unit="tokens", label="input tokens"),
        y=Axis(unit="s"),
        traces=[
            _dots(name, some, color)
            for name, some, color in (
                ("no cached tokens" if cached else "successful requests", plain, "blue"),
                ("part of the prompt cached", cached, "green"),
            )
            if some
        ],
    )


def _has_curve(result: RunResult, metric: str) -> bool:
    """Whether a metric was measured."""
    return metric in result.metrics and bool(result.metrics[metric].curve)


def _percentile_chart(
    name: str, title: str, found: Sequence[tuple[str, Distribution]], limit: float | None
) -> LineChart:
    """Curves of one or two distributions; a second one is dashed behind the first."""
    placed = [
        {percentile_position(percentile, metric.count): compact(value) for percentile, value in metric.curve}
        for _, metric in found
    ]
    xs = sorted({x for curve in placed for x in curve})
    lines = [
        Line(
            name=label,
            values=[curve.get(x) for x in xs],
            color=("blue", "orange")[position],
            dash=position > 0,
        )
        for position, ((label, _), curve) in enumerate(zip(found, placed, strict=True))
    ]
    return LineChart(
        id=f"{name}-percentiles",
        title=title,
        note=f"{found[0][1].count:,} values; the largest is {duration(found[0][1].max)}.",
        x=Axis(unit="percentile", label="percentile"),
        y=Axis(unit="s"),
        xs=xs,
        lines=lines,
        limits=_limits(limit),
        bridge=True,
    )


def _rates(points: Sequence[TimelinePoint]) -> LineChart:
    """Requests sent, finished and failed per second."""
    width = bin_width(points)
    lines = [
        Line(name="sent", values=compact_all(point.sent / width for point in points), color="grey", dash=True),
        Line(name="finished", values=compact_all(point.finished / width for point in points), color="blue"),
    ]
    if any(point.failed for point in points):
        lines.append(Line(name="failed", values=compact_all(point.failed / width for point in points), color="red"))
    return LineChart(
        id="rates",
        title="Requests per second",
        note=f"In bins of {duration(width)}.",
        x=TIME_AXIS,
        y=Axis(unit="per_s"),
        xs=_middles(points),
        lines=lines,
        group=TIME_GROUP,
    )


def _time_chart(points: Sequence[TimelinePoint], name: str, title: str, note: str, unit: str) -> LineChart:
    """One quantity over time, filled to zero."""
    width = bin_width(points)
    values = [point.running if name == "running" else point.output_tokens / width for point in points]
    xs = [point.t_s + width for point in points] if name == "running" else _middles(points)
    color = "violet" if name == "running" else "green"
    return LineChart(
        id=name,
        title=title,
        note=note,
        x=TIME_AXIS,
        y=Axis(unit=unit),
        xs=[round(x, 6) for x in xs],
        lines=[Line(name=title.lower(), values=compact_all(values), color=color, fill=True)],
        group=TIME_GROUP,
    )


def _percentiles_over_time(points: Sequence[TimelinePoint], name: str, title: str, limit: float | None) -> LineChart:
    """Median and 99th percentile of the requests that finished in each bin."""
    return LineChart(
        id=f"{name}-over-time",
        title=title,
        note="Of the requests that finished in each bin; counted from the intended send."
        if name == "ttft"
        else "Of the requests that finished in each bin.",
        x=TIME_AXIS,
        y=Axis(unit="s"),
        xs=_middles(points),
        lines=[
            Line(name="p50", values=compact_all(getattr(point, f"{name}_p50_s") for point in points), color="blue"),
            Line(name="p99", values=compact_all(getattr(point, f"{name}_p99_s") for point in points), color="orange"),
        ],
        limits=_limits(limit),
        group=TIME_GROUP,
    )


def bin_width(points: Sequence[TimelinePoint]) -> float:
    """Width of a bin [s]; 1 for a time line of one bin, which does not tell."""
    return points[1].t_s - points[0].t_s if len(points) > 1 else 1.0


def _middles(points: Sequence[TimelinePoint]) -> list[float]:
    """Middle of each bin: where a rate over the bin belongs."""
    width = bin_width(points)
    return [round(point.t_s + width / 2, 6) for point in points]


def _limits(limit: float | None) -> list[Limit]:
    """The line of an SLO."""
    return [] if limit is None else [Limit(name=f"SLO {limit_text(limit)}", value=limit)]


def _input_tokens(record: RequestRecord) -> int | None:
    """What the server counted, else what was planned."""
    return record.planned_input_tokens if record.input_tokens is None else record.input_tokens


def _dots(name: str, records: Sequence[RequestRecord], color: str) -> Trace:
    """One dot per request."""
    return Trace(
        name=name,
        xs=[float(_input_tokens(record) or 0) for record in records],
        ys=[compact(record.chunks()[0] - (record.started_s or 0.0)) or 0.0 for record in records],
        color=color,
        labels=[_dot_label(record) for record in records],
    )


def _dot_label(record: RequestRecord) -> str:
    """What a dot says when it is pointed at."""
    tokens = _input_tokens(record)
    cached = f", {share(record.cached_tokens / tokens)} cached" if record.cached_tokens and tokens else ""
    return f"{METRIC_TITLES['ttft']} of request {record.index}.{record.turn}{cached}"


def _ordinal(number: int) -> str:
    """2 -> "2nd"."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
