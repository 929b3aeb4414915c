"""The system over time: one small plot per quantity, all over the same axis, with faults and scaling marked."""

from collections.abc import Callable, Sequence

import numpy as np

from serving.sim.report.axis import Unit
from serving.sim.report.goodput import Slo
from serving.sim.report.latencies import Floats, Latencies
from serving.sim.report.plots import AxisOf, Mark, Series, lines
from serving.sim.report.request_plots import cache_plot, latency_plot, rate_plot
from serving.sim.result import SimResult

FAULT_COLOR, SCALE_COLOR = "red", "orange"
_MOST_MARKS = 60
"""More lines than this would hide the curves; those too close to be told apart are drawn once."""

_Curve = tuple[str, str, str]
"""Name, field of `TimelinePoint`, colour."""

_PANELS: tuple[tuple[str, str, Unit, bool, tuple[_Curve, ...]], ...] = (
    ("queue", "Tokens queued for prefill", "count", False, (("tokens", "prefill_queue_tokens", "blue"),)),
    (
        "waiting", "Sequences waiting for KV blocks", "count", False,
        (("prefill", "prefill_waiting", "blue"), ("decode", "decode_waiting", "violet")),
    ),
    ("batch", "Sequences decoding", "count", False, (("sequences", "decode_batch", "violet"),)),
    ("step", "Decode step", "seconds", False, (("step", "step_s", "violet"),)),
    (
        "kv", "KV blocks in use", "share", False,
        (("prefill", "prefill_kv_share", "blue"), ("decode", "decode_kv_share", "violet")),
    ),
    ("pool", "KV-cache pool's memory in use", "share", False, (("pool", "pool_share", "green"),)),
    ("servers", "Memory servers", "count", True, (("servers", "memory_servers", "green"),)),
    (
        "npus", "NPUs", "count", True,
        (
            ("prefill", "prefill_npus", "blue"), ("decode", "decode_npus", "violet"),
            ("starting", "starting_npus", "orange"), ("draining", "draining_npus", "red"),
            ("idle", "idle_npus", "grey"),
        ),
    ),
    (
        "planes", "Network planes in use", "share", False,
        (("UB", "ub_share", "blue"), ("RDMA", "rdma_share", "violet"), ("VPC", "vpc_share", "grey")),
    ),
)  # fmt: skip


def time_line_plots(result: SimResult, times: Latencies, slo: Slo | None) -> list[str]:
    """All plots over time, as SVG; their plot areas lie at the same place, so a moment is at one height of the page."""
    end_s = max(result.totals.end_s, result.timeline[-1].at_s if result.timeline else 0.0)
    axis = AxisOf("clock", low=0.0, high=end_s or 1.0)
    marks = event_marks(result, end_s)
    ttft_limit = slo.ttft_s if slo else None
    tpot_limit = slo.tpot_s if slo else None
    drawn = [
        rate_plot(result, times, slo, axis, marks),
        latency_plot("line-ttft", "Time to first token, by arrival", result, times.ttft_s, ttft_limit, axis, marks),
        latency_plot("line-tpot", "Time per output token, by arrival", result, times.tpot_s, tpot_limit, axis, marks),
        cache_plot(result, times, axis, marks),
    ]
    at = np.array([point.at_s for point in result.timeline])
    column = _columns(result)
    for name, title, unit, steps, curves in _PANELS:
        series = [
            Series(label, at, column(field), color, steps=steps, filled=len(curves) == 1)
            for label, field, color in curves
            if len(curves) < 3 or column(field).any()  # a pool or plane that was never used needs no curve
        ]
        drawn.append(lines(f"line-{name}", title, series, x=axis, y=AxisOf(unit), marks=marks))
    return drawn


def event_marks(result: SimResult, end_s: float) -> list[Mark]:
    """Moments of faults and of scaling, each colour thinned to what can be told apart."""
    faults = [fault.at_s for fault in result.faults]
    scaling = [change.at_s for change in result.scaling]
    marks = [Mark(at, SCALE_COLOR, dashed=True) for at in _apart(scaling, end_s)]
    return marks + [Mark(at, FAULT_COLOR) for at in _apart(faults, end_s)]


def _apart(moments: Sequence[float], end_s: float) -> list[float]:
    """The first moment of each stretch of time."""
    width = end_s / _MOST_MARKS or 1.0
    return sorted({int(at / width): at for at in sorted(moments, reverse=True)}.values())


def _columns(result: SimResult) -> Callable[[str], Floats]:
    """Fields of the timeline as arrays."""

    def column(field: str) -> Floats:
        return np.array([getattr(point, field) for point in result.timeline], dtype=float)

    return column
