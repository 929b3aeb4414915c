"""The plots of a sweep: latency and throughput against the load, latency against throughput, SLO attainment."""

import re
from collections.abc import Callable, Sequence

from loadgen.report.chart import Axis, Limit, Line, LineChart, ScatterChart, ScatterTrace, compact, compact_all
from loadgen.report.numbers import limit, percentile_name, share
from loadgen.result import RunResult, SweepPoint, SweepResult
from loadgen.run_report.names import METRIC_TITLES

LOAD_GROUP = "load"
_NUMBER = re.compile(r"\d[\d.,]*")
_SHOWN = ("50", "99")
_COLORS = {"50": "blue", "99": "orange"}
_LATENCIES = (("ttft", "Time to first token"), ("tpot", "Time per output token"), ("e2e", "End to end"))


def load_label(parameter: str) -> str:
    """The varied parameter of a sweep, in words."""
    return "offered requests per second" if parameter == "rate" else "concurrent requests"


def load_text(parameter: str, value: float) -> str:
    """One load: "4 requests/s" or "16 concurrent"."""
    return f"{value:.4g} requests/s" if parameter == "rate" else f"{value:g} concurrent"


def sweep_warnings(sweep: SweepResult) -> list[str]:
    """Every warning of every point once, with the loads that it belongs to; the worst first.

    Warnings that question a result as a whole are first, then the points' warnings in the order of their own lists.
    Warnings of one kind, or that differ only in numbers, are merged, with the text of the first.
    """
    affected: dict[str, list[tuple[SweepPoint, str]]] = {}
    ranks: dict[str, int] = {}
    for point in sweep.points:
        own = _doubts(point)
        for rank, warning in enumerate([*own, *point.result.warnings], -len(own)):
            kind = warning.partition(":")[0] if rank < 0 else _NUMBER.sub("#", warning)
            affected.setdefault(kind, []).append((point, warning))
            ranks[kind] = min(rank, ranks.get(kind, rank))
    return [_with_loads(sweep, affected[kind]) for kind in sorted(affected, key=ranks.__getitem__)]


def _doubts(point: SweepPoint) -> list[str]:
    """Warnings at the top of a point's own report."""
    generator = point.result.generator
    found = [f"stopped early: {point.aborted}"] if point.aborted else []
    if generator.is_bottleneck:
        found.append(f"the generator was the bottleneck: {'; '.join(generator.reasons)}")
    if generator.machine_was_busy:
        found.append(f"the machine was busy: {'; '.join(generator.machine_reasons)}")
    return found


def _with_loads(sweep: SweepResult, affected: Sequence[tuple[SweepPoint, str]]) -> str:
    """One warning after its loads."""
    warning = affected[0][1]
    example = "" if all(other == warning for _, other in affected) else "for instance, "
    if len(affected) == len(sweep.points):
        return f"At every load: {example}{warning}"
    unit = load_text(sweep.parameter, 0).partition(" ")[2]
    values = dict.fromkeys(f"{point.value:.4g}" for point, _ in affected)
    return f"{', '.join(values)} {unit}: {example}{warning}"


def sweep_charts(sweep: SweepResult) -> list[LineChart | ScatterChart]:
    """All plots of a sweep that has points."""
    if not sweep.points:
        return []
    charts: list[LineChart | ScatterChart] = [pareto(sweep)]
    charts += [throughput_latency(sweep, "ttft"), throughput_latency(sweep, "tpot")]
    charts.extend(latency_by_load(sweep, name, title) for name, title in _LATENCIES)
    charts.append(throughput_by_load(sweep))
    charts.append(tokens_by_load(sweep))
    if any(point.result.slo for point in sweep.points):
        charts.append(attainment_by_load(sweep))
    return [chart for chart in charts if _has_values(chart)]


