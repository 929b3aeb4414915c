"""Several repetitions of one run taken together: pooled values, intervals over the repetitions."""

from collections.abc import Sequence

import msgspec

from loadgen.metrics.distribution import mean_interval, wilson
from loadgen.metrics.lengths import lengths
from loadgen.metrics.summary import distributions
from loadgen.record import RequestRecord
from loadgen.result import CacheUse, ErrorCount, Generator, Repetition, RunResult, SloResult, Throughput


def merge(results: Sequence[RunResult], records: Sequence[Sequence[RequestRecord]]) -> RunResult:
    """One result of several runs that differ in their seeds only.

    Distributions are of all requests together; `ci95` of their means is over the repetitions, which is what another
    run can be held against. Rates are means over the repetitions. The time line is the first repetition's. Steady
    states and jobs stay with their repetitions.

    Args:
        results: at least one. records: those of each, in the same order.
    """
    first = results[0]
    measured = [record for part in records for record in part if not record.warmup]
    names = {name for result in results for metric in result.metrics.values() for name in metric.percentiles}
    metrics = distributions(measured, sorted(float(name) for name in names))
    for name, metric in metrics.items():
        reported = [result.metrics[name].mean for result in results if name in result.metrics]
        means = [mean for mean in reported if mean is not None]
        if len(results) > 1:
            metric.ci95 = mean_interval(means)
    return msgspec.structs.replace(
        first,
        interrupted=any(result.interrupted for result in results),
        duration_s=sum(result.duration_s for result in results),
        drain_s=max(result.drain_s for result in results),
        requests=sum(result.requests for result in results),
        warmup_requests=sum(result.warmup_requests for result in results),
        outcomes=_sum([result.outcomes for result in results]),
        contradictions=sum(result.contradictions for result in results),
        errors=_errors(results),
        peak_concurrency=max(result.peak_concurrency for result in results),
        mean_concurrency=_mean([result.mean_concurrency for result in results]),
        metrics=metrics,
        lengths=lengths(measured),
        turns_left_out=sum(result.turns_left_out for result in results),
        throughput=_throughput([result.throughput for result in results]),
        slo=_slo([result.slo for result in results if result.slo]),
        steady_state=first.steady_state if len(results) == 1 else None,
        jobs=first.jobs if len(results) == 1 else None,
        cache=_cache([result.cache for result in results if result.cache]),
        generator=max((result.generator for result in results), key=_trouble),
        repetitions=[as_repetition(result) for result in results],
        warnings=list(dict.fromkeys(warning for result in results for warning in result.warnings)),
    )


def _trouble(generator: Generator) -> tuple[bool, bool, float]:
    return generator.is_bottleneck, generator.machine_was_busy, generator.cpu_share


def as_repetition(result: RunResult) -> Repetition:
    """A run's main figures."""
    return Repetition(
        requests=result.requests,
        duration_s=result.duration_s,
        throughput=result.throughput,
        means={name: metric.mean for name, metric in result.metrics.items() if metric.mean is not None},
        p99={name: value for name, metric in result.metrics.items() for p, value in metric.curve if p == 99},
        attainment=result.slo.attainment if result.slo else None,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _sum(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total


def _errors(results: Sequence[RunResult]) -> list[ErrorCount]:
    """Equal errors of all runs together."""
    found: dict[tuple[str, int], ErrorCount] = {}
    for error in (error for result in results for error in result.errors):
        before = found.get((error.outcome, error.status))
        count = error.count + (before.count if before else 0)
        found[error.outcome, error.status] = msgspec.structs.replace(before or error, count=count)
    return sorted(found.values(), key=lambda error: -error.count)


def _throughput(rates: Sequence[Throughput]) -> Throughput:
    goodputs = [rate.goodput_per_s for rate in rates if rate.goodput_per_s is not None]
    return Throughput(
        requests_per_s=_mean([rate.requests_per_s for rate in rates]),
        input_tokens_per_s=_mean([rate.input_tokens_per_s for rate in rates]),
        output_tokens_per_s=_mean([rate.output_tokens_per_s for rate in rates]),
        total_tokens_per_s=_mean([rate.total_tokens_per_s for rate in rates]),
        goodput_per_s=_mean(goodputs) if goodputs else None,
    )


def _slo(parts: Sequence[SloResult]) -> SloResult | None:
    if not parts:
        return None
    good, counted = sum(part.good for part in parts), sum(part.counted for part in parts)
    each = {
        name: sum(part.each.get(name, 0.0) * part.counted for part in parts) / counted if counted else 0.0
        for name in parts[0].targets
    }
    return SloResult(
        targets=parts[0].targets,
        good=good,
        counted=counted,
        attainment=good / counted if counted else 0.0,
        wilson95=wilson(good, counted),
        each=each,
        untestable=sum(part.untestable for part in parts),
    )


def _cache(parts: Sequence[CacheUse]) -> CacheUse | None:
    if not parts:
        return None
    cached, total = sum(part.cached_tokens for part in parts), sum(part.input_tokens for part in parts)
    return CacheUse(
        reported_by=sum(part.reported_by for part in parts),
        cached_tokens=cached,
        input_tokens=total,
        hit_share=cached / total if total else None,
    )
