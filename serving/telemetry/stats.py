"""One instance's snapshot, in its replica's report to a gateway."""

from dataclasses import dataclass

from serving.ids import ReplicaId
from serving.telemetry.handoff_paths import HandoffPath
from serving.telemetry.pool_stats import PoolClientStats
from serving.values.engine_snapshot import EngineSnapshot
from serving.values.expert_facts import ExpertFacts

ITERATION_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds for the tokens of one step. Source: vLLM's `iteration_tokens_total`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStats(EngineSnapshot):
    """Statistics of an engine and of its process.

    Args:
        pool: `prefill`, `decode` or `aggregated`.
        busy_s: time spent in finished steps [s].
        predicted_s: duration of those steps on real NPUs [s]; 0 if unknown.
        pool_use: its use of the KV-cache pool; None without one.
        rank, experts: of a rank of a group, its number and its facts about experts; otherwise 0 and None.
        paths: its pulls of handoffs, by the nodes of both ends.
        lost_paths, slow_paths: instances from which this one receives no KV blocks, or receives them late.
        told_s: the instance's own clock at this report [s]; larger = later.
    """

    replica: ReplicaId
    pool: str
    npus: int = 0
    hbm_capacity_bytes: int = 0
    hbm_used_bytes: int = 0
    block_tokens: int = 0
    busy_s: float = 0.0
    predicted_s: float = 0.0
    pool_use: PoolClientStats | None = None
    rank: int = 0
    experts: ExpertFacts | None = None
    paths: tuple[HandoffPath, ...] = ()
    lost_paths: int = 0
    slow_paths: int = 0
    told_s: float = 0.0
