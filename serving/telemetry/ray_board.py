"""The metrics of Ray's Serve LLM dashboard that this system exports.

The dashboard reads Ray's metrics ports, where each process exports only its own counts: a gateway its requests, an
instance its blocks and sequences. No event is counted twice, for any number of gateways. Handoffs use the dashboard's
names for NIXL transfers; transfers from and to the KV-cache pool use its names for offloaded KV.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from serving.telemetry.histogram import cumulative
from serving.telemetry.instance_metrics import InstanceBoard
from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.stats import BOUNDS_S, InstanceStats

AS_THEY_ARE = frozenset({
    "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:request_success",
    "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds", "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
    "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds",
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries", "vllm:prefix_cache_hits",
    "vllm:external_prefix_cache_queries", "vllm:external_prefix_cache_hits",
})  # fmt: skip
"""Families exported under the same names as on our own page."""
REQUESTS = "serve_deployment_request_counter"
"""Ray Serve's name, by which the dashboard finds the deployment and replica of a process."""
_LABELS = ("model_name", "engine", "pool")


class ServePlace(Struct, frozen=True):
    """Ray Serve's names of a process."""

    deployment: str
    replica: str
    application: str


def gateway_series(metrics: GatewayMetrics, place: ServePlace, by_serve: bool) -> Iterator[Metric]:
    """Metrics of one gateway's own requests.

    Args:
        by_serve: whether Ray Serve forwards the requests, and counts them itself.
    """
    yield from _asked(metrics.collect())
    if not by_serve:
        yield _requests(metrics.requests_by_route(), place)


def instance_series(model_name: str, stats: InstanceStats, taken: int, place: ServePlace) -> Iterator[Metric]:
    """Metrics of one instance.

    Args:
        taken: sequences received so far.
    """
    board = InstanceBoard(model_name)
    board.publish(stats)
    yield from _asked(board.collect())
    labels = (model_name, stats.replica, stats.pool)
    yield from _handoffs(labels, stats)
    yield from _pool_moves(labels, stats)
    yield _requests({"": taken}, place)


def _asked(families: Iterable[Metric]) -> Iterator[Metric]:
    return (family for family in families if family.name in AS_THEY_ARE)


def _handoffs(labels: Sequence[str], stats: InstanceStats) -> Iterator[Metric]:
    """Pulls of KV from other instances."""
    counts = [sum(one) for one in zip(*(path.latencies.counts for path in stats.paths), strict=True)]
    times = HistogramMetricFamily("vllm:nixl_xfer_time_seconds", "Duration of a pull of KV blocks [s]", labels=_LABELS)
    buckets = cumulative(BOUNDS_S, counts or [0] * (len(BOUNDS_S) + 1))
    times.add_metric(labels, buckets, sum(path.latencies.sum_s for path in stats.paths))
    yield times
    moved, failed = sum(path.moved_bytes for path in stats.paths), sum(path.failures for path in stats.paths)
    yield _one(GaugeMetricFamily, "vllm:nixl_bytes_transferred_sum", "KV that was pulled [bytes]", labels, moved)
    yield _one(GaugeMetricFamily, "vllm:nixl_num_failed_transfers", "Pulls of KV blocks that failed", labels, failed)
    text = "Handoffs whose blocks nobody pulled within their lease"
    yield _one(CounterMetricFamily, "vllm:nixl_num_kv_expired_reqs", text, labels, stats.handoffs_expired_total)


def _pool_moves(labels: Sequence[str], stats: InstanceStats) -> Iterator[Metric]:
    """Transfers from and to the KV-cache pool."""
    if stats.pool_use is None:
        return
    moved, latencies = stats.pool_use.moved_bytes, stats.pool_use.latencies
    for name, operation in (("store", "put"), ("load", "get")):
        prefix = f"vllm:kv_offload_{name}"
        text = f"KV moved by {operation} [bytes]"
        yield _one(CounterMetricFamily, f"{prefix}_bytes", text, labels, moved.get(operation, 0))
        if (times := latencies.get(operation)) is not None:
            yield _one(CounterMetricFamily, f"{prefix}_time", f"Time of {operation} [s]", labels, times.sum_s)
            text = f"How often {operation} moved KV"
            yield _one(GaugeMetricFamily, f"{prefix}_size_count", text, labels, sum(times.counts))
    if (times := latencies.get("lookup")) is not None:
        text = "Duration of a lookup in the KV-cache pool [s]"
        family = HistogramMetricFamily("vllm:kv_offload_lookup_sync_delay_seconds", text, labels=_LABELS)
        family.add_metric(labels, cumulative(times.bounds_s, times.counts), times.sum_s)
        yield family


def _requests(counts: Mapping[str, int], place: ServePlace) -> Metric:
    family = CounterMetricFamily(
        REQUESTS,
        "The number of queries that have been processed in this replica.",
        labels=("route", "deployment", "replica", "application"),
    )
    for route, count in counts.items():
        family.add_metric((route, place.deployment, place.replica, place.application), count)
    return family


def _one(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, text: str, labels: Sequence[str], value: float
) -> Metric:
    family = kind(name, text, labels=_LABELS)
    family.add_metric(labels, value)
    return family
