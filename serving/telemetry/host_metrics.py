"""Metrics of the cluster's hosts: offered and used resources, and whether they are alive."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hardware.units import MIB
from serving.values.hosts import HostRow

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
