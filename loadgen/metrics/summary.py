"""All figures of one run, from its records."""

from collections.abc import Mapping, Sequence

import numpy as np

from loadgen.metrics.cautions import cautions, contradictions
from loadgen.metrics.definitions import BY_NAME, DEFINITIONS, Definition, tokens_of
from loadgen.metrics.distribution import distribution
from loadgen.metrics.goodput import evaluate
from loadgen.metrics.jobs import jobs_of
from loadgen.metrics.lengths import lengths
from loadgen.metrics.timeline import Concurrency, concurrency, timeline
from loadgen.metrics.verdict import GeneratorFacts, Identity, judge
from loadgen.record import FAILURES, NOT_COUNTED, SUCCESSES, RequestRecord
from loadgen.result import CacheUse, ErrorCount, MetricDistribution, RunResult, SloResult, SteadyState, Throughput

STEADY_SHARE = 0.9
"""Share of the peak concurrency from which the run counts as steady."""
_STEADY_METRICS = ("ttft", "tpot", "itl", "e2e")
_EXAMPLE_CHARS = 200
_OF_THE_GENERATOR = ("lateness", "client_queue", "connect")
"""Metrics that exist for failed requests just as well."""


def summarize(
    records: Sequence[RequestRecord],
    *,
    facts: GeneratorFacts,
    slo: Mapping[str, float] | None,
    percentiles: Sequence[float],
    identity: Identity,
    warnings: Sequence[str] = (),
) -> RunResult:
    """Summary of a run.

    Args:
        records: all of it, in any order; warm-up requests count for concurrency only.
        slo: metric -> limit [s]. percentiles: requested ones, 0 to 100.
        warnings: from other sources, added after those found in this function, which are sorted by importance.
    """
    measured = [record for record in records if not record.warmup]
    percentiles = sorted({*percentiles, 50.0, 99.0})  # tiles and charts show these two
    begin_s, end_s, last_send_s = _window(measured)
    duration_s = end_s - begin_s
    open_requests = concurrency(records)
    metrics = distributions(measured, percentiles)
    slo_result = evaluate(measured, slo) if slo else None
    generator = judge(
        facts,
        duration_s=duration_s,
        achieved_per_s=None if facts.mode_closed else _achieved(measured),
        lateness=metrics.get("lateness"),
        client_queue=metrics.get("client_queue"),
        ttft=metrics.get("ttft"),
    )
    warnings = [
        *generator.clock_warnings,
        *cautions(measured, facts, duration_s=duration_s, percentiles=percentiles, slo=slo_result),
        *warnings,
    ]
    return RunResult(
        **vars(identity),
        interrupted=facts.interrupted,
        duration_s=duration_s,
        drain_s=max(0.0, end_s - last_send_s),
        requests=len(measured),
        warmup_requests=len(records) - len(measured),
        outcomes=_outcomes(measured),
        contradictions=contradictions(measured),
        errors=_errors(measured),
        peak_concurrency=open_requests.peak,
        mean_concurrency=open_requests.mean(begin_s, end_s),
        metrics=metrics,
        lengths=lengths(measured),
        turns_left_out=sum(record.turns_left_out for record in measured),
        throughput=throughput(measured, duration_s, slo_result),
        slo=slo_result,
        cache=_cache(measured),
        jobs=jobs_of(measured),
        steady_state=_steady_state(measured, open_requests, percentiles),
        generator=generator,
        timeline=timeline(records, open_requests),
        warnings=warnings,
    )


def distributions(records: Sequence[RequestRecord], percentiles: Sequence[float]) -> dict[str, MetricDistribution]:
    """Every metric that any request has; those of responses cover successful requests only."""
    good = [record for record in records if record.outcome in SUCCESSES]
    failures = sum(record.outcome in FAILURES for record in records)
    found = {}
    for definition in DEFINITIONS:
        used = records if definition.name in _OF_THE_GENERATOR else good
        one = _distribution(definition, used, failures, percentiles)
        if one.count:
            found[definition.name] = one
    return found


