"""KV-cache pool metrics: the instances' use of the pool, and the state of its memory servers.

Compute hit rates from the instances' series, which count wanted blocks; the servers' series show how capacity is used.
Series that name tenants are in `system_metrics`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.telemetry.histogram import cumulative
from serving.telemetry.stats import MemoryServerStats, OperationLatencies, PoolClientStats

ClientRows = Sequence[tuple[tuple[str, ...], PoolClientStats]]
"""Label values of an instance (model_name, engine, pool) with its statistics."""

_CLIENT_LABELS = ("model_name", "engine", "pool")

_CLIENT_COUNTERS: tuple[tuple[str, str, Callable[[PoolClientStats], int]], ...] = (
    ("cloudmatrix:pool_lookups", "Prefixes that this instance looked up in the KV-cache pool", lambda s: s.lookups),
    (
        "cloudmatrix:pool_stored_blocks",
        "KV blocks that this instance was the first to publish in the KV-cache pool",
        lambda s: s.stored,
    ),
    (
        "cloudmatrix:pool_present_blocks",
        "KV blocks to publish that the KV-cache pool already had",
        lambda s: s.present,
    ),
)
_CLIENT_COUNTERS_BY: tuple[tuple[str, str, str, Callable[[PoolClientStats], Mapping[str, int]]], ...] = (
    (
        "cloudmatrix:pool_blocks",
        "KV blocks looked up in the KV-cache pool, by tier or absence",
        "result",
        lambda s: s.blocks,
    ),
    (
        "cloudmatrix:pool_lost_blocks",
        "KV blocks that the KV-cache pool should have had and did not return, by reason",
        "reason",
        lambda s: s.lost,
    ),
    (
        "cloudmatrix:pool_dropped_blocks",
        "KV blocks not published in the KV-cache pool, by reason",
        "reason",
        lambda s: s.dropped,
    ),
    (
        "cloudmatrix:pool_bytes",
        "KV moved from (get) and to (put) the KV-cache pool [bytes]",
        "direction",
        lambda s: s.moved_bytes,
    ),
)
_OPERATIONS = ("lookup", "get", "put")

_SERVER_GAUGES: tuple[tuple[str, str, Callable[[MemoryServerStats], float]], ...] = (
    (
        "cloudmatrix:memory_server_weight",
        "Share of its part of the ring in use, 0 to 1; 0 = draining",
        lambda s: s.weight,
    ),
    ("cloudmatrix:memory_server_entries", "Entries held: KV blocks and models", lambda s: s.entries),
)
_SERVER_GAUGES_BY: tuple[tuple[str, str, str, Callable[[MemoryServerStats], Mapping[str, int]]], ...] = (
    ("cloudmatrix:memory_server_used_bytes", "Memory in use, by tier [bytes]", "tier", lambda s: s.used_bytes),
    (
        "cloudmatrix:memory_server_capacity_bytes",
        "Memory capacity, by tier [bytes]",
        "tier",
        lambda s: s.capacity_bytes,
    ),
    (
        "cloudmatrix:kv_claimed_bytes",
        "Memory that sessions claim, by class: `retain` leaves last, `pin` stays [bytes]",
        "class",
        lambda s: s.claimed_bytes,
    ),
)
_SERVER_COUNTERS: tuple[tuple[str, str, Callable[[MemoryServerStats], float]], ...] = (
    ("cloudmatrix:memory_server_misses", "Entries not found by lookups of this server", lambda s: s.misses),
    (
        "cloudmatrix:kv_claim_broken",
        "Claimed entries that lost their protection because an allocation found no other room",
        lambda s: s.claims_broken,
    ),
    (
        "cloudmatrix:kv_superseded_bytes",
        "Entries released because a newer turn of their session lacks them [bytes]",
        lambda s: s.superseded_bytes,
    ),
)
_SERVER_COUNTERS_BY: tuple[tuple[str, str, str, Callable[[MemoryServerStats], Mapping[str, int]]], ...] = (
    ("cloudmatrix:memory_server_hits", "Entries found by lookups of this server", "tier", lambda s: s.hits),
    (
        "cloudmatrix:memory_server_evictions",
        "Entries evicted from a tier for lack of space",
        "how",
        lambda s: s.evictions,
    ),
    (
        "cloudmatrix:memory_server_loads",
        "Entries loaded from SSD to memory: demanded by an instance, or ahead, for a request that waits at a gateway",
        "cause",
        lambda s: s.loads,
    ),
    (
        "cloudmatrix:memory_server_damaged",
        "Entries removed because their bytes had changed",
        "tier",
        lambda s: s.damaged,
    ),
    ("cloudmatrix:memory_server_refused", "Refused writes of entries", "reason", lambda s: s.refused),
    ("cloudmatrix:memory_server_bytes", "Data found, moved or written [bytes]", "direction", lambda s: s.moved_bytes),
)


def client_series(rows: ClientRows) -> Iterable[Metric]:
    """Metrics of instances that use the pool."""
    for name, text, value in _CLIENT_COUNTERS:
        counter = CounterMetricFamily(name, text, labels=_CLIENT_LABELS)
        for labels, stats in rows:
            counter.add_metric(labels, value(stats))
        yield counter
    for name, text, label, values in _CLIENT_COUNTERS_BY:
        counter = CounterMetricFamily(name, text, labels=(*_CLIENT_LABELS, label))
        for labels, stats in rows:
            for key, count in values(stats).items():
                counter.add_metric((*labels, key), count)
        yield counter
    for operation in _OPERATIONS:
        name = f"cloudmatrix:pool_{operation}_seconds"
        histogram = HistogramMetricFamily(
            name, f"Duration of a {operation} in the KV-cache pool by this instance [s]", labels=_CLIENT_LABELS
        )
        for labels, stats in rows:
            if operation in stats.latencies:
                _add(histogram, labels, stats.latencies[operation])
        yield histogram


class MemoryServerBoard(Collector):
    """Latest statistics of every memory server; the series of a server end when it leaves."""

    def __init__(self) -> None:
        self._servers: list[MemoryServerStats] = []

    def publish(self, servers: Iterable[MemoryServerStats]) -> None:
        """Replace the statistics of all servers."""
        self._servers = sorted(servers, key=lambda stats: stats.server)

    @property
    def servers(self) -> tuple[MemoryServerStats, ...]:
        """Statistics of all servers, by name."""
        return tuple(self._servers)

    def collect(self) -> Iterable[Metric]:
        """All memory-server series, for the registry. Families without samples are omitted."""
        return (family for family in self._families() if family.samples)

    def _families(self) -> Iterable[Metric]:
        for name, text, value in _SERVER_GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=("server",))
            for stats in self._servers:
                gauge.add_metric((stats.server,), value(stats))
            yield gauge
        for name, text, label, values in _SERVER_GAUGES_BY:
            gauge = GaugeMetricFamily(name, text, labels=("server", label))
            for stats in self._servers:
                for key, amount in values(stats).items():
                    gauge.add_metric((stats.server, key), amount)
            yield gauge
        for name, text, value in _SERVER_COUNTERS:
            counter = CounterMetricFamily(name, text, labels=("server",))
            for stats in self._servers:
                counter.add_metric((stats.server,), value(stats))
            yield counter
        for name, text, label, values in _SERVER_COUNTERS_BY:
            counter = CounterMetricFamily(name, text, labels=("server", label))
            for stats in self._servers:
                for key, amount in values(stats).items():
                    counter.add_metric((stats.server, key), amount)
            yield counter
        yield self._latencies()

    def _latencies(self) -> Metric:
        labels = ("server", "operation")
        family = HistogramMetricFamily(
            "cloudmatrix:memory_server_seconds", "Duration of an operation of this server [s]", labels=labels
        )
        for stats in self._servers:
            for operation, latencies in sorted(stats.latencies.items()):
                _add(family, (stats.server, operation), latencies)
        return family


def _add(family: HistogramMetricFamily, labels: Sequence[str], latencies: OperationLatencies) -> None:
    family.add_metric(labels, cumulative(latencies.bounds_s, latencies.counts), latencies.sum_s)
