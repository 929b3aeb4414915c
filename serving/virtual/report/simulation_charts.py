"""Charts of a simulation: requests, and the system over time."""

from collections.abc import Sequence

import numpy as np

from loadgen.report.chart import Axis, Limit, Line, LineChart, Marks, TimeAxis, tidy
from loadgen.report.numbers import limit
from serving.virtual.report.latencies import Flags, Floats, Latencies, Slo, floats, good_requests, ints
from serving.virtual.result import SimResult

# Charts of requests: latency distributions, and rates and latencies over time.

_QUANTILES = 400
_MOST_BINS, _LEAST_BINS = 100, 20
_REQUESTS_A_BIN = 20
_LOG_FROM = 20.0
"""Values that span more than this are shown on a logarithmic axis."""


def distribution_charts(times: Latencies, slo: Slo | None) -> list[LineChart]:
    """Cumulative distributions of TTFT, TPOT and end-to-end latency with their limits, where there are values."""
    slo = slo or Slo()
    metrics = (
        ("ttft", "Time to first token", times.ttft_s, slo.ttft_s, "blue"),
        ("tpot", "Time per output token", times.tpot_s, slo.tpot_s, "violet"),
        ("e2e", "End to end", times.e2e_s, None, "green"),
    )
    return [
        _distribution(f"cdf-{name}", title, present, limit_s, color)
        for name, title, values, limit_s, color in metrics
        if len(present := values[~np.isnan(values)])
    ]


def rate_chart(result: SimResult, times: Latencies, slo: Slo | None, axis: TimeAxis) -> LineChart:
    """Requests per second over time: arrived, finished, and finished within the SLOs."""
    edges = _edges(axis.end_s, len(result.requests))
    finish = floats(result.requests.finish_s)
    lines = [
        _rate("arrived", floats(result.requests.arrival_s), edges, "grey"),
        _rate("finished", finish[times.finished], edges, "blue"),
    ]
    if slo:
        lines.append(_rate("within the SLOs", finish[good_requests(times, slo)], edges, "green"))
    return axis.chart("line-rate", "Requests per second", edges.tolist(), lines, "per_s")


def latency_chart(
    chart_id: str, title: str, result: SimResult, values: Floats, limit_s: float | None, axis: TimeAxis
) -> LineChart:
    """Median and 99th percentile of a latency over time of arrival."""
    edges = _edges(axis.end_s, len(result.requests))
    present = ~np.isnan(values)
    groups = _by_bin(floats(result.requests.arrival_s), present, values, edges)
    lines = [
        Line(name=f"p{percentile}", values=_percentiles(groups, percentile), color=color, dash=percentile > 50)
        for percentile, color in ((50, "blue"), (99, "orange"))
    ]
    return axis.chart(chart_id, title, _middles(edges), lines, "s", limits=_limits(limit_s))


def cache_chart(result: SimResult, times: Latencies, axis: TimeAxis) -> LineChart:
    """Cached part of the prompt tokens, over time of arrival."""
    edges = _edges(axis.end_s, len(result.requests))
    begun = ~np.isnan(times.ttft_s)
    arrival, requests = floats(result.requests.arrival_s)[begun], result.requests
    prompt = np.histogram(arrival, edges, weights=ints(requests.prompt_tokens)[begun])[0]
    lines = []
    for name, column, color in (
        ("all", requests.cached_tokens, "blue"),
        ("from the pool", requests.pulled_tokens, "green"),
    ):
        found = np.histogram(arrival, edges, weights=ints(column)[begun])[0]
        shares = np.divide(found, prompt, out=np.full(len(prompt), np.nan), where=prompt > 0)
        lines.append(Line(name=name, values=shares.tolist(), color=color))
    return axis.chart("line-cache", "Prompt tokens found in caches, by arrival", _middles(edges), lines, "share")


def _distribution(chart_id: str, title: str, present: Floats, limit_s: float | None, color: str) -> LineChart:
    shares = np.linspace(0, 1, min(_QUANTILES, max(2, len(present))))
    xs = np.quantile(present, shares)
    log = xs[0] > 0 and xs[-1] / xs[0] > _LOG_FROM
    return tidy(
        LineChart(
            id=chart_id,
            title=title,
            note="Share of requests at or below.",
            x=Axis(unit="s", log=bool(log)),
            y=Axis(unit="share"),
            xs=xs.tolist(),
            lines=[Line(name="share of requests", values=shares.tolist(), color=color, fill=True)],
            limits=_limits(limit_s, vertical=True),
        )
    )


def _limits(limit_s: float | None, *, vertical: bool = False) -> list[Limit]:
    return [] if limit_s is None else [Limit(name=f"SLO {limit(limit_s)}", value=limit_s, vertical=vertical)]


