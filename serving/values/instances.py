"""The state of an instance that its gateways know."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware.topology import NpuId
from serving.ids import NodeId, ReplicaId
from serving.values.group import RankRole
from serving.values.news import Value

CRASHED_AGE_S = 1e9
"""Value of `Status.progress_age_s` for a crashed engine, as infinity cannot be sent."""


class Status(Value, frozen=True, gc=False):
    """Load of an instance, sent every `[health] link_period_s` and when it drains; its absence indicates a freeze."""

    queued_tokens: int
    waiting: int
    running: int
    """Sequences that have their blocks: computing, or being pulled or fetched."""
    blocks_free: int
    draining: bool
    progress_age_s: float
    """Real time that the engine has had work without making a step; 0 when idle, `CRASHED_AGE_S` after a crash."""
    tokens_per_s: float
    """Recent tokens computed per second of step time."""
    step_limit_s: float = 0.0
    """Limit of `progress_age_s`, beyond which the engine hangs; 0 = unknown."""
    lost_paths: tuple[ReplicaId, ...] = ()
    """Instances from which this one receives no KV blocks."""
    slow_paths: tuple[ReplicaId, ...] = ()
    """Instances from which this one receives KV blocks late."""
    gateways: int = 1
    """Number of gateways linked to this instance; each knows only its own submissions."""
    pulling: int = 0
    fetching: int = 0
    """Sequences in `running` whose blocks are in transit: from another instance, from the KV-cache pool."""
    blocks_cached: int = 0
    """Free blocks that still hold a prefix."""
    share: float = 1.0
    """Fraction of its usual sequences that it requests: less than 1 for a rank slower than its peers."""
    max_sequences: int = 0
    max_step_tokens: int = 0
    """Limits of its concurrent work: sequences, tokens of a step; 0 = not reported."""


# Placement of an instance or a rank of a group.


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank's position in its group.

    Args:
        number: from 0. ranks: the group's planned size when it was created, which determines its share of the experts.
        most: rank numbers that the group's windows have room for.
        group: name of the group, for example `decode#k3jx9a`.
        role: what it computes.
        expert_index: its number among the expert ranks with which the group was created; None = `number`.
        expert_count: number of these expert ranks; None = `ranks`.
    """

    number: int
    ranks: int
    most: int
    group: str
    role: RankRole = RankRole.BOTH
    expert_index: int | None = None
    expert_count: int | None = None


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """Placement and identity of an instance."""

    replica: ReplicaId
    pool: str
    node: NodeId
    npus: tuple[NpuId, ...]
    segment_path: Path
    """Path of this instance's own UB segment."""
    link_host: str
    threads: int
    rank: RankPlace | None = None
    """Set if the instance is a rank of a group."""

    def beside(self, purpose: str) -> Path:
        """Path of another segment of this instance."""
        return self.segment_path.with_name(f"{self.segment_path.name}-{purpose}")


# Rows of `GET /cluster`: instances, or ranks of a group, and the number of replicas that they make.


def whole_replicas(rows: Iterable[Mapping[str, Any]]) -> int:
    """Replicas in these rows of one pool: each instance is one, and each group all of whose ranks are present.

    Ranks that have just joined a group, or do not know its smaller size yet, report another size than the others: the
    least size counts.
    """
    alone, there, sizes = 0, Counter[str](), dict[str, int]()
    for row in rows:
        group = row.get("group")
        if group is None:
            alone += 1
        else:
            there[group] += 1
            sizes[group] = min(sizes.get(group, size := int(row["ranks"])), size)
    return alone + sum(count >= sizes[group] for group, count in there.items())


# The state of an engine in numbers: announced by its instance and exported as metrics under the same names.


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """State of one engine. Counters (`*_total`) only increase; the rest is the present state.

    Args:
        at_s: engine time of this snapshot [s].
        waiting: sequences without blocks: new, preempted, or handed off and not admitted yet.
        fetching: sequences whose prefixes are being fetched from the KV-cache pool.
        storing_blocks: blocks that wait to be copied into the pool.
        queued_tokens: known tokens that are still to be computed.
        kv_blocks_cached: free blocks that a prefix could still match.
        pulled_tokens_total, lost_tokens_total: prompt tokens read from the pool, and lost there.
        drafts_total: steps of single sequences that verified draft tokens; draft_tokens_total: these tokens.
        accepted_drafts_total: accepted draft tokens that were used, by position; empty without speculation.
        unstored_blocks_total: full blocks that were not offered to the pool because too many were waiting.
        last_progress_s: engine time of the last step, or of the arrival of work at an idle engine [s].
        steps_total: finished steps, without failed ones.
        steps_by_tokens: steps by the tokens that each computed from prompts and sampled: one count for each of
            `ITERATION_TOKEN_BUCKETS`, not cumulative, and one more for larger steps.
        handoffs_in_total, handoff_bytes_in_total, handoff_seconds_total: adopted handoffs, bytes moved for them, and
            the sum of their durations [s].
        handoff_failures_total: failed pulls of sequences that were still wanted.
        has_work: whether the engine should make progress on its own; true without progress for long = stuck.
        tokens_per_s: recent tokens computed per second of step time, prompt and output; 0 = unknown, or outdated.
    """

    at_s: float = 0.0
    waiting: int = 0
    running: int = 0
    held: int = 0
    pulling: int = 0
    fetching: int = 0
    storing_blocks: int = 0
    queued_tokens: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0
    prefix_queries_tokens_total: int = 0
    prefix_hits_tokens_total: int = 0
    pulled_tokens_total: int = 0
    lost_tokens_total: int = 0
    unstored_blocks_total: int = 0
    preemptions_total: int = 0
    steps_total: int = 0
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    handoffs_out_total: int = 0
    handoffs_in_total: int = 0
    handoffs_expired_total: int = 0
    handoff_bytes_in_total: int = 0
    handoff_seconds_total: float = 0.0
    handoff_failures_total: int = 0
    last_progress_s: float = 0.0
    has_work: bool = False
    draining: bool = False
    tokens_per_s: float = 0.0
    drafts_total: int = 0
    draft_tokens_total: int = 0
    accepted_drafts_total: tuple[int, ...] = ()
    steps_by_tokens: tuple[int, ...] = ()
