"""An instance's announced facts as metrics: a value of the engine or its process has the same name in both."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from serving.cluster.membership import Member
from serving.kvpool.core.pool_facts import pool_client_stats
from serving.telemetry.handoff_paths import between_hosts, handoff_paths
from serving.telemetry.stats import InstanceStats
from serving.values.expert_facts import ExpertFacts

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
    experts = facts.get("experts")
    own: dict[str, Any] = {
        "replica": member.replica,
        "pool": member.pool,
        "npus": len(facts["npus"]),
        "pool_use": None if pool is None else pool_client_stats(pool),
        "rank": facts.get("rank") or 0,
        "paths": between_hosts(handoff_paths(facts.get("paths") or {}, member.node), hosts),
        "lost_paths": facts.get("lost_paths", 0),
        "slow_paths": facts.get("slow_paths", 0),
        "experts": None if experts is None else msgspec.convert(experts, ExpertFacts),
    }
    return InstanceStats(**{name: _frozen(facts[name]) for name in _TOLD}, **own)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
