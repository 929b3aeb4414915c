"""One instance's snapshot, as its replica reports it to a gateway."""

from dataclasses import dataclass

from serving.ids import ReplicaId
from serving.telemetry.pool_stats import PoolClientStats

ITERATION_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds for the tokens of one step. Source: vLLM's `iteration_tokens_total`."""


@dataclass(frozen=True, slots=True)
class InstanceStats:
    """Gauges are of now; names ending in `_total` count since the instance started and never fall.

    Args:
        pool: `prefill`, `decode` or `aggregated`.
        waiting: sequences queued; `queue_tokens` is how many tokens they still have to compute.
        kv_blocks_used: blocks held by sequences; `kv_blocks_cached` are free for reuse but still hold a prefix.
        prompt_tokens_total: prompt tokens computed here; `generation_tokens_total`: tokens sampled here.
        prefix_queries_total, prefix_hits_total: prompt tokens looked up in, and found in, the instance's own cache.
        handoffs_total: sequences adopted; bytes and seconds are what moving their KV took; failures have neither.
        steps_total, busy_seconds_total: steps executed, and the time spent in them.
        predicted_npu_seconds_total: what those steps would have taken on real NPUs, times their number; 0 if unknown.
        iteration_tokens: those steps by what they gave, computed prompt tokens plus sampled ones: a number for each of
            `ITERATION_TOKEN_BUCKETS`, not cumulative, one more for larger steps; or empty when nobody counts them.
        drafts_total: times that a sequence's guessed tokens were verified; draft_tokens_total: the guesses.
        accepted_drafts_total: guesses that were right, by position; empty without speculation.
        deferred: sequences that are neither queued nor computing, because their KV blocks are on their way.
        pool_use: what it got from the KV-cache pool; None without one.
        told: the instance's own time when it told this [s]; the larger, the newer.
    """

    replica: ReplicaId
    pool: str
    running: int = 0
    waiting: int = 0
    queue_tokens: int = 0
    preemptions_total: int = 0
    kv_blocks: int = 0
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0
    block_tokens: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    prefix_queries_total: int = 0
    prefix_hits_total: int = 0
    handoffs_total: int = 0
    handoff_failures_total: int = 0
    handoff_bytes_total: int = 0
    handoff_seconds_total: float = 0.0
    npus: int = 0
    hbm_capacity_bytes: int = 0
    hbm_used_bytes: int = 0
    steps_total: int = 0
    busy_seconds_total: float = 0.0
    predicted_npu_seconds_total: float = 0.0
    iteration_tokens: tuple[int, ...] = ()
    iteration_tokens_sum: int = 0
    drafts_total: int = 0
    draft_tokens_total: int = 0
    accepted_drafts_total: tuple[int, ...] = ()
    deferred: int = 0
    pool_use: PoolClientStats | None = None
    told: float = 0.0
