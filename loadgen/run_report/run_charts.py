"""The plots of one run: percentile curves, time line, and how a first token depends on the prompt's length."""

from collections.abc import Callable, Sequence

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
from loadgen.report.numbers import duration, share, significant
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


# Lengths of prompts and responses: a histogram of each, and the first token's dependence on the prompt.

MOST_BINS = 40
_LEAST_BINS = 8
"""Fewer would make bars as wide as the plot."""
_STEPS = (1, 2, 5)

Length = Callable[[RequestRecord], int | None]


def length_charts(records: Sequence[RequestRecord]) -> list[LineChart]:
    """Histograms of prompts and responses of the successful requests; without a side whose lengths are unknown.

    Responses with longer requested lengths, or prompts with other lengths in the server's count, have a second curve.
    """
    good = [record for record in records if not record.warmup and record.outcome in SUCCESSES]
    sides: tuple[tuple[str, str, Length, Length], ...] = (
        ("input", "Prompt lengths", lambda record: record.input_tokens, lambda record: record.planned_input_tokens),
        ("output", "Answer lengths", lambda record: record.output_tokens, lambda record: record.planned_output_tokens),
    )
    charts = []
    for side, title, reported, planned in sides:
        lengths = [length for record in good if (length := reported(record)) is not None]
        plan = [length for record in good if reported(record) is not None and (length := planned(record)) is not None]
        if lengths:
            charts.append(_histogram(side, title, lengths, plan if len(plan) == len(lengths) else []))
    return charts


def _histogram(side: str, title: str, lengths: Sequence[int], planned: Sequence[int]) -> LineChart:
    """One side; a second curve for the planned lengths, if they differ."""
    differs = bool(planned) and sorted(planned) != sorted(lengths)
    edges = bin_edges([*lengths, *(planned if differs else [])])
    lines = [Line(name="requests", values=_counts(lengths, edges), color="blue", steps=True, fill=True)]
    if differs:
        lines.insert(0, Line(name="planned", values=_counts(planned, edges), color="grey", steps=True, dash=True))
    width = edges[1] - edges[0]
    ordered = sorted(lengths)
    spread = (
        f"All have {ordered[0]:,}."
        if ordered[0] == ordered[-1]
        else f"Median {ordered[len(ordered) // 2]:,}, mean {significant(sum(ordered) / len(ordered))}, "
        f"longest {ordered[-1]:,}."
    )
    return LineChart(
        id=f"{side}-lengths",
        title=title,
        note=f"{spread} Requests per {'length' if width == 1 else f'bin of {width:,} tokens'}.",
        x=Axis(unit="tokens", label="tokens"),
        y=Axis(unit="count", low=0.0),
        xs=[float(edge) for edge in edges],
        lines=lines,
    )


def bin_edges(lengths: Sequence[int]) -> list[int]:
    """Edges of bins of equal, round width that hold all lengths, with an empty bin at either side if it fits.

    Args:
        lengths: at least one.
    """
    low, high = min(lengths), max(lengths)
    width, exponent = 1, 0
    while (high - low) // width + 1 > MOST_BINS:
        exponent += 1
        width = _STEPS[exponent % 3] * 10 ** (exponent // 3)
    first, last = low // width - 1, high // width + 2
    missing = max(0, _LEAST_BINS - (last - first))
    first, last = max(0, first - missing // 2), last + (missing + 1) // 2
    return [place * width for place in range(first, last + 1)]


def _counts(lengths: Sequence[int], edges: Sequence[int]) -> list[float | None]:
    """Lengths in each bin, and 0 at the last edge."""
    width = edges[1] - edges[0]
    counts = [0] * len(edges)
    for length in lengths:
        counts[(length - edges[0]) // width] += 1
    return [float(count) for count in counts]