def _edges(end_s: float, requests: int) -> Floats:
    bins = min(_MOST_BINS, max(_LEAST_BINS, requests // _REQUESTS_A_BIN))
    return np.linspace(0.0, end_s, bins + 1)


def _middles(edges: Floats) -> list[float]:
    found: list[float] = ((edges[:-1] + edges[1:]) / 2).tolist()
    return found


def _rate(name: str, moments: Floats, edges: Floats, color: str) -> Line:
    counts, _ = np.histogram(moments, edges)
    rates = (counts / (edges[1] - edges[0])).tolist()
    return Line(name=name, values=[*rates, rates[-1]], color=color, steps=True, fill=color == "green")


def _by_bin(moments: Floats, present: Flags, values: Floats, edges: Floats) -> list[Floats]:
    """Present values, grouped by the bin of their time."""
    moments, values = moments[present], values[present]
    order = np.argsort(moments, kind="stable")
    cuts = np.searchsorted(moments[order], edges[1:-1])
    return np.split(values[order], cuts)


def _percentiles(groups: list[Floats], percentile: float) -> list[float | None]:
    return [float(np.percentile(group, percentile)) if len(group) else None for group in groups]


# The system over time: one chart per quantity, all over the same axis, with faults and scaling marked.

_MOST_MARKS = 60
"""More marks would hide the curves; marks too close to distinguish are drawn once."""

_Curve = tuple[str, str, str]
"""Name, field of `TimelinePoint`, colour."""

_PANELS: tuple[tuple[str, str, str, bool, tuple[_Curve, ...]], ...] = (
    ("queue", "Tokens queued for prefill", "count", False, (("tokens", "prefill_queue_tokens", "prefill"),)),
    (
        "waiting", "Sequences waiting for KV blocks", "count", False,
        (("prefill", "prefill_waiting", "prefill"), ("decode", "decode_waiting", "decode")),
    ),
    ("batch", "Sequences decoding", "count", False, (("sequences", "decode_batch", "decode"),)),
    ("step", "Decode step", "s", False, (("step", "step_s", "decode"),)),
    (
        "kv", "KV blocks in use", "share", False,
        (("prefill", "prefill_kv_share", "prefill"), ("decode", "decode_kv_share", "decode")),
    ),
    ("pool", "KV-cache pool's memory in use", "share", False, (("pool", "pool_share", "kvcache"),)),
    ("servers", "Memory servers", "count", True, (("servers", "memory_servers", "kvcache"),)),
    (
        "npus", "NPUs", "count", True,
        (
            ("prefill", "prefill_npus", "prefill"), ("decode", "decode_npus", "decode"),
            ("starting", "starting_npus", "orange"), ("draining", "draining_npus", "red"),
            ("idle", "idle_npus", "grey"),
        ),
    ),
    (
        "planes", "Network planes in use", "share", False,
        (("UB", "ub_share", "blue"), ("RDMA", "rdma_share", "violet"), ("VPC", "vpc_share", "grey")),
    ),
)  # fmt: skip


def time_charts(result: SimResult, times: Latencies, slo: Slo | None) -> list[LineChart]:
    """All charts over time that have values."""
    end_s = max(result.totals.end_s, result.timeline[-1].at_s if result.timeline else 0.0) or 1.0
    axis = TimeAxis(end_s, event_marks(result, end_s))
    ttft_limit = slo.ttft_s if slo else None
    tpot_limit = slo.tpot_s if slo else None
    charts = [
        rate_chart(result, times, slo, axis),
        latency_chart("line-ttft", "Time to first token, by arrival", result, times.ttft_s, ttft_limit, axis),
        latency_chart("line-tpot", "Time per output token, by arrival", result, times.tpot_s, tpot_limit, axis),
        cache_chart(result, times, axis),
    ]
    at = [point.at_s for point in result.timeline]
    for name, title, unit, steps, curves in _PANELS:
        columns = {field: [float(getattr(point, field)) for point in result.timeline] for _, field, _ in curves}
        lines = [
            Line(name=label, values=list(columns[field]), color=color, steps=steps, fill=len(curves) == 1)
            for label, field, color in curves
            if len(curves) < 3 or any(columns[field])  # a pool or plane that was never used needs no curve
        ]
        charts.append(axis.chart(f"line-{name}", title, at, lines, unit))
    return [chart for chart in charts if any(value is not None for line in chart.lines for value in line.values)]


def event_marks(result: SimResult, end_s: float) -> list[Marks]:
    """Times of faults and of scaling; marks of one kind that are too close to distinguish are merged."""
    return [
        Marks(name="scaling", color="orange", dash=True, xs=_apart([one.at_s for one in result.scaling], end_s)),
        Marks(name="fault", color="red", xs=_apart([one.at_s for one in result.faults], end_s)),
    ]


def _apart(moments: Sequence[float], end_s: float) -> list[float]:
    width = end_s / _MOST_MARKS
    return sorted({int(at / width): at for at in sorted(moments, reverse=True)}.values())
