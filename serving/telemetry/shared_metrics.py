"""Metrics of several gateways as one page: each gateway has its own labelled series; instances appear once.

A scrape of a port that gateways share reaches an arbitrary gateway. That gateway gathers the metrics of its peers
(`others`), so every gateway returns the same page and no sum falls while the processes live.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from serving.telemetry.group_metrics import GroupStats
from serving.telemetry.stats import InstanceStats, MemoryServerStats
from serving.values.system_tally import HostRow

Sample = tuple[str, dict[str, str], float]


class MetricFamily(Struct, frozen=True, array_like=True):
    """One family of series.

    Args:
        samples: name, labels and value of each.
        exemplars: labels, value and time of samples' exemplars, by the sample's index.
    """

    name: str
    text: str
    kind: str
    samples: tuple[Sample, ...]
    exemplars: dict[int, tuple[dict[str, str], float, float]] = {}


class GatewayNumbers(Struct, frozen=True, array_like=True):
    """Metrics snapshot of one gateway: its own, and those of the instances, groups and memory servers it observes.

    Args:
        gateway: a name unique to this start of the gateway.
        serial: increases with each snapshot; larger = later.
        engine: the label of its series.
        begun: wall-clock time at which its process started to serve [s].
        load: requests in flight.
        tenants: families that name tenants, for administrators only.
    """

    gateway: str
    serial: int
    engine: str
    begun: float
    load: int
    families: tuple[MetricFamily, ...]
    tenants: tuple[MetricFamily, ...]
    instances: tuple[InstanceStats, ...]
    servers: tuple[MemoryServerStats, ...]
    groups: tuple[GroupStats, ...] = ()
    hosts: tuple[HostRow, ...] = ()


class Others(Protocol):
    """Peer gateways of this gateway."""

    async def numbers(self) -> Sequence[GatewayNumbers]:
        """Present numbers of the other gateways, or the last known ones of those that do not respond in time."""
        ...

    async def first(self, name: str) -> bool:
        """Whether the gateway of that name is the first live one, which exports the shared metrics."""
        ...


def families_of(collector: Collector) -> tuple[MetricFamily, ...]:
    """Metric families of a collector, as values."""
    return tuple(
        MetricFamily(
            one.name,
            one.documentation,
            one.type,
            tuple((s.name, dict(s.labels), s.value) for s in one.samples),
            {
                place: (dict(s.exemplar.labels), s.exemplar.value, float(s.exemplar.timestamp or 0.0))
                for place, s in enumerate(one.samples)
                if s.exemplar is not None
            },
        )
        for one in collector.collect()
    )


def with_own_labels(gateways: Iterable[GatewayNumbers]) -> list[GatewayNumbers]:
    """The same, oldest gateway first, with unique labels: of two equal ones the younger gateway's is extended."""
    result: list[GatewayNumbers] = []
    taken: set[str] = set()
    for one in sorted(gateways, key=lambda numbers: (numbers.begun, numbers.gateway)):
        engine = one.engine if one.engine not in taken else f"{one.engine}-{one.gateway[:6]}"
        taken.add(engine)
        result.append(one if engine == one.engine else _relabelled(one, engine))
    return result


def newest_instances(gateways: Iterable[GatewayNumbers]) -> list[InstanceStats]:
    """Latest snapshot of every instance across gateways."""
    return _newest((stats.replica, stats.told_s, stats) for one in gateways for stats in one.instances)


def newest_servers(gateways: Iterable[GatewayNumbers]) -> list[MemoryServerStats]:
    """Latest statistics of every memory server across gateways."""
    return _newest((stats.server, stats.told, stats) for one in gateways for stats in one.servers)


def newest_hosts(gateways: Iterable[GatewayNumbers]) -> tuple[HostRow, ...]:
    """Host rows of the first gateway that has any; all gateways read the same board."""
    return next((one.hosts for one in gateways if one.hosts), ())


class Joined(Collector):
    """Families of several gateways, each exported once."""

    def __init__(self, families: Iterable[Sequence[MetricFamily]]) -> None:
        self._families: dict[str, list[MetricFamily]] = {}
        for of_one in families:
            for family in of_one:
                self._families.setdefault(family.name, []).append(family)

    def collect(self) -> Iterable[Metric]:
        """All metrics, for the registry."""
        for name, parts in self._families.items():
            metric = Metric(name, parts[0].text, parts[0].kind)
            seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
            for part in parts:
                for place, (sample, labels, value) in enumerate(part.samples):
                    key = sample, frozenset(labels.items())
                    if key not in seen:  # series owned by no gateway: the first gateway's value
                        seen.add(key)
                        told = part.exemplars.get(place)
                        metric.add_sample(sample, labels, value, exemplar=None if told is None else Exemplar(*told))
            yield metric


def newest_groups(gateways: Iterable[GatewayNumbers]) -> list[GroupStats]:
    """Latest statistics of every group across gateways."""
    return _newest((stats.group, stats.told, stats) for one in gateways for stats in one.groups)


Stats = TypeVar("Stats", InstanceStats, MemoryServerStats, GroupStats)
Told = TypeVar("Told", float, tuple[int, float])


def _newest(rows: Iterable[tuple[str, Told, Stats]]) -> list[Stats]:
    best: dict[str, tuple[Told, Stats]] = {}
    for name, told, stats in rows:
        if name not in best or told > best[name][0]:
            best[name] = told, stats
    return [stats for _, stats in best.values()]


def _relabelled(numbers: GatewayNumbers, engine: str) -> GatewayNumbers:
    def with_label(families: tuple[MetricFamily, ...]) -> tuple[MetricFamily, ...]:
        return tuple(
            replace(family, samples=tuple((name, _own(labels), value) for name, labels, value in family.samples))
            for family in families
        )

    def _own(labels: dict[str, str]) -> dict[str, str]:
        return {**labels, "engine": engine} if labels.get("engine") == numbers.engine else labels

    return replace(numbers, engine=engine, families=with_label(numbers.families), tenants=with_label(numbers.tenants))