def throughput_latency(sweep: SweepResult, metric: str) -> ScatterChart:
    """Output tokens per second against latency, the points joined in the order of the load."""
    return ScatterChart(
        id=f"throughput-{metric}",
        title=f"Throughput against {METRIC_TITLES[metric]}",
        note=f"One point per load, marked with its {sweep.parameter}. Down and to the right is better.",
        x=Axis(unit="per_s", label="output tokens per second"),
        y=Axis(unit="s"),
        traces=[_trade_off(sweep, metric, percentile) for percentile in _SHOWN],
        limits=_limits(sweep.points, metric),
    )


def pareto(sweep: SweepResult) -> ScatterChart:
    """Tokens per second of an NPU (of the server, if their number is unknown) against those of one user."""
    npus = next((point.result.npus for point in sweep.points if point.result.npus), None)
    whom = "NPU" if npus else "server"
    placed = [
        (point, compact(1 / tpot) or 0.0, compact(_tokens_per_s(point) / (point.result.npus or npus or 1)) or 0.0)
        for point, tpot in zip(sweep.points, _values(sweep, "tpot", "50"), strict=True)
        if tpot
    ]
    front = sorted((one for one in placed if not any(_beats(other, one) for other in placed)), key=lambda one: one[1])
    best = "up and to the right is better, and no other load beats a green one in both"
    known = f"{npus:,} NPUs." if npus else "The number of NPUs is unknown; --npus N gives it."
    return ScatterChart(
        id="pareto",
        title=f"Tokens per {whom} against tokens per user",
        note=f"One point per load, marked with its {sweep.parameter}: {best}. {known}",
        x=Axis(unit="per_s", label="tokens/s for one user (1 / median TPOT)"),
        y=Axis(unit="per_s"),
        traces=[
            _users_trace(sweep.parameter, "every load", placed, marked=[one for one in placed if one not in front]),
            _users_trace(sweep.parameter, "not beaten", front, marked=front, large=True),
        ],
        limits=[
            Limit(name=f"SLO {limit(one.value)}", value=1 / one.value, vertical=True)
            for one in _limits(sweep.points, "tpot")
        ],
    )


def latency_by_load(sweep: SweepResult, metric: str, title: str) -> LineChart:
    """Median and tail of one latency against the load."""
    start = " Counted from the intended send." if metric != "tpot" else ""
    return _by_load(
        sweep,
        f"{metric}-by-load",
        title,
        f"Successful requests only.{start}",
        "s",
        [
            Line(name=percentile_name(percentile), values=_values(sweep, metric, percentile), color=_COLORS[percentile])
            for percentile in _SHOWN
        ],
        _limits(sweep.points, metric),
    )


def throughput_by_load(sweep: SweepResult) -> LineChart:
    """Requests completed (and completed within the SLOs) per second against the load."""
    lines = [_line(sweep, "completed", "blue", lambda result: result.throughput.requests_per_s)]
    if any(point.result.throughput.goodput_per_s is not None for point in sweep.points):
        lines.append(_line(sweep, "within the SLOs", "green", lambda result: result.throughput.goodput_per_s))
    if sweep.parameter == "rate":
        offered = Line(name="offered", values=[point.value for point in sweep.points], color="grey", dash=True)
        lines.insert(0, offered)
    note = "Where the blue line leaves the dashed one, the server no longer keeps up." if len(lines) > 1 else ""
    return _by_load(
        sweep, "requests-by-load", "Requests per second", note if sweep.parameter == "rate" else "", "per_s", lines
    )


def tokens_by_load(sweep: SweepResult) -> LineChart:
    """Output tokens per second against the load."""
    line = _line(sweep, "output tokens", "green", lambda result: result.throughput.output_tokens_per_s)
    return _by_load(sweep, "tokens-by-load", "Output tokens per second", "Of successful requests.", "per_s", [line])


