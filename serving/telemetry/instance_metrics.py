"""Instance metrics, from the latest snapshots; an instance's series end with it."""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.ids import ReplicaId
from serving.telemetry.group_metrics import expert_series
from serving.telemetry.histogram import cumulative
from serving.telemetry.pool_metrics import client_series
from serving.telemetry.stats import ITERATION_TOKEN_BUCKETS, InstanceStats
from serving.values.expert_map import ExpertFacts

Value = Callable[[InstanceStats], float]

_LABELS = ("model_name", "engine", "pool")


def _waiting(stats: InstanceStats) -> int:
    return stats.waiting + _deferred(stats)


def _deferred(stats: InstanceStats) -> int:
    """Sequences that are neither queued nor computing, because their KV blocks are in transit."""
    return stats.pulling + stats.fetching


def _kv_usage(stats: InstanceStats) -> float:
    return stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0


def _pool_tokens(stats: InstanceStats, *results: str) -> int:
    if stats.pool_use is None:
        return 0
    return stats.block_tokens * sum(stats.pool_use.blocks.get(result, 0) for result in results)


_EXECUTED = "executed; failed ones are not counted"
_COMPUTED = "of executed engine steps, of sequences not cancelled before the end of the step"
_ADMITTED = "of sequences at their first admission"
_HANDED = "adopted from another instance"

GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("vllm:num_requests_running", "Running sequences: each choice of a request is one", lambda s: s.running),
    (
        "vllm:num_requests_waiting",
        "Waiting sequences, for any reason",
        _waiting,
    ),
    ("vllm:kv_cache_usage_perc", "Share of KV blocks held by sequences, 0 to 1", _kv_usage),
    ("cloudmatrix:kv_blocks", "KV blocks of the instance", lambda s: s.kv_blocks_total),
    ("cloudmatrix:kv_blocks_used", "KV blocks held by sequences", lambda s: s.kv_blocks_used),
    ("cloudmatrix:kv_blocks_cached", "Free KV blocks that still hold a prefix", lambda s: s.kv_blocks_cached),
    ("cloudmatrix:queue_tokens", "Tokens that queued sequences still have to compute", lambda s: s.queued_tokens),
    ("cloudmatrix:npus", "NPUs of the instance", lambda s: s.npus),
    ("cloudmatrix:npu_hbm_used_bytes", "HBM allocated on the instance's NPUs [bytes]", lambda s: s.hbm_used_bytes),
    ("cloudmatrix:npu_hbm_capacity_bytes", "HBM of the instance's NPUs [bytes]", lambda s: s.hbm_capacity_bytes),
)

