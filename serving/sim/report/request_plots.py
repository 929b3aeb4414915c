"""Plots of requests: how latencies are distributed, and rates and latencies over time."""

import numpy as np

from serving.sim.report.axis import wants_log
from serving.sim.report.goodput import Slo, good_requests
from serving.sim.report.latencies import Flags, Floats, Latencies, floats, ints
from serving.sim.report.numbers import duration
from serving.sim.report.plots import AxisOf, Limit, Mark, Series, lines
from serving.sim.result import SimResult

_QUANTILES = 400
_MOST_BINS, _LEAST_BINS = 100, 20
_REQUESTS_A_BIN = 20
_CDF_WIDTH, _CDF_HEIGHT = 400, 230


def cdf_plots(times: Latencies, slo: Slo | None) -> list[str]:
    """Cumulative distributions of TTFT, TPOT and end-to-end latency, with the limits."""
    slo = slo or Slo()
    metrics = (
        ("ttft", "Time to first token", times.ttft_s, slo.ttft_s, "blue"),
        ("tpot", "Time per output token", times.tpot_s, slo.tpot_s, "violet"),
        ("e2e", "End to end", times.e2e_s, None, "green"),
    )
    return [_cdf(f"cdf-{name}", title, values, limit_s, color) for name, title, values, limit_s, color in metrics]


def rate_plot(result: SimResult, times: Latencies, slo: Slo | None, time_axis: AxisOf, marks: list[Mark]) -> str:
    """Requests that came, that finished, and that finished within the SLOs, per second over time."""
    edges = _edges(time_axis, len(result.requests))
    finish = floats(result.requests.finish_s)
    series = [
        _rate("arrived", floats(result.requests.arrival_s), edges, "grey"),
        _rate("finished", finish[times.finished], edges, "blue"),
    ]
    if slo:
        series.append(_rate("within the SLOs", finish[good_requests(times, slo)], edges, "green"))
    return lines("line-rate", "Requests per second", series, x=time_axis, y=AxisOf(), marks=marks)


def latency_plot(
    name: str,
    title: str,
    result: SimResult,
    values: Floats,
    limit_s: float | None,
    time_axis: AxisOf,
    marks: list[Mark],
) -> str:
    """Median and 99th percentile of a latency over time of arrival."""
    edges = _edges(time_axis, len(result.requests))
    present = ~np.isnan(values)
    groups = _by_bin(floats(result.requests.arrival_s), present, values, edges)
    middles = (edges[:-1] + edges[1:]) / 2
    series = [
        Series(f"p{percentile}", middles, _percentiles(groups, percentile), color, dashed=percentile > 50)
        for percentile, color in ((50, "blue"), (99, "violet"))
    ]
    limits = [] if limit_s is None else [Limit(f"SLO {duration(limit_s)}", limit_s)]
    return lines(name, title, series, x=time_axis, y=AxisOf("seconds"), limits=limits, marks=marks)


def cache_plot(result: SimResult, times: Latencies, time_axis: AxisOf, marks: list[Mark]) -> str:
    """Part of the prompt tokens that did not have to be computed, over time of arrival."""
    edges = _edges(time_axis, len(result.requests))
    begun = ~np.isnan(times.ttft_s)
    arrival, requests = floats(result.requests.arrival_s)[begun], result.requests
    prompt = np.histogram(arrival, edges, weights=ints(requests.prompt_tokens)[begun])[0]
    series = []
    for name, column, color in (
        ("all", requests.cached_tokens, "blue"),
        ("from the pool", requests.pulled_tokens, "green"),
    ):
        found = np.histogram(arrival, edges, weights=ints(column)[begun])[0]
        shares = np.divide(found, prompt, out=np.full(len(prompt), np.nan), where=prompt > 0)
        series.append(Series(name, (edges[:-1] + edges[1:]) / 2, shares, color))
    return lines(
        "line-cache", "Prompt tokens found in caches, by arrival", series, x=time_axis, y=AxisOf("share"), marks=marks
    )


def _cdf(name: str, title: str, values: Floats, limit_s: float | None, color: str) -> str:
    present = values[~np.isnan(values)]
    shares = np.linspace(0, 1, min(_QUANTILES, max(2, len(present))))
    xs = np.quantile(present, shares) if len(present) else np.array([])
    log = len(xs) > 0 and wants_log(float(xs[0]), float(xs[-1]))
    limits = [] if limit_s is None else [Limit(f"SLO {duration(limit_s)}", limit_s, vertical=True)]
    return lines(
        name,
        title,
        [Series("share of requests", xs, shares if len(present) else xs, color, filled=True)],
        x=AxisOf("seconds", low=None if log else 0.0, log=log),
        y=AxisOf("share", "share of requests at or below", high=1.02),
        limits=limits,
        width=_CDF_WIDTH,
        height=_CDF_HEIGHT,
    )


def _edges(time_axis: AxisOf, requests: int) -> Floats:
    """Bins of time, few enough to hold some requests each."""
    bins = min(_MOST_BINS, max(_LEAST_BINS, requests // _REQUESTS_A_BIN))
    return np.linspace(0.0, time_axis.high or 1.0, bins + 1)


def _rate(name: str, moments: Floats, edges: Floats, color: str) -> Series:
    counts, _ = np.histogram(moments, edges)
    rates = counts / (edges[1] - edges[0])
    return Series(name, edges, np.append(rates, rates[-1]), color, steps=True, filled=color == "green")


def _by_bin(moments: Floats, present: Flags, values: Floats, edges: Floats) -> list[Floats]:
    """Values that are there, by the bin of their moment."""
    moments, values = moments[present], values[present]
    order = np.argsort(moments, kind="stable")
    cuts = np.searchsorted(moments[order], edges[1:-1])
    return np.split(values[order], cuts)


def _percentiles(groups: list[Floats], percentile: float) -> Floats:
    return np.array([np.percentile(group, percentile) if len(group) else np.nan for group in groups])