def attainment_by_load(sweep: SweepResult) -> LineChart:
    """Share of requests within every SLO, with its 95 % Wilson interval."""
    slos = [point.result.slo for point in sweep.points]
    return _by_load(
        sweep,
        "attainment-by-load",
        "SLO attainment",
        "Share of the counted requests that kept every SLO; the band is its 95 % Wilson interval.",
        "share",
        [
            Line(
                name="95 % interval",
                values=compact_all(slo.wilson95[1] if slo else None for slo in slos),
                color="grey",
                band=True,
            ),
            Line(
                name="95 % interval",
                values=compact_all(slo.wilson95[0] if slo else None for slo in slos),
                color="grey",
            ),
            Line(name="attainment", values=compact_all(slo.attainment if slo else None for slo in slos), color="blue"),
        ],
    )


def _by_load(
    sweep: SweepResult,
    chart_id: str,
    title: str,
    note: str,
    unit: str,
    lines: list[Line],
    limits: Sequence[Limit] = (),
) -> LineChart:
    """Some curves over the load."""
    return LineChart(
        id=chart_id,
        title=title,
        note=note,
        x=Axis(unit="number", label=load_label(sweep.parameter)),
        y=Axis(unit=unit),
        xs=[point.value for point in sweep.points],
        lines=lines,
        limits=list(limits),
        group=LOAD_GROUP,
        bridge=True,
    )


def _trade_off(sweep: SweepResult, metric: str, percentile: str) -> ScatterTrace:
    """One curve of throughput against latency."""
    points = [
        (point, value)
        for point, value in zip(sweep.points, _values(sweep, metric, percentile), strict=True)
        if value is not None
    ]
    return ScatterTrace(
        name=percentile_name(percentile),
        xs=[compact(point.result.throughput.output_tokens_per_s) or 0.0 for point, _ in points],
        ys=[value for _, value in points],
        color=_COLORS[percentile],
        joined=True,
        labels=[_point_label(sweep.parameter, point) for point, _ in points],
        marks=[f"{point.value:.4g}" for point, _ in points] if percentile == _SHOWN[-1] else [],
    )


_Placed = tuple[SweepPoint, float, float]
"""A load, tokens per second of one user, and of an NPU or of the server."""


def _users_trace(
    parameter: str, name: str, placed: Sequence[_Placed], *, marked: Sequence[_Placed], large: bool = False
) -> ScatterTrace:
    """Loads by what a user and an NPU get: small ones are joined. `marked`: those labelled with their load."""
    return ScatterTrace(
        name=name,
        xs=[x for _, x, _ in placed],
        ys=[y for _, _, y in placed],
        color="green" if large else "grey",
        joined=not large,
        large=large,
        labels=[_point_label(parameter, point) for point, _, _ in placed],
        marks=[f"{one[0].value:.4g}" if one in marked else "" for one in placed],
    )


def _beats(one: _Placed, other: _Placed) -> bool:
    """Whether a load has at least the other's tokens per second, both per user and per NPU, and more of one."""
    return one[1] >= other[1] and one[2] >= other[2] and one[1:] != other[1:]


def _tokens_per_s(point: SweepPoint) -> float:
    return point.result.throughput.output_tokens_per_s


def _point_label(parameter: str, point: SweepPoint) -> str:
    slo = point.result.slo
    kept = f", {share(slo.attainment)} within the SLOs" if slo else ""
    return f"{load_text(parameter, point.value)}{kept}"


def _line(sweep: SweepResult, name: str, color: str, value: Callable[[RunResult], float | None]) -> Line:
    return Line(name=name, values=compact_all(value(point.result) for point in sweep.points), color=color)


def _values(sweep: SweepResult, metric: str, percentile: str) -> list[float | None]:
    metrics = [point.result.metrics.get(metric) for point in sweep.points]
    return compact_all(found.percentiles.get(percentile) if found else None for found in metrics)


def _limits(points: Sequence[SweepPoint], metric: str) -> list[Limit]:
    targets = {point.result.slo.targets.get(metric) if point.result.slo else None for point in points}
    return [Limit(name=f"SLO {limit(target)}", value=target) for target in targets if target and len(targets) == 1]


def _has_values(chart: LineChart | ScatterChart) -> bool:
    if isinstance(chart, ScatterChart):
        return any(trace.xs for trace in chart.traces)
    return any(value is not None for line in chart.lines for value in line.values)
