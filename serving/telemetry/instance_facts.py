"""An instance's announced facts as numbers for metrics: a number of the engine or its process has one name in both."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from serving.ids import NodeId, ReplicaId
from serving.telemetry.handoff_paths import between_hosts, handoff_paths
from serving.telemetry.pool_stats import PoolClientStats
from serving.telemetry.stats import InstanceStats
from serving.values.expert_facts import ExpertFacts

_APART = ("replica", "pool", "npus", "pool_use", "rank", "experts", "paths", "lost_paths", "slow_paths")
_TOLD = tuple(one.name for one in fields(InstanceStats) if one.name not in _APART)
"""What an instance announces as metrics show it."""


def instance_stats(
    replica: ReplicaId,
    pool: str,
    node: NodeId,
    facts: Mapping[str, Any],
    pool_use: PoolClientStats | None,
    hosts: Mapping[str, str],
) -> InstanceStats:
    """One announcement as metrics.

    Args:
        pool_use: what it got from the KV-cache pool; None without one.
        hosts: labels of nodes.
    Effects: none.
    """
    experts = facts.get("experts")
    own: dict[str, Any] = {
        "replica": replica,
        "pool": pool,
        "npus": len(facts["npus"]),
        "pool_use": pool_use,
        "rank": facts.get("rank") or 0,
        "paths": between_hosts(handoff_paths(facts.get("paths") or {}, node), hosts),
        "lost_paths": facts.get("lost_paths", 0),
        "slow_paths": facts.get("slow_paths", 0),
        "experts": None if experts is None else msgspec.convert(experts, ExpertFacts),
    }
    return InstanceStats(**{name: _frozen(facts[name]) for name in _TOLD}, **own)


def _frozen(value: Any) -> Any:  # noqa: ANN401 - a number, or a list of them
    return tuple(value) if isinstance(value, list) else value
