"""Metrics of KV transfer paths between nodes: handoffs by pair of nodes, and impaired paths."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from serving.telemetry.histogram import cumulative
from serving.telemetry.stats import InstanceStats

_LABELS = ("model_name", "engine", "pool")
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
