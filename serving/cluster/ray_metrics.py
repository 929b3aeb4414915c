"""Exports this process's metrics on its host's Ray metrics port, through Ray's exporter.

Every sample is a Ray gauge, set every few seconds, so counting itself costs nothing extra. Ray's counters appear with
their first event, which hides it, and outlive their process; of its histograms Ray exports only buckets, and estimates
the sum from their midpoints. A gauge exports its exact value, from zero on, while its process lives.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import msgspec
from prometheus_client.core import Metric
from prometheus_client.samples import Sample
from ray import serve
from ray.util import metrics as ray_metrics

from serving.cluster.membership import Member
from serving.kvpool.core.pool_facts import pool_client_stats
from serving.telemetry.ray_board import REQUESTS, ServePlace, instance_series
from serving.telemetry.stats import InstanceStats, between_hosts, handoff_paths
from serving.values.expert_map import ExpertFacts

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
"""Ray exports every 10 s, and drops a gauge that was not set for 20 s."""


def serve_place() -> ServePlace:
    """Names of this process, a replica of Ray Serve."""
    context = serve.get_replica_context()
    return ServePlace(context.deployment, context.replica_tag, context.app_name)


def rank_place(pool: str, replica: str) -> ServePlace:
    """Names of a rank; Ray Serve itself lists only the group's shell."""
    return ServePlace(pool, replica, "")


def relay_instance(describe: Callable[[], Member], model_name: str, place: ServePlace) -> asyncio.Task[None]:
    """Export an instance's metrics, from its announcements. Returns: the task, which never ends."""
    return asyncio.create_task(RayMetrics(partial(announced_series, describe, model_name, place)).run())


def announced_series(describe: Callable[[], Member], model_name: str, place: ServePlace) -> Iterator[Metric]:
    """Metrics of an instance from its announcement."""
    member = describe()
    return instance_series(model_name, instance_stats(member, {}), member.facts["taken_total"], place)


class RayMetrics:
    """Writes the metrics that `collect` returns.

    Args:
        collect: returns families of metrics; called on the event loop.
        instruments: has `Counter` and `Gauge`, as in Ray.
    """

    def __init__(self, collect: Callable[[], Iterable[Metric]], instruments: Any = ray_metrics) -> None:
        self._collect = collect
        self._api = instruments
        self._made: dict[str, Any] = {}
        self._counted: dict[tuple[str, ...], float] = {}

    async def run(self) -> None:
        """Write periodically, forever. Errors do not stop it; the first is logged."""
        failed = False
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                families = list(self._collect())
                await asyncio.to_thread(self.write, families)
            except Exception as error:  # failed metrics must not affect the replica
                if not failed:
                    logger.warning("series for Ray's metrics port are not written: %r", error)
                failed = True

    def write(self, families: Iterable[Metric]) -> None:
        """Write the latest values. Effects: those of Ray's instruments."""
        for family in families:
            for sample in family.samples:
                if family.name == REQUESTS:  # Ray Serve has a counter of that name in this process
                    self._count(family, sample)
                else:
                    self._instrument("Gauge", sample.name, family, sample.labels).set(sample.value, sample.labels)

    def _count(self, family: Metric, sample: Sample) -> None:
        key = tuple(sample.labels.values())
        if (more := sample.value - self._counted.get(key, 0.0)) > 0:
            self._counted[key] = sample.value
            self._instrument("Counter", family.name, family, sample.labels).inc(more, sample.labels)

    def _instrument(self, kind: str, name: str, family: Metric, labels: dict[str, str]) -> Any:
        found = self._made.get(name)
        if found is None:
            make = getattr(self._api, kind)
            found = self._made[name] = make(name.replace(":", "_"), family.documentation, tag_keys=tuple(labels))
        return found


# An instance's announced facts as metrics: a value of the engine or its process has the same name in both.

_APART = ("replica", "pool", "npus", "pool_use", "rank", "experts", "paths", "lost_paths", "slow_paths")
_TOLD = tuple(one.name for one in fields(InstanceStats) if one.name not in _APART)
"""Announced facts that are exported as metrics."""


def instance_stats(member: Member, hosts: Mapping[str, str]) -> InstanceStats:
    """One announcement as metrics.

    Args:
        hosts: labels of nodes; a node without a label is named by its id.
    """
    facts = member.facts
    pool = facts.get("pool")
    own: dict[str, Any] = {
        "replica": member.replica,
        "pool": member.pool,
        "npus": len(facts["npus"]),
        "pool_use": None if pool is None else pool_client_stats(pool),
        "rank": facts.get("rank") or 0,
        "paths": between_hosts(handoff_paths(facts.get("paths") or {}, member.node), hosts),
        "lost_paths": facts.get("lost_paths", 0),
        "slow_paths": facts.get("slow_paths", 0),
        "experts": expert_facts(facts),
    }
    return InstanceStats(**{name: _frozen(facts[name]) for name in _TOLD}, **own)


def expert_facts(facts: Mapping[str, Any]) -> ExpertFacts | None:
    """The part about experts of a rank's announced facts; None if it has none."""
    told = facts.get("experts")
    if told is None:
        return None
    found = msgspec.convert(told, ExpertFacts)
    # Numbers of expert ranks do not follow those of attention ranks, so a map counts more ranks than there are.
    return msgspec.structs.replace(found, ranks=int(facts["ranks"])) if facts.get("expert_ranks") else found


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