def throughput(records: Sequence[RequestRecord], duration_s: float, slo: SloResult | None = None) -> Throughput:
    """Rates of successful requests over the measured window."""
    good = [record for record in records if record.outcome in SUCCESSES]
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    input_tokens = sum(record.input_tokens or record.planned_input_tokens or 0 for record in good)
    output_tokens = sum(tokens_of(record) for record in good)
    return Throughput(
        requests_per_s=len(good) * per_s,
        input_tokens_per_s=input_tokens * per_s,
        output_tokens_per_s=output_tokens * per_s,
        total_tokens_per_s=(input_tokens + output_tokens) * per_s,
        goodput_per_s=slo.good * per_s if slo else None,
    )


def _distribution(
    definition: Definition, records: Sequence[RequestRecord], failures: int, percentiles: Sequence[float]
) -> MetricDistribution:
    parts = [definition.values(record) for record in records]
    return distribution(
        np.concatenate(parts) if parts else np.empty(0),
        definition.unit,
        percentiles,
        failures=failures if definition.is_latency else None,
        sizes=np.array([len(part) for part in parts], dtype=np.int64),
    )


def _window(records: Sequence[RequestRecord]) -> tuple[float, float, float]:
    """First send, last end, last send [s]; requests that the run's end cut do not stretch it."""
    starts = [record.started_s for record in records if record.started_s is not None]
    ends = [r.ended_s for r in records if r.ended_s is not None and r.outcome not in NOT_COUNTED]
    if not starts:
        return 0.0, 0.0, 0.0
    begin, last = min(starts), max(starts)
    return begin, max([*ends, begin]), min(last, max([*ends, begin]))


def _achieved(records: Sequence[RequestRecord]) -> float | None:
    starts = sorted(r.started_s for r in records if r.started_s is not None and r.turn == 0)
    span_s = starts[-1] - starts[0] if starts else 0.0
    return (len(starts) - 1) / span_s if span_s > 0 else None


def _outcomes(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Count of each outcome that occurred, commonest first."""
    counts: dict[str, int] = {}
    for record in records:
        counts[record.outcome.value] = counts.get(record.outcome.value, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _errors(records: Sequence[RequestRecord]) -> list[ErrorCount]:
    """Failures by outcome and status, commonest first, each with an example."""
    groups: dict[tuple[str, int], list[str]] = {}
    for record in records:
        if record.outcome in FAILURES:
            groups.setdefault((record.outcome.value, record.status), []).append(record.error)
    return [
        ErrorCount(outcome=kind, status=status, count=len(texts), example=max(texts, key=bool)[:_EXAMPLE_CHARS])
        for (kind, status), texts in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def _cache(records: Sequence[RequestRecord]) -> CacheUse | None:
    """Tokens from caches, where reported."""
    reported = [r for r in records if r.outcome in SUCCESSES and r.cached_tokens is not None and r.input_tokens]
    if not reported:
        return None
    cached, total = sum(r.cached_tokens or 0 for r in reported), sum(r.input_tokens or 0 for r in reported)
    return CacheUse(reported_by=len(reported), cached_tokens=cached, input_tokens=total, hit_share=cached / total)


def _steady_state(
    records: Sequence[RequestRecord], open_requests: Concurrency, percentiles: Sequence[float]
) -> SteadyState | None:
    """The longest stretch near the peak; None if no request succeeded in it."""
    begin_s, end_s = open_requests.longest_above(STEADY_SHARE)
    inside = [r for r in records if r.started_s is not None and begin_s <= r.started_s < end_s]
    done = [r for r in records if r.outcome in SUCCESSES and r.ended_s is not None and begin_s <= r.ended_s < end_s]
    if not done or end_s <= begin_s:
        return None
    good = [record for record in inside if record.outcome in SUCCESSES]
    failures = sum(record.outcome in FAILURES for record in inside)
    metrics = {name: _distribution(BY_NAME[name], good, failures, percentiles) for name in _STEADY_METRICS}
    return SteadyState(
        from_s=begin_s,
        to_s=end_s,
        requests=len(inside),
        requests_per_s=len(done) / (end_s - begin_s),
        output_tokens_per_s=sum(map(tokens_of, done)) / (end_s - begin_s),
        metrics={name: metric for name, metric in metrics.items() if metric.count},
    )
