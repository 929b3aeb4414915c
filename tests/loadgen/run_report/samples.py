"""Deterministic sample results: a simulated server that takes a few requests at once, and its measurement."""

import heapq
from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np

from loadgen.record import FAILURES, SUCCESSES, RequestOutcome, RequestRecord
from loadgen.result import (
    CacheUse,
    ErrorCount,
    Generator,
    MetricDistribution,
    RunResult,
    SloResult,
    SteadyState,
    SweepPoint,
    SweepResult,
    Throughput,
    TimelinePoint,
)
from loadgen.server.series import ServerSeries

SLOTS = 24
CURVE = (*range(0, 100, 2), 99.0, 99.3, 99.5, 99.7, 99.9, 100.0)
TARGETS = {"ttft": 0.5, "tpot": 0.05}


def make_records(
    *, rate_per_s: float = 8.0, requests: int = 400, seed: int = 0, failures: float = 0.01, slots: int = SLOTS
) -> list[RequestRecord]:
    """Poisson arrivals at a server with a fixed number of slots and a little noise."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / rate_per_s, requests))
    free = [0.0] * slots
    records = []
    for index, intended in enumerate(due.tolist()):
        started = intended + float(rng.exponential(0.0004))
        begin = max(started, heapq.heappop(free))
        tokens, prompt = int(rng.integers(40, 160)), int(rng.lognormal(6.2, 0.7))
        cached = prompt // 2 // 16 * 16 if rng.random() < 0.4 else 0
        first = begin + 0.03 + 0.00012 * (prompt - cached) + float(rng.exponential(0.01))
        times = first + np.cumsum(np.r_[0.0, 0.018 + rng.exponential(0.006, tokens - 1)])
        record = RequestRecord(
            index=index, intended_s=intended, released_s=intended, started_s=started, first_byte_s=first - 0.002,
            chunk_times=times.tobytes(), ended_s=float(times[-1]) + 0.001, outcome=RequestOutcome.OK, status=200,
            input_tokens=prompt, output_tokens=tokens, cached_tokens=cached, planned_input_tokens=prompt,
            planned_output_tokens=tokens, finish_reason="length", warmup=index < 5,
        )  # fmt: skip
        if rng.random() < failures:
            _fail(record, index)
        heapq.heappush(free, record.ended_s or begin)
        records.append(record)
    return records


def _fail(record: RequestRecord, index: int) -> None:
    """One of the failures of a request."""
    times = record.chunks()
    if index % 3 == 0:
        record.outcome, record.error = RequestOutcome.TRUNCATED, "the stream ended without finish reason"
        record.chunk_times = times[: len(times) // 2].tobytes()
        record.ended_s = times[len(times) // 2]
    elif index % 3 == 1:
        record.outcome, record.status, record.error = (
            RequestOutcome.REJECTED,
            429,
            'queue full: <script>alert("x")</script>',
        )
        record.chunk_times, record.output_tokens = b"", None
        record.ended_s = (record.started_s or 0.0) + 0.01
    else:
        record.outcome = RequestOutcome.CANCELLED
        record.chunk_times = array("d", times[:10]).tobytes()
        record.ended_s = times[min(9, len(times) - 1)]


def distribution(values: Sequence[float], unit: str = "s", failed: int = 0) -> MetricDistribution:
    """Distribution of some values."""
    if not len(values):
        return MetricDistribution(unit=unit, count=0)
    sample = np.asarray(values, dtype=float)
    half = 1.96 * float(sample.std()) / len(sample) ** 0.5
    names = ("50", "90", "95", "99")
    late = np.r_[sample, np.full(failed, np.inf)]
    with_failures = {
        name: float(value) if np.isfinite(value) else None
        for name in names
        for value in [np.percentile(late, float(name), method="higher")]
    }
    return MetricDistribution(
        unit=unit, count=len(sample), mean=float(sample.mean()), std=float(sample.std()), min=float(sample.min()),
        max=float(sample.max()), percentiles={name: float(np.percentile(sample, float(name))) for name in names},
        with_failures=with_failures if unit == "s" else {},
        curve=[(float(p), float(np.percentile(sample, p))) for p in CURVE],
        ci95=(float(sample.mean()) - half, float(sample.mean()) + half),
    )  # fmt: skip


def make_metrics(records: Sequence[RequestRecord], failed: int) -> dict[str, MetricDistribution]:
    """The main metrics of successful records."""
    done = [(record, record.chunks()) for record in records]
    values: dict[str, list[float]] = {
        "ttft": [times[0] - record.intended_s for record, times in done],
        "ttft_sent": [times[0] - (record.started_s or 0.0) for record, times in done],
        "tpot": [(times[-1] - times[0]) / (len(times) - 1) for _, times in done],
        "itl": [gap for _, times in done for gap in np.diff(times).tolist()],
        "e2e": [times[-1] - record.intended_s for record, times in done],
        "e2e_sent": [times[-1] - (record.started_s or 0.0) for record, times in done],
        "lateness": [(record.started_s or 0.0) - record.released_s for record, _ in done],
    }
    metrics = {name: distribution(found, failed=failed) for name, found in values.items()}
    metrics["input_tokens"] = distribution([record.input_tokens or 0 for record, _ in done], "tokens")
    metrics["output_tokens"] = distribution([record.output_tokens or 0 for record, _ in done], "tokens")
    return metrics


def make_result(records: Sequence[RequestRecord], *, rate_per_s: float = 8.0, **changes: object) -> RunResult:
    """A result of these records; `changes` replace its fields."""
    measured = [record for record in records if not record.warmup]
    good = [record for record in measured if record.outcome in SUCCESSES]
    failed = [record for record in measured if record.outcome in FAILURES]
    begin = min(record.intended_s for record in measured)
    end = max(record.ended_s or 0.0 for record in measured)
    span = end - begin
    tokens_in, tokens_out = (sum(getattr(one, f"{side}_tokens") for one in good) for side in ("input", "output"))
    kept = sum(_keeps(record) for record in good)
    counted = len(good) + len(failed)
    metrics = make_metrics(good, len(failed))
    fields: dict[str, object] = {
        "version": "0.4.0", "started_at": "2031-05-06T07:08:09Z", "model": "demo", "url": "http://127.0.0.1:8000",
        "command": f"loadgen run --request-rate {rate_per_s:g} --slo ttft=500ms,tpot=50ms --out run",
        "endpoint": "/v1/completions", "label": f"rate {rate_per_s:.1f}", "seed": 42, "duration_s": span,
        "settings": {"request_rate": rate_per_s, "slo": ["ttft=500ms"], "stream": True, "extra_body": {"top_k": 1}},
        "requests": len(measured), "warmup_requests": len(records) - len(measured),
        "outcomes": dict(Counter(str(record.outcome) for record in measured)), "errors": _errors(failed),
        "peak_concurrency": 31, "mean_concurrency": 17.4, "metrics": metrics,
        "throughput": Throughput(
            requests_per_s=len(good) / span, input_tokens_per_s=tokens_in / span, output_tokens_per_s=tokens_out / span,
            total_tokens_per_s=(tokens_in + tokens_out) / span, goodput_per_s=kept / span,
        ),
        "slo": SloResult(
            targets=TARGETS, good=kept, counted=counted, attainment=kept / counted, each={"ttft": 0.9, "tpot": 1.0},
            wilson95=(max(0.0, kept / counted - 0.02), min(1.0, kept / counted + 0.02)),
        ),
        "cache": CacheUse(reported_by=len(good), cached_tokens=900, input_tokens=3_000, hit_share=0.3),
        "steady_state": SteadyState(
            from_s=begin + 0.2 * span, to_s=begin + 0.8 * span, requests=len(measured) // 2, metrics=metrics,
            requests_per_s=len(good) / span * 1.1, output_tokens_per_s=tokens_out / span * 1.1,
        ),
        "generator": Generator(
            workers=1, cpu_share=0.031, loop_lag_p99_s=0.00042, offered_per_s=rate_per_s, achieved_per_s=rate_per_s
        ),
        "timeline": make_timeline(measured, end),
    }  # fmt: skip
    return RunResult(**(fields | changes))  # type: ignore[arg-type]


def _keeps(record: RequestRecord) -> bool:
    """Whether a request is within `TARGETS`."""
    times = record.chunks()
    ttft, tpot = times[0] - record.intended_s, (times[-1] - times[0]) / (len(times) - 1)
    return ttft <= TARGETS["ttft"] and tpot <= TARGETS["tpot"]


def _errors(failed: Sequence[RequestRecord]) -> list[ErrorCount]:
    """Errors by kind."""
    kinds = Counter((str(record.outcome), record.status, record.error) for record in failed)
    return [ErrorCount(outcome=a, status=b, count=count, example=c) for (a, b, c), count in kinds.items()]


def make_timeline(records: Sequence[RequestRecord], end: float) -> list[TimelinePoint]:
    """Bins of half a second."""
    points = []
    for t in np.arange(0.0, end, 0.5).tolist():
        ended = [record for record in records if t <= (record.ended_s or 0.0) < t + 0.5]
        ok = [record for record in ended if record.outcome in SUCCESSES]
        ttfts = [record.chunks()[0] - record.intended_s for record in ok]
        tpots = [(times[-1] - times[0]) / (len(times) - 1) for times in (record.chunks() for record in ok)]
        points.append(
            TimelinePoint(
                t_s=t,
                sent=sum(t <= (record.started_s or 0.0) < t + 0.5 for record in records),
                finished=len(ok),
                failed=sum(record.outcome in FAILURES for record in ended),
                running=sum((r.started_s or 0.0) <= t + 0.5 < (r.ended_s or 0.0) for r in records),
                output_tokens=sum(1 for r in records for at in r.chunks() if t <= at < t + 0.5),
                ttft_p50_s=float(np.percentile(ttfts, 50)) if ttfts else None,
                ttft_p99_s=float(np.percentile(ttfts, 99)) if ttfts else None,
                tpot_p50_s=float(np.percentile(tpots, 50)) if tpots else None,
                tpot_p99_s=float(np.percentile(tpots, 99)) if tpots else None,
            )
        )
    return points


def make_series(records: Sequence[RequestRecord], slots: int = SLOTS) -> ServerSeries:
    """Values that such a server would report each second."""
    end = max(record.ended_s or 0.0 for record in records)
    times = np.arange(-1.0, end + 1, 1.0).tolist()
    open_at = [sum((r.started_s or 0.0) <= t < (r.ended_s or 0.0) for r in records) for t in times]
    values: dict[str, list[float | None]] = {
        "vllm:num_requests_running": [float(min(number, slots)) for number in open_at],
        "vllm:num_requests_waiting": [float(max(0, number - slots)) for number in open_at],
        "vllm:kv_cache_usage_perc": [min(number, slots) / slots * 0.93 for number in open_at],
        "prefix_cache_hit_share": [None, *(0.2 + 0.15 * float(np.sin(t / 7)) for t in times[1:])],
        "vllm:prompt_tokens_per_s": [None, *(400.0 * number / 10 for number in open_at[1:])],
        "vllm:generation_tokens_per_s": [None, *(45.0 * min(number, slots) for number in open_at[1:])],
        "vllm:request_queue_time_seconds_mean": [None, *(0.002 * number for number in open_at[1:])],
        "cloudmatrix:ub_link_bytes_per_s": [None, *(1.2e9 * number for number in open_at[1:])],
        "vllm:num_preemptions_per_s": [0.0 for _ in times],
    }
    return ServerSeries(times, values)


def make_sweep(rates: Sequence[float] = (2, 4, 6, 8, 10, 12, 14), requests: int = 150) -> SweepResult:
    """A sweep over the rate; the simulated server's slots are full near 10 requests/s."""
    points = [
        SweepPoint(
            value=rate,
            folder=f"rate-{rate:g}",
            result=make_result(make_records(rate_per_s=rate, requests=requests, seed=3), rate_per_s=rate),
        )
        for rate in rates
    ]
    points[-1].aborted = "the backlog grew without end"
    points[-2].result.generator.is_bottleneck = True
    points[-2].result.generator.reasons = ["one worker was busy for 97 % of a core"]
    return SweepResult(
        parameter="rate", points=points, best=8.0, first_failed=10.0,
        explanation="At 8 requests/s 99 % of the requests kept the SLOs, at 10 no longer.",
    )  # fmt: skip
