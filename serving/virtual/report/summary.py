"""The figures of a simulation in one value, which console, JSON and page only display."""

from dataclasses import dataclass

import numpy as np

from loadgen.trace.jobs import JobFigures, TurnSeen, job_figures
from serving.values.news import FailKind
from serving.virtual.report.latencies import (
    Goodput,
    Latencies,
    LatencyFigures,
    Slo,
    distribution,
    goodput,
    ints,
    latencies,
)
from serving.virtual.report.pools import (
    SECONDS_PER_HOUR,
    FaultSummary,
    PlaneSummary,
    PoolSummary,
    fault_summaries,
    plane_summaries,
    pool_summaries,
    ratio,
)
from serving.virtual.result import FAILURES, NO_PAUSE, Outcome, SimResult


@dataclass(frozen=True, slots=True)
class RunThroughput:
    """Rates over the whole run [1/s]: finished requests, tokens of their prompts, and tokens that reached clients.

    `output_tokens_per_npu_s`: per NPU of every pool together.
    """

    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    output_tokens_per_npu_s: float


@dataclass(frozen=True, slots=True)
class CacheSummary:
    """Work that the cache saved.

    Attributes:
        hit_share: cached part of the prompt tokens of requests that got a first token, 0..1.
        pulled_share: part of these prompt tokens that was loaded from the KV-cache pool, 0..1.
        pool_hit_share: part of the blocks looked up in the pool that were found, 0..1.
    """

    hit_share: float
    pulled_share: float
    pool_hit_share: float
    pool_lookups_blocks: int
    pool_hits_blocks: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All figures of a simulation's report.

    Attributes:
        outcomes: number of requests by outcome, in the order of `Outcome`, named in lower case.
        retried: requests that were sent to a prefill instance more than once.
        one_token: finished requests that have no TPOT.
        goodput: None without SLOs.
        jobs: conversations of several turns; None if there are none.
        lost_npu_share: part of all NPU time that faults took, 0..1.
    """

    duration_s: float
    requests: int
    outcomes: dict[str, int]
    retried: int
    ttft_s: LatencyFigures
    tpot_s: LatencyFigures
    e2e_s: LatencyFigures
    one_token: int
    goodput: Goodput | None
    throughput: RunThroughput
    cache: CacheSummary
    pools: list[PoolSummary]
    planes: list[PlaneSummary]
    faults: list[FaultSummary]
    npu_hours: float
    lost_npu_share: float
    jobs: JobFigures | None = None


def summarize(result: SimResult, slo: Slo | None = None, *, times: Latencies | None = None) -> Summary:
    """Compute every figure of a result.

    Args:
        slo: limits for goodput; None or an empty one = no goodput.
        times: `latencies(result.requests)`, if already computed.
    """
    times = times or latencies(result.requests)
    outcome = np.frombuffer(result.requests.outcome, dtype=np.int8)
    end_s = result.totals.end_s
    lost_s = sum(fault.npu_seconds_lost for fault in result.faults)
    return Summary(
        duration_s=end_s,
        requests=len(result.requests),
        outcomes={one.name.lower(): int(np.count_nonzero(outcome == one)) for one in Outcome},
        retried=int(np.count_nonzero(ints(result.requests.attempts) > 1)),
        ttft_s=distribution(times.ttft_s),
        tpot_s=distribution(times.tpot_s),
        e2e_s=distribution(times.e2e_s),
        one_token=times.one_token,
        goodput=goodput(times, slo, end_s) if slo else None,
        throughput=_throughput(result, times),
        cache=_cache(result, times),
        pools=pool_summaries(result),
        planes=plane_summaries(result.timeline),
        faults=fault_summaries(result.faults),
        npu_hours=result.totals.npu_seconds / SECONDS_PER_HOUR,
        lost_npu_share=min(ratio(lost_s, result.totals.npu_seconds), 1.0),  # faults that overlap count an NPU twice
        jobs=_jobs(result),
    )


def _jobs(result: SimResult) -> JobFigures | None:
    rows = result.requests
    if not len(rows.job) or max(rows.job) < 0:
        return None
    turns = (
        TurnSeen(
            rows.job[row],
            rows.job_turns[row],
            rows.arrival_s[row],
            rows.finish_s[row],
            rows.outcome[row] == Outcome.FINISHED,
            rows.prompt_tokens[row],
            rows.cached_tokens[row],
            rows.repeated_tokens[row],
            None if rows.pause_s[row] == NO_PAUSE else rows.pause_s[row],
            _problem(rows.outcome[row], rows.failure[row]),
        )
        for row in range(len(rows))
        if rows.job[row] >= 0
    )
    return job_figures(turns, result.totals.npu_seconds)


_PROBLEMS = {
    FailKind.INVALID: "a prompt longer than an instance holds: shorten it (--length) or raise [engine] max_model_len",
    FailKind.DEADLINE: "a request that took longer than [gateway] request_timeout_s: add instances or raise it",
    FailKind.OVERLOADED: "a request refused by full instances: add instances or raise their max_waiting",
    FailKind.UNAVAILABLE: "no instance or gateway to serve a request",
    FailKind.POISON: "a request whose instances failed again and again",
}


def _problem(outcome: int, failure: int) -> str:
    """Why a turn of a job has no whole response, and what to change; empty if it has one."""
    if outcome == Outcome.FAILED and failure >= 0:
        return _PROBLEMS.get(FAILURES[failure], f"a request that failed ({FAILURES[failure].value})")
    if outcome == Outcome.REJECTED:
        return "a request refused by a full gateway (429): raise [gateway] max_queued_requests or add instances"
    return ""


def _throughput(result: SimResult, times: Latencies) -> RunThroughput:
    totals = result.totals
    finished = int(np.count_nonzero(times.finished))
    prompt_tokens = int(ints(result.requests.prompt_tokens)[times.finished].sum())
    return RunThroughput(
        requests_per_s=ratio(finished, totals.end_s),
        input_tokens_per_s=ratio(prompt_tokens, totals.end_s),
        output_tokens_per_s=ratio(totals.tokens_out, totals.end_s),
        output_tokens_per_npu_s=ratio(totals.tokens_out, totals.npu_seconds),
    )


def _cache(result: SimResult, times: Latencies) -> CacheSummary:
    """Cache figures of requests that got a first token; the hits of other requests are not known."""
    begun = ~np.isnan(times.ttft_s)
    requests, totals = result.requests, result.totals
    prompt = int(ints(requests.prompt_tokens)[begun].sum())
    return CacheSummary(
        hit_share=ratio(int(ints(requests.cached_tokens)[begun].sum()), prompt),
        pulled_share=ratio(int(ints(requests.pulled_tokens)[begun].sum()), prompt),
        pool_hit_share=ratio(totals.pool_hits_blocks, totals.pool_lookups_blocks),
        pool_lookups_blocks=totals.pool_lookups_blocks,
        pool_hits_blocks=totals.pool_hits_blocks,
    )