COUNTERS: tuple[tuple[str, str, Value], ...] = (
    (
        "vllm:num_preemptions",
        "Preemptions: a sequence released its blocks for lack of free ones",
        lambda s: s.preemptions_total,
    ),
    (
        "vllm:prefix_cache_queries",
        f"Tokens looked up in the instance's prefix cache, {_ADMITTED}",
        lambda s: s.prefix_queries_tokens_total,
    ),
    (
        "vllm:prefix_cache_hits",
        f"Tokens found in the instance's prefix cache, {_ADMITTED}",
        lambda s: s.prefix_hits_tokens_total,
    ),
    (
        "vllm:spec_decode_num_drafts",
        "Steps of single sequences that verified draft tokens",
        lambda s: s.drafts_total,
    ),
    ("vllm:spec_decode_num_draft_tokens", "Draft tokens verified", lambda s: s.draft_tokens_total),
    (
        "vllm:spec_decode_num_accepted_tokens",
        "Draft tokens accepted",
        lambda s: sum(s.accepted_drafts_total),
    ),
    (
        "cloudmatrix:prompt_tokens_computed",
        f"Prompt tokens {_COMPUTED}, recomputed ones included",
        lambda s: s.prompt_tokens_total,
    ),
    ("cloudmatrix:tokens_sampled", f"Output tokens {_COMPUTED}", lambda s: s.generated_tokens_total),
    (
        "vllm:external_prefix_cache_queries",
        "Tokens of blocks that the instance looked up in the KV-cache pool",
        lambda s: _pool_tokens(s, "dram", "ssd", "absent", "lost"),
    ),
    (
        "vllm:external_prefix_cache_hits",
        "Tokens of blocks that the instance read from the KV-cache pool",
        lambda s: _pool_tokens(s, "dram", "ssd"),
    ),
    (
        "cloudmatrix:handoffs_expired",
        "Handoffs whose blocks were not pulled within their lease and were freed",
        lambda s: s.handoffs_expired_total,
    ),
    ("cloudmatrix:handoffs", f"Sequences {_HANDED}", lambda s: s.handoffs_in_total),
    (
        "cloudmatrix:handoff_failures",
        "Sequences, not cancelled, whose KV could not be pulled from another instance",
        lambda s: s.handoff_failures_total,
    ),
    ("cloudmatrix:handoff_bytes", f"KV bytes transferred for sequences {_HANDED}", lambda s: s.handoff_bytes_in_total),
    (
        "cloudmatrix:handoff_seconds",
        f"Time of KV transfers for sequences {_HANDED} [s]",
        lambda s: s.handoff_seconds_total,
    ),
    ("cloudmatrix:steps", f"Engine steps {_EXECUTED}", lambda s: s.steps_total),
    ("cloudmatrix:busy_seconds", f"Time spent in engine steps {_EXECUTED} [s]", lambda s: s.busy_s),
    (
        "cloudmatrix:predicted_npu_seconds",
        f"Predicted time of real NPUs in engine steps {_EXECUTED}, summed over NPUs [s]",
        lambda s: s.predicted_s * s.npus,
    ),
)


