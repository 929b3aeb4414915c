"""Metrics of the system as a whole: targets, decisions, replica starts, nodes, build. The same at every gateway."""

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hardware.units import MIB
from serving.telemetry.histogram import cumulative
from serving.values.system_tally import START_BOUNDS_S, HostRow, SystemTally
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


# Metrics of the cluster's hosts: offered and used resources, and whether they are alive.

_LABELS = ("model_name", "host")


class HostBoard(Collector):
    """Latest rows of all hosts; a lost host keeps its series as long as it is listed."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.hosts: tuple[HostRow, ...] = ()

    def publish(self, hosts: Sequence[HostRow]) -> None:
        """Replace all rows."""
        self.hosts = tuple(hosts)

    def collect(self) -> Iterable[Metric]:
        """All host series, for the registry. Empty until the scaling board has reported."""
        return (family for family in self._families() if family.samples)

    def _families(self) -> Iterable[Metric]:
        up = GaugeMetricFamily(
            "cloudmatrix:host_up",
            "1 while the host is alive, 0 once Ray has declared it dead",
            labels=(*_LABELS, "address"),
        )
        npus = GaugeMetricFamily("cloudmatrix:host_npus", "NPUs of a host that is alive", labels=_LABELS)
        npus_used = GaugeMetricFamily(
            "cloudmatrix:host_npus_used", "NPUs of the host that replicas use", labels=_LABELS
        )
        memory = GaugeMetricFamily(
            "cloudmatrix:host_ub_memory_bytes", "UB memory of a host that is alive", labels=_LABELS
        )
        memory_used = GaugeMetricFamily(
            "cloudmatrix:host_ub_memory_used_bytes", "UB memory of the host that replicas use", labels=_LABELS
        )
        for host in self.hosts:
            own = self._model_name, host.name
            up.add_metric((*own, host.address), host.lost_s is None)
            if host.lost_s is None:
                npus.add_metric(own, host.npus)
                npus_used.add_metric(own, host.npus_used)
                memory.add_metric(own, host.ub_memory_mib * MIB)
                memory_used.add_metric(own, host.ub_used_mib * MIB)
        yield from (up, npus, npus_used, memory, memory_used)


# Metrics that name tenants, separate from all others because `/metrics` needs no API key.
#
# Tenant names and their usage are confidential: a response contains these series only if the scraper has administrator
# rights (an admin key, or a server without keys). Their number is bounded because namespaces come from the
# configuration, never from clients.

_NAMESPACE_LABELS = ("model_name", "engine", "namespace")
_BEGUN = "of a tenant's prompts that an instance started to compute, counted once per request for any n"
_HOLDS = ("server", "namespace", "tier")


class NamespaceBoard(Collector):
    """Use of this gateway by each namespace, and its holdings in the pool."""

    def __init__(self, model_name: str, engine: str) -> None:
        self._own = (model_name, engine)
        self.prompt_tokens: Counter[str] = Counter()
        self.cached_tokens: Counter[str] = Counter()
        self._holdings: Mapping[str, Mapping[str, Mapping[str, int]]] = {}

    def expect(self, namespaces: Iterable[str]) -> None:
        """Export series of these namespaces from the start."""
        for counts in (self.prompt_tokens, self.cached_tokens):
            counts.update(dict.fromkeys(namespaces, 0))

    def publish_servers(self, holdings: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
        """Replace the holdings of namespaces on each memory server, by tier [bytes]."""
        self._holdings = holdings

    def collect(self) -> Iterable[Metric]:
        """All metrics of tenants, for the registry."""
        for name, text, counts in (
            ("cloudmatrix:namespace_prompt_tokens", f"Tokens {_BEGUN}", self.prompt_tokens),
            (
                "cloudmatrix:namespace_prompt_tokens_cached",
                f"Cached tokens, not computed again, {_BEGUN}",
                self.cached_tokens,
            ),
        ):
            counter = CounterMetricFamily(name, text, labels=_NAMESPACE_LABELS)
            for namespace, count in sorted(counts.items()):
                counter.add_metric((*self._own, namespace), count)
            if counter.samples:
                yield counter
        held = GaugeMetricFamily("cloudmatrix:namespace_pool_bytes", "Held in the KV-cache pool [bytes]", labels=_HOLDS)
        for server, namespaces in sorted(self._holdings.items()):
            for namespace, tiers in sorted(namespaces.items()):
                for tier, nbytes in tiers.items():
                    held.add_metric((server, namespace, tier), nbytes)
        if held.samples:
            yield held
