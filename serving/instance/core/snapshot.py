"""Statistics of one engine, collected from its independent parts."""

from bisect import bisect_left
from dataclasses import dataclass, field

from serving.instance.core.draft_planner import DraftPlanner
from serving.instance.core.handoffs import HeldHandoffs
from serving.instance.core.pool_orders import PoolOrders
from serving.instance.core.scheduler import Scheduler
from serving.telemetry.stats import ITERATION_TOKEN_BUCKETS
from serving.values.instances import EngineSnapshot
from serving.values.throughput import BusyThroughput


@dataclass(slots=True)
class EngineCounters:
    """Counters of the engine itself."""

    planned: int = 0
    """Number of started steps; also the number of the next one."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    handoffs_in: int = 0
    handoff_bytes_in: int = 0
    handoff_seconds: float = 0.0
    handoff_failures: int = 0
    progress_at: float = 0.0
    """Engine time of the last step, or of the arrival of work after idleness [s]."""
    steps_by_tokens: list[int] = field(default_factory=lambda: [0] * (len(ITERATION_TOKEN_BUCKETS) + 1))
    """Executed steps by their computed prompt tokens plus sampled tokens; not cumulative."""

    @property
    def step_tokens(self) -> int:
        """Prompt tokens computed plus tokens sampled by all executed steps."""
        return self.prompt_tokens + self.generated_tokens

    def count_step(self, before: int) -> None:
        """Add a finished step to `steps_by_tokens`, once its tokens are counted; `before`: `step_tokens` before it."""
        self.steps_by_tokens[bisect_left(ITERATION_TOKEN_BUCKETS, self.step_tokens - before)] += 1


def take_snapshot(
    now: float,
    counters: EngineCounters,
    scheduler: Scheduler,
    handoffs: HeldHandoffs,
    orders: PoolOrders,
    throughput: BusyThroughput,
    drafts: DraftPlanner | None,
    *,
    has_work: bool,
    draining: bool,
) -> EngineSnapshot:
    """The current state. Reported blocks have all layers: if blocks have only some of them, rows are counted."""
    pool, width = scheduler.blocks.pool, scheduler.blocks.width
    return EngineSnapshot(
        at_s=now,
        waiting=len(scheduler.waiting),
        running=len(scheduler.running),
        held=len(handoffs),
        pulling=len(scheduler.pulling),
        fetching=len(scheduler.fetching),
        storing_blocks=orders.pinned_blocks,
        queued_tokens=scheduler.queued_tokens(),
        kv_blocks_total=pool.num_blocks // width,
        kv_blocks_used=-(-pool.num_used // width),
        kv_blocks_cached=pool.num_cold // width,
        prefix_queries_tokens_total=scheduler.prefix_queries_tokens,
        prefix_hits_tokens_total=scheduler.prefix_hits_tokens,
        pulled_tokens_total=orders.pulled_tokens,
        lost_tokens_total=orders.lost_tokens,
        unstored_blocks_total=orders.skipped_blocks,
        preemptions_total=scheduler.preemptions,
        steps_total=sum(counters.steps_by_tokens),
        steps_by_tokens=tuple(counters.steps_by_tokens),
        prompt_tokens_total=counters.prompt_tokens,
        generated_tokens_total=counters.generated_tokens,
        handoffs_out_total=handoffs.issued_total,
        handoffs_in_total=counters.handoffs_in,
        handoffs_expired_total=handoffs.expired_total,
        handoff_bytes_in_total=counters.handoff_bytes_in,
        handoff_seconds_total=counters.handoff_seconds,
        handoff_failures_total=counters.handoff_failures,
        last_progress_s=counters.progress_at,
        has_work=has_work,
        draining=draining,
        tokens_per_s=throughput.known_after(0.0 if has_work else now - counters.progress_at),
        drafts_total=drafts.verifications if drafts is not None else 0,
        draft_tokens_total=drafts.drafted if drafts is not None else 0,
        accepted_drafts_total=tuple(drafts.accepted) if drafts is not None else (),
    )
