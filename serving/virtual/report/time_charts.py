"""The system over time: one chart per quantity, all over the same axis, with faults and scaling marked."""

from collections.abc import Sequence

from loadgen.report.chart import Line, LineChart, Marks
from loadgen.report.time_axis import TimeAxis
from serving.virtual.report.goodput import Slo
from serving.virtual.report.latencies import Latencies
from serving.virtual.report.request_charts import cache_chart, latency_chart, rate_chart
from serving.virtual.result import SimResult

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
