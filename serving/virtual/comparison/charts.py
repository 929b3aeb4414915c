"""Charts of a comparison: both runs in each plot, the baseline blue, the other one orange."""

from msgspec import structs

from loadgen.report.chart import Axis, Line, LineChart, tidy
from loadgen.report.time_axis import TimeAxis
from serving.virtual.comparison.run_file import SimulatedRun

_COLORS = ("blue", "orange")
_LATENCIES = (("ttft_s", "Time to first token"), ("tpot_s", "Time per output token"), ("e2e_s", "End to end"))
_PANELS = (
    ("prefill_queue_tokens", "Tokens queued for prefill", "count", False),
    ("decode_batch", "Sequences decoding", "count", False),
    ("step_s", "Decode step", "s", False),
    ("decode_kv_share", "KV blocks in use, decode", "share", False),
    ("pool_share", "KV-cache pool's memory in use", "share", False),
    ("prefill_npus", "NPUs of prefill", "count", True),
    ("decode_npus", "NPUs of decode", "count", True),
)


def curve_charts(baseline: SimulatedRun, other: SimulatedRun) -> list[LineChart]:
    """Cumulative distributions of each latency that both runs have."""
    found = []
    for name, title in _LATENCIES:
        sides = [_curve(run, name) for run in (baseline, other)]
        if not all(sides):
            continue
        xs = sorted({x for side in sides for x, _ in side})
        lines = [
            Line(name=role, values=_at(xs, dict(side)), color=color)
            for role, side, color in zip(("baseline", "other"), sides, _COLORS, strict=True)
        ]
        chart = LineChart(
            id=f"cdf-{name}", title=title, note="Share of requests at or below.", x=Axis(unit="s", low=0.0),
            y=Axis(unit="share"), xs=xs, lines=lines, bridge=True,
        )  # fmt: skip
        found.append(tidy(chart))
    return found


def time_charts(baseline: SimulatedRun, other: SimulatedRun) -> list[LineChart]:
    """Curves over time that have values above zero."""
    ends = [run.timeline["at_s"][-1] for run in (baseline, other) if run.timeline.get("at_s")]
    axis = TimeAxis(max((end for end in ends if end is not None), default=0.0) or 1.0)
    found = []
    for name, title, unit, steps in _PANELS:
        sides = [_line(run, name) for run in (baseline, other)]
        if not any(value for side in sides for value in side.values()):
            continue
        xs = sorted({at for side in sides for at in side})
        lines = [
            Line(name=role, values=_at(xs, side), color=color, steps=steps)
            for role, side, color in zip(("baseline", "other"), sides, _COLORS, strict=True)
        ]
        chart = axis.chart(f"line-{name}", title, xs, lines, unit)
        found.append(structs.replace(chart, bridge=True))
    return found


def _curve(run: SimulatedRun, name: str) -> list[tuple[float, float]]:
    """Pairs of latency and share, ascending; of equal latencies only the one with the largest share."""
    pairs = zip(run.curves.get(name, ()), run.curves.get("share", ()), strict=False)
    return sorted({x: share for x, share in pairs if x is not None and share is not None}.items())


def _line(run: SimulatedRun, name: str) -> dict[float, float]:
    pairs = zip(run.timeline.get("at_s", ()), run.timeline.get(name, ()), strict=False)
    return {at: value for at, value in pairs if at is not None and value is not None}


def _at(xs: list[float], values: dict[float, float]) -> list[float | None]:
    """A curve at common positions; gaps where it was not sampled."""
    return [values.get(x) for x in xs]
