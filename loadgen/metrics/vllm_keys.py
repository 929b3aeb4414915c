"""The flat result of `vllm bench serve` 0.33: its key names, its units (milliseconds), its definitions.

Latency counts from the actual send, as there, for goodput too. Waiting for a slot is a metric of its own
(`client_queue_time`). Where vLLM's meaning is odd it is kept, since scripts expect it: `failed` counts all requests
without success. Two peaks keep vLLM's names but not its values, which may be below the mean or above the cap:
`max_output_tokens_per_s` counts tokens, not chunks, and `max_concurrent_requests` is the exact maximum of all requests
sent, not the successes that touch one second.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.definitions import BY_NAME, chunk_times, last_content_s, tokens_of
from loadgen.metrics.distribution import name_of
from loadgen.metrics.goodput import evaluate
from loadgen.record import SUCCESSES, RequestRecord
from loadgen.result import RunResult

Floats = NDArray[np.float64]

_METRICS = {
    "ttft": "ttft_sent",
    "tpot": "tpot",
    "itl": "itl",
    "e2el": "e2e_sent",
    "client_queue_time": "client_queue",
    "e2el_including_client_queue": "e2e",
}

_FROM_SEND = {"ttft": "ttft_sent", "e2e": "e2e_sent"}


def flat(
    result: RunResult,
    runs: Sequence[Sequence[RequestRecord]],
    *,
    percentile_metrics: Sequence[str],
    percentiles: Sequence[float],
    detailed: bool,
    request_rate: float | None,
    burstiness: float,
    max_concurrency: int | None,
    num_prompts: int,
    backend: str,
    tokenizer: str | None,
    date: str,
) -> dict[str, object]:
    """vLLM's keys in vLLM's order.

    Args:
        runs: records of each repetition; their times all count from their own starts.
        percentile_metrics: of ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue; unknown ones are
            left out, as there.
        detailed: with the lists of single requests (`--save-detailed`).
        request_rate: None or infinite = "inf".
        date: as `%Y%m%d-%H%M%S`.
    """
    measured = sorted((r for run in runs for r in run if not r.warmup), key=lambda r: (r.intended_s, r.index, r.turn))
    good = [record for record in measured if record.outcome in SUCCESSES]
    good_of_runs = [[r for r in run if r.outcome in SUCCESSES and not r.warmup] for run in runs]
    finite = request_rate is not None and math.isfinite(request_rate)
    found: dict[str, object] = {
        "date": date,
        "endpoint_type": backend,
        "backend": backend,
        "label": None,
        "model_id": result.model,
        "tokenizer_id": tokenizer,
        "num_prompts": num_prompts,
        "request_rate": request_rate if finite else "inf",
        "burstiness": burstiness if math.isfinite(burstiness) else "inf",
        "max_concurrency": max_concurrency,
        "duration": result.duration_s,
        "completed": len(good),
        "failed": len(measured) - len(good),
        "total_input_tokens": sum(_input_tokens(record) for record in good),
        "total_output_tokens": sum(map(tokens_of, good)),
        "request_throughput": result.throughput.requests_per_s,
        "request_goodput": _goodput_per_s(result, measured),
        "output_throughput": result.throughput.output_tokens_per_s,
        "total_token_throughput": result.throughput.total_tokens_per_s,
        "max_output_tokens_per_s": max(_mean_rate(result), *map(_busiest_second, good_of_runs)),
        "max_concurrent_requests": result.peak_concurrency,
        "rtfx": 0.0,
    }
    if detailed:
        found |= _lists(measured)
    for name in percentile_metrics:
        if name in _METRICS:
            found |= _statistics(name, good, percentiles)
    return found


def _goodput_per_s(result: RunResult, measured: Sequence[RequestRecord]) -> float | None:
    """Requests that kept the SLOs when counted from the actual send; None without SLOs."""
    if result.slo is None:
        return None
    targets = {_FROM_SEND.get(name, name): limit_s for name, limit_s in result.slo.targets.items()}
    return evaluate(measured, targets).good / result.duration_s if result.duration_s > 0 else 0.0


def _statistics(name: str, good: Sequence[RequestRecord], percentiles: Sequence[float]) -> dict[str, float]:
    """mean, median, std and percentiles of one metric [ms]; zeros without any value, as vLLM has it."""
    values = [BY_NAME[_METRICS[name]].values(record) for record in good]
    pooled = np.concatenate(values) if values else np.empty(0)
    array = pooled * 1e3 if len(pooled) else np.zeros(1)
    found = {
        f"mean_{name}_ms": float(array.mean()),
        f"median_{name}_ms": float(np.median(array)),
        f"std_{name}_ms": float(array.std()),
    }
    return found | {
        f"p{name_of(percentile)}_{name}_ms": float(np.percentile(array, percentile)) for percentile in percentiles
    }


def _lists(measured: Sequence[RequestRecord]) -> dict[str, object]:
    """Single requests, in the order of the plan; seconds, as vLLM's lists are.

    Missing values are zero, as in vLLM: lengths and latency of failed requests, TTFT of those without a chunk.
    """
    ok = [record.outcome in SUCCESSES for record in measured]
    found: dict[str, object] = {
        "input_lens": [_input_tokens(record) for record in measured],
        "output_lens": [tokens_of(record) if fine else 0 for record, fine in zip(measured, ok, strict=True)],
        "ttfts": [_first(BY_NAME["ttft_sent"].values(record)) for record in measured],
        "itls": [np.diff(chunk_times(record)).tolist() for record in measured],
        "latencies": [
            _first(BY_NAME["e2e_sent"].values(record)) if fine else 0.0
            for record, fine in zip(measured, ok, strict=True)
        ],
        "start_times": [record.started_s or 0.0 for record in measured],
        "queue_times": [_first(BY_NAME["client_queue"].values(record)) for record in measured],
        "generated_texts": [record.text or "" for record in measured],
        "errors": [record.error for record in measured],
    }
    if any(record.server_times for record in measured):
        found["server_queue_times"] = [record.server_times.get("queue") for record in measured]
        found["server_ttfts"] = [record.server_times.get("ttft") for record in measured]
    return found


def _first(values: Floats) -> float:
    return float(values[0]) if len(values) else 0.0


def _input_tokens(record: RequestRecord) -> int:
    return record.input_tokens or record.planned_input_tokens or 0


def _seconds(good: Sequence[RequestRecord]) -> tuple[float, int]:
    begin = min(record.started_s or 0.0 for record in good)
    end = max(last_content_s(record) or begin for record in good)
    return begin, int(end - begin) + 1


def _mean_rate(result: RunResult) -> float:
    """Output tokens per second of the run; of several repetitions the fastest one's."""
    rates = [result.throughput, *(run.throughput for run in result.repetitions)]
    return max(rate.output_tokens_per_s for rate in rates)


def _busiest_second(good: Sequence[RequestRecord]) -> float:
    """Most tokens that arrived in one of the seconds after the first send.

    A response's tokens are divided among its chunks; a whole response's arrive at its end. A run shorter than a second
    has fewer tokens in it than its mean rate.
    """
    if not good:
        return 0.0
    begin, count = _seconds(good)
    buckets = np.zeros(count)
    for record in good:
        times = chunk_times(record) if record.chunk_times else np.array([record.ended_s or begin])
        seconds = (times - begin).astype(np.int64)
        if len(seconds):
            low, high = int(seconds[0]), int(seconds[-1])
            share = tokens_of(record) / len(seconds)
            buckets[low : high + 1] += share * np.bincount(seconds - low, minlength=high + 1 - low)
    return float(buckets.max())
