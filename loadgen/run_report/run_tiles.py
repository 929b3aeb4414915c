"""The main figures of a run, large."""

from loadgen.report import numbers
from loadgen.report.fragments import Html, element, tile
from loadgen.report.page import tiles as tiles_of
from loadgen.result import RunResult
from loadgen.run_report.names import METRIC_TITLES, count_by_kind

_LATENCIES = ("ttft", "tpot", "e2e")


def tiles(result: RunResult) -> Html:
    """One tile for each main latency, throughput, SLOs, outcomes and the cache."""
    parts = [_latency(result, name) for name in _LATENCIES if result.metrics.get(name) and result.metrics[name].count]
    parts.append(_throughput(result))
    if result.slo:
        parts.append(_slo(result))
    parts.append(_outcomes(result))
    if result.cache and result.cache.hit_share is not None:
        told = f"of {result.cache.input_tokens:,} prompt tokens"
        parts.append(tile("Taken from the cache", numbers.share(result.cache.hit_share), "", [told]))
    return tiles_of(parts)


def _latency(result: RunResult, name: str) -> Html:
    """Median, with the tail below."""
    metric = result.metrics[name]
    figure, _, unit = numbers.duration(metric.percentiles.get("50", metric.mean)).partition(" ")
    tail = [percentile for percentile in ("95", "99") if percentile in metric.percentiles]
    more = [f"{numbers.percentile_name(one)} {numbers.duration(metric.percentiles[one])}" for one in tail]
    basis = "median" if "50" in metric.percentiles else "mean"
    return tile(f"{METRIC_TITLES[name]}, {basis}", figure, unit, more)


def _throughput(result: RunResult) -> Html:
    """Tokens and requests per second."""
    rates = result.throughput
    more = [
        f"{numbers.significant(rates.requests_per_s)} requests/s",
        f"{numbers.significant(rates.total_tokens_per_s)} tokens/s with prompts",
    ]
    if result.npus:
        more.insert(0, f"{numbers.significant(rates.output_tokens_per_s / result.npus)} per NPU ({result.npus:,} NPUs)")
    return tile("Output throughput", numbers.significant(rates.output_tokens_per_s), "tokens/s", more)


def _slo(result: RunResult) -> Html:
    """Attainment with its interval, and goodput."""
    slo = result.slo
    assert slo is not None
    low, high = slo.wilson95
    limits = ", ".join(
        f"{METRIC_TITLES.get(name, name)} ≤ {numbers.limit(limit)}" for name, limit in slo.targets.items()
    )
    more = [f"95 % interval {numbers.share(low)} to {numbers.share(high)}", limits]
    if result.throughput.goodput_per_s is not None:
        more.insert(0, f"goodput {numbers.significant(result.throughput.goodput_per_s)} requests/s")
    return tile("Requests within the SLOs", numbers.share(slo.attainment), "", more)


def _outcomes(result: RunResult) -> Html:
    """Failures, or their absence."""
    kinds = count_by_kind(result.outcomes)
    counted = kinds["ok"] + kinds["failed"]
    others = [
        f"{kinds[kind]:,} {text}"
        for kind, text in (("deliberate", "ended on purpose"), ("unfinished", "unfinished"))
        if kinds[kind]
    ]
    more = [f"of {counted:,} requests", ", ".join(others)] if others else [f"of {counted:,} requests"]
    figure = f"{kinds['failed']:,}"
    shown = element("span", figure, "bad") if kinds["failed"] else figure
    part = f"({numbers.share(kinds['failed'] / counted)})" if kinds["failed"] else ""
    return tile("Failed requests", shown, part, more)