class InstanceBoard(Collector):
    """Latest snapshot of every live instance."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._stats: dict[str, InstanceStats] = {}
        self._expert_ranks: dict[ReplicaId, tuple[str, int, ExpertFacts]] = {}
        """Pool, number and facts of ranks that are no instances."""

    def publish_expert_rank(self, replica: ReplicaId, pool: str, rank: int, facts: ExpertFacts) -> None:
        """Replace the facts of a rank without sequences."""
        self._expert_ranks[replica] = pool, rank, facts

    def publish(self, stats: InstanceStats) -> None:
        """Replace the instance's snapshot."""
        self._stats[stats.replica] = stats

    def retain(self, alive: Iterable[str]) -> None:
        """Drop instances whose replica id is not in `alive`."""
        keep = set(alive)
        self._stats = {replica: stats for replica, stats in self._stats.items() if replica in keep}
        self._expert_ranks = {replica: one for replica, one in self._expert_ranks.items() if replica in keep}

    def snapshots(self) -> list[InstanceStats]:
        """All snapshots, by pool and replica."""
        return sorted(self._stats.values(), key=lambda s: (s.pool, s.replica))

    def collect(self) -> Iterable[Metric]:
        """All instance series, for the registry. Families without samples are omitted."""
        return (family for family in self._families() if family.samples)

    def _families(self) -> Iterable[Metric]:
        rows = [((self._model_name, stats.replica, stats.pool), stats) for stats in self.snapshots()]
        for name, text, value in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            for labels, stats in rows:
                gauge.add_metric(labels, value(stats))
            yield gauge
        for name, text, value in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            for labels, stats in rows:
                counter.add_metric(labels, value(stats))
            yield counter
        yield from client_series([(labels, stats.pool_use) for labels, stats in rows if stats.pool_use is not None])
        yield from path_series([(own, stats) for own, stats in rows])
        ranks = [(own, one.rank, one.experts) for own, one in rows if one.experts is not None]
        for replica, (pool, number, facts) in sorted(self._expert_ranks.items()):
            ranks.append(((self._model_name, replica, pool), number, facts))
        yield from expert_series(ranks)
        yield self._waiting_by_reason()
        yield self._accepted_by_position()
        yield self._iteration_tokens()
        yield self._cache_config()

    def _waiting_by_reason(self) -> Metric:
        """Waiting sequences under vLLM's name and reasons."""
        name, text = (
            "vllm:num_requests_waiting_by_reason",
            "Waiting sequences: for a slot in the batch (capacity) or for their KV blocks (deferred)",
        )
        family = GaugeMetricFamily(name, text, labels=(*_LABELS, "reason"))
        for stats in self.snapshots():
            for reason, count in (("capacity", stats.waiting), ("deferred", _deferred(stats))):
                family.add_metric((self._model_name, stats.replica, stats.pool, reason), count)
        return family

    def _accepted_by_position(self) -> Metric:
        """Accepted draft tokens under vLLM's name; position 0 is the first draft token of a step."""
        name, text = (
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position from 0",
        )
        family = CounterMetricFamily(name, text, labels=(*_LABELS, "position"))
        for stats in self.snapshots():
            for position, count in enumerate(stats.accepted_drafts_total):
                family.add_metric((self._model_name, stats.replica, stats.pool, str(position)), count)
        return family

    def _iteration_tokens(self) -> Metric:
        text = f"Prompt and output tokens per engine step, of steps {_EXECUTED}"
        family = HistogramMetricFamily("vllm:iteration_tokens_total", text, labels=_LABELS)
        for stats in self.snapshots():
            if stats.steps_by_tokens:
                buckets = cumulative(ITERATION_TOKEN_BUCKETS, stats.steps_by_tokens)
                tokens = stats.prompt_tokens_total + stats.generated_tokens_total
                family.add_metric((self._model_name, stats.replica, stats.pool), buckets, tokens)
        return family

    def _cache_config(self) -> Metric:
        """Always 1; the labels have the size of the KV cache, which routers read."""
        labels = (*_LABELS, "block_size", "num_gpu_blocks")
        family = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Always 1; labels: tokens of a KV block, and KV blocks of the instance",
            labels=labels,
        )
        for stats in self.snapshots():
            own = (self._model_name, stats.replica, stats.pool)
            family.add_metric((*own, str(stats.block_tokens), str(stats.kv_blocks_total)), 1.0)
        return family


# Metrics of KV transfer paths between nodes: handoffs by pair of nodes, and impaired paths.

_PAIR = (*_LABELS, "source", "target")


def path_series(rows: Sequence[tuple[tuple[str, ...], InstanceStats]]) -> Iterable[Metric]:
    """Metrics by pair of nodes and by kind of impairment.

    Args:
        rows: label values of an instance (model_name, engine, pool) with its statistics.
    """
    seconds = HistogramMetricFamily(
        "cloudmatrix:handoff_path_seconds",
        "Duration of a handoff's pull, by source and target node, on the puller's clock [s]",
        labels=_PAIR,
    )
    moved = CounterMetricFamily(
        "cloudmatrix:handoff_path_bytes",
        "KV pulled for handoffs, by source and target node [bytes]",
        labels=_PAIR,
    )
    failures = CounterMetricFamily(
        "cloudmatrix:handoff_path_failures", "Failed pulls, by source and target node", labels=_PAIR
    )
    trouble = GaugeMetricFamily(
        "cloudmatrix:isolated_paths",
        "Source instances whose KV does not arrive (lost), or arrives late (slow); handoffs avoid them",
        labels=(*_LABELS, "trouble"),
    )
    for own, stats in rows:
        for path in stats.paths:
            pair = (*own, path.source, path.target)
            seconds.add_metric(pair, cumulative(path.latencies.bounds_s, path.latencies.counts), path.latencies.sum_s)
            moved.add_metric(pair, path.moved_bytes)
            failures.add_metric(pair, path.failures)
        trouble.add_metric((*own, "lost"), stats.lost_paths)
        trouble.add_metric((*own, "slow"), stats.slow_paths)
    yield from (seconds, moved, failures, trouble)
