"""Metrics of the system as a whole: targets, decisions, replica starts, nodes, build. The same at every gateway."""

import platform
from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.telemetry.histogram import cumulative
from serving.values.system_tally import START_BOUNDS_S, SystemTally
from serving.version import VERSION


class SystemBoard(Collector):
    """Latest tally of the scaling board, and the build information of this gateway."""

    def __init__(self, model_name: str) -> None:
        self._own = (model_name,)
        self._targets: Mapping[str, int] = {}
        self._tally: SystemTally | None = None

    def publish(self, targets: Mapping[str, int], tally: SystemTally | None) -> None:
        """Replace all values. `targets`: requested replicas by pool; `tally`: None before the board's first report."""
        self._targets, self._tally = dict(targets), tally

    def collect(self) -> Iterable[Metric]:
        """All system series, for the registry. Families without samples are omitted."""
        return (family for family in self._families() if family.samples)

    def _families(self) -> Iterable[Metric]:
        build = GaugeMetricFamily(
            "cloudmatrix:build_info",
            "Always 1; labels: versions of the package and of Python",
            labels=("model_name", "version", "python"),
        )
        build.add_metric((*self._own, VERSION, platform.python_version()), 1.0)
        yield build
        target = GaugeMetricFamily(
            "cloudmatrix:scaling_target_replicas", "Requested replicas", labels=("model_name", "pool")
        )
        for pool, count in self._targets.items():
            target.add_metric((*self._own, pool), count)
        yield target
        if self._tally is not None:
            yield from self._scaling(self._tally)
            yield from self._nodes(self._tally)

    def _scaling(self, tally: SystemTally) -> Iterable[Metric]:
        replicas = GaugeMetricFamily(
            "cloudmatrix:scaling_replicas",
            "Replicas listed by Serve, by state",
            labels=("model_name", "pool", "state"),
        )
        decisions = CounterMetricFamily(
            "cloudmatrix:scaling_decisions",
            "Changes of a pool's target, and holds, by kind as in `cloudmatrix decisions`",
            labels=("model_name", "pool", "kind"),
        )
        starts = HistogramMetricFamily(
            "cloudmatrix:replica_start_seconds",
            "Duration of a replica's start, by phase: node, placing, process, imports, weights; total = all of them, "
            "from Serve's request to serving; first_step = the first step after it [s]",
            labels=("model_name", "pool", "phase"),
        )
        for pool, by_state in tally.replicas.items():
            for state, count in by_state.items():
                replicas.add_metric((*self._own, pool, state), count)
        for pool, by_kind in tally.decisions.items():
            for kind, count in by_kind.items():
                decisions.add_metric((*self._own, pool, kind), count)
        for pool, by_phase in tally.starts.items():
            for phase, times in by_phase.items():
                starts.add_metric((*self._own, pool, phase), cumulative(START_BOUNDS_S, times.counts), times.sum_s)
        yield from (replicas, decisions, starts)

    def _nodes(self, tally: SystemTally) -> Iterable[Metric]:
        rows: tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, int], ...] = (
            (GaugeMetricFamily, "nodes", "Alive nodes of the cluster", tally.nodes),
            (GaugeMetricFamily, "npus_offered", "NPUs of the alive nodes", tally.npus),
            (CounterMetricFamily, "nodes_joined", "Nodes that joined", tally.nodes_joined),
            (CounterMetricFamily, "nodes_lost", "Nodes lost unexpectedly", tally.nodes_lost),
        )
        for kind, name, text, value in rows:
            family = kind(f"cloudmatrix:{name}", text, labels=("model_name",))
            family.add_metric(self._own, value)
            yield family
