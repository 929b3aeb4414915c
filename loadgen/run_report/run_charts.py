"""The plots of one run: percentile curves, time line, and how a first token depends on the prompt's length."""

from collections.abc import Sequence

from loadgen.record import SUCCESSES, RequestRecord
from loadgen.report.chart import (
    Axis,
    Limit,
    Line,
    LineChart,
    ScatterChart,
    ScatterTrace,
    compact,
    compact_all,
    percentile_position,
)
from loadgen.report.numbers import duration, share
from loadgen.report.numbers import limit as limit_text
from loadgen.result import MetricDistribution, RunResult, TimelinePoint
from loadgen.run_report.names import METRIC_TITLES

TIME_GROUP = "time"
TIME_AXIS = Axis(unit="s", label="time since the start of the run")
MAX_DOTS = 2000

_CURVES = (
    ("ttft", "Time to first token", (("ttft", "from the intended send"), ("ttft_sent", "from the actual send"))),
    ("e2e", "End to end", (("e2e", "from the intended send"), ("e2e_sent", "from the actual send"))),
    ("tpot", "Time per output token", (("tpot", "mean of a request (TPOT)"),)),
    ("itl", "Gaps inside a stream", (("itl", "between chunks (ITL)"), ("itl_token", "per token"))),
)


CURVE_TITLES = {name: title for name, title, _ in _CURVES}
"""Latencies that have a chart of percentile curves, in its order."""


def percentile_charts(result: RunResult) -> list[LineChart]:
    """One chart of percentile curves for each latency that was measured, SLOs as lines."""
    limits = result.slo.targets if result.slo else {}
    charts = []
    for name, title, curves in _CURVES:
        found = [(label, result.metrics[metric]) for metric, label in curves if _has_curve(result, metric)]
        if found:
            charts.append(percentile_chart(name, title, found, limits.get(name)))
    return charts


def time_charts(result: RunResult) -> list[LineChart]:
    """Charts over the run's time; empty if the result has no time line."""
    points = result.timeline
    if not points:
        return []
    limits = result.slo.targets if result.slo else {}
    charts = [
        _rates(points),
        _open_chart(points),
        _tokens_chart(points),
    ]
    for name, title in (("ttft", "Time to first token"), ("tpot", "Time per output token")):
        chart = _percentiles_over_time(points, name, title, limits.get(name))
        if any(value is not None for line in chart.lines for value in line.values):
            charts.append(chart)
    return charts


def prompt_length_chart(records: Sequence[RequestRecord]) -> ScatterChart | None:
    """TTFT of each request against its input tokens; None unless lengths differ and are known."""
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
    return metric in result.metrics and bool(result.metrics[metric].curve)


def percentile_chart(
    name: str, title: str, found: Sequence[tuple[str, MetricDistribution]], limit: float | None
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
    sent = _per_second(points, [point.sent for point in points])
    finished = _per_second(points, [point.finished for point in points])
    lines = [
        Line(name="sent", values=sent, color="grey", dash=True),
        Line(name="finished", values=finished, color="blue"),
    ]
    if any(point.failed for point in points):
        failed = _per_second(points, [point.failed for point in points])
        lines.append(Line(name="failed", values=failed, color="red"))
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


def _open_chart(points: Sequence[TimelinePoint]) -> LineChart:
    """Requests open at once: mean and peak of each bin; a result of an older version has the bins' ends only."""
    peaks = [point.open_peak for point in points]
    if None in peaks:
        note, xs = "Sent and not ended, at the end of each bin.", [point.t_s + bin_width(points) for point in points]
        lines = [Line(name="requests open", values=compact_all(p.running for p in points), color="violet", fill=True)]
    else:
        note, xs = "Sent and not ended: time average and largest number in each bin.", _middles(points)
        means = compact_all(point.open_mean for point in points)
        lines = [
            Line(name="mean", values=means, color="violet", fill=True),
            Line(name="peak", values=compact_all(peaks), color="grey", dash=True),
        ]
    return LineChart(
        id="running",
        title="Requests open",
        note=note,
        x=TIME_AXIS,
        y=Axis(unit="count"),
        xs=[round(x, 6) for x in xs],
        lines=lines,
        group=TIME_GROUP,
    )


def _tokens_chart(points: Sequence[TimelinePoint]) -> LineChart:
    """Rate of output tokens, filled to zero."""
    values = _per_second(points, [point.output_tokens for point in points])
    return LineChart(
        id="tokens",
        title="Output tokens per second",
        note="Tokens that reached the client.",
        x=TIME_AXIS,
        y=Axis(unit="per_s"),
        xs=_middles(points),
        lines=[Line(name="output tokens per second", values=values, color="green", fill=True)],
        group=TIME_GROUP,
    )


def _per_second(points: Sequence[TimelinePoint], counts: Sequence[int]) -> list[float | None]:
    """Counts of the bins as rates; for a partly covered bin, over the covered part."""
    width = bin_width(points)
    widths = [width if point.width_s is None else point.width_s for point in points]
    return compact_all(count / part if part > 0 else 0.0 for count, part in zip(counts, widths, strict=True))


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
    """Width of a bin [s]; for a timeline of one bin, its width in the run."""
    if len(points) > 1:
        return points[-1].t_s - points[-2].t_s
    return points[0].width_s or 1.0


def _middles(points: Sequence[TimelinePoint]) -> list[float]:
    width = bin_width(points)
    return [round(point.t_s + width / 2, 6) for point in points]


def _limits(limit: float | None) -> list[Limit]:
    return [] if limit is None else [Limit(name=f"SLO {limit_text(limit)}", value=limit)]


def _input_tokens(record: RequestRecord) -> int | None:
    return record.planned_input_tokens if record.input_tokens is None else record.input_tokens


def _dots(name: str, records: Sequence[RequestRecord], color: str) -> ScatterTrace:
    """One dot per request."""
    return ScatterTrace(
        name=name,
        xs=[float(_input_tokens(record) or 0) for record in records],
        ys=[compact(record.chunks()[0] - (record.started_s or 0.0)) or 0.0 for record in records],
        color=color,
        labels=[_dot_label(record) for record in records],
    )


def _dot_label(record: RequestRecord) -> str:
    tokens = _input_tokens(record)
    cached = f", {share(record.cached_tokens / tokens)} cached" if record.cached_tokens and tokens else ""
    return f"{METRIC_TITLES['ttft']} of request {record.index}.{record.turn}{cached}"


def _ordinal(number: int) -> str:
    """2 -> "2nd"."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
