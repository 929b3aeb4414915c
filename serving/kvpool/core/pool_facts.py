"""Facts that memory servers and instances announce about the pool, as numbers with names.

Announcements are plain dicts and may be empty: a controller that was just restarted from its store has the members
before it has their facts. A missing number counts as 0.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from serving.kvpool.core.batch_write import EXPIRED, NO_SERVER
from serving.kvpool.core.entry import GrantStatus
from serving.telemetry.stats import MemoryServerStats, OperationLatencies, PoolClientStats
from serving.values.pool_outcome import MissReason
from serving.values.pool_view import PoolView, ViewServer

MODELS = "(models)"
"""How the nameless namespace is called: model weights belong to no tenant."""

LOST_REASONS = tuple(reason.value for reason in MissReason)
REFUSED_REASONS = (GrantStatus.FULL.value, GrantStatus.QUOTA.value, GrantStatus.TOO_LARGE.value)
DROPPED_REASONS = tuple(name.replace(" ", "_") for name in (*LOST_REASONS, *REFUSED_REASONS, NO_SERVER, EXPIRED))

_LOST = "blocks_lost_"
_DROPPED = "blocks_dropped_"
_DAMAGED = "damaged_"


def memory_server_stats(view: PoolView) -> list[MemoryServerStats]:
    """Every server of the pool in numbers."""
    return [_server(server) for server in view.servers]


def pool_client_stats(facts: Mapping[str, Any]) -> PoolClientStats:
    """Counts of an instance's context cache.

    Args:
        facts: as `PoolContextCache.facts` gives them.
    """
    counters: Mapping[str, int] = facts.get("counters", {})
    dram, ssd = counters.get("blocks_pulled_dram", 0), counters.get("blocks_pulled_ssd", 0)
    lost = _from_zero(LOST_REASONS, _behind(counters, _LOST))
    absent = counters.get("blocks_asked", 0) - dram - ssd - sum(lost.values())
    latencies = _latencies(facts)
    names = {"lookup": "lookup", "get": "get", "store": "put"}
    return PoolClientStats(
        lookups=counters.get("lookups", 0),
        blocks={"dram": dram, "ssd": ssd, "absent": max(0, absent), "lost": sum(lost.values())},
        lost=lost,
        stored=counters.get("blocks_stored", 0),
        present=counters.get("blocks_present", 0),
        dropped=_from_zero(DROPPED_REASONS, _behind(counters, _DROPPED)),
        moved_bytes={"get": counters.get("bytes_pulled", 0), "put": counters.get("bytes_stored", 0)},
        latencies={name: latencies[own] for own, name in names.items() if own in latencies},
    )


def _server(server: ViewServer) -> MemoryServerStats:
    facts = server.record.facts
    ledger: Mapping[str, Any] = facts.get("ledger", {})
    events: Mapping[str, Any] = ledger.get("counters", {})
    counters: Mapping[str, int] = facts.get("counters", {})
    return MemoryServerStats(
        server=server.record.name,
        weight=server.weight,
        entries=ledger.get("entries", 0),
        used_bytes={tier: ledger.get(f"{tier}_used_bytes", 0) for tier in ("dram", "ssd")},
        capacity_bytes={
            "dram": ledger.get("dram_capacity_bytes", server.record.capacity_bytes),
            "ssd": ledger.get("ssd_capacity_bytes", 0),
        },
        hits={tier: events.get(f"hits_{tier}", 0) for tier in ("dram", "ssd")},
        misses=events.get("misses", 0),
        evictions={
            "to_ssd": events.get("evicted_to_ssd", 0),
            "dropped": events.get("evicted_dropped", 0),
            "quota": events.get("evicted_by_quota", 0),
            "from_ssd": events.get("evicted_from_ssd", 0),
        },
        refused=_from_zero(REFUSED_REASONS, events.get("refused", {})),
        moved_bytes={
            "found_dram": counters.get("bytes_found_dram", 0),
            "found_ssd": counters.get("bytes_found_ssd", 0),
            "written": counters.get("bytes_written", 0),
            "sent": counters.get("bytes_sent", 0),
            "received": counters.get("bytes_received", 0),
            "ssd_read": counters.get("ssd_bytes_read", 0),
            "ssd_written": counters.get("ssd_bytes_written", 0),
        },
        loads={
            "demanded": max(0, events.get("promotions", 0) - events.get("prefetches", 0)),
            "ahead": events.get("prefetches", 0),
        },
        damaged=_from_zero(("dram", "ssd"), _behind(counters, _DAMAGED)),
        latencies=_latencies(facts),
        namespaces={
            name or MODELS: {tier: held.get(f"{tier}_bytes", 0) for tier in ("dram", "ssd")}
            for name, held in facts.get("namespaces", {}).items()
        },
        claimed_bytes={"retain": ledger.get("retained_bytes", 0), "pin": ledger.get("pinned_bytes", 0)},
        claims_broken=events.get("claims_broken", 0),
        superseded_bytes=events.get("superseded_bytes", 0),
        heard=bool(facts),
        told=server.record.uptime_s,
    )


def _from_zero(names: Iterable[str], counts: Mapping[str, int]) -> dict[str, int]:
    """The counts, with a 0 for each name that has none yet: a series that appears with its first event hides it."""
    return {**dict.fromkeys(names, 0), **counts}


def _behind(counters: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in counters.items() if name.startswith(prefix)}


def _latencies(facts: Mapping[str, Any]) -> dict[str, OperationLatencies]:
    bounds = tuple(facts.get("bounds_s", ()))
    return {
        name: OperationLatencies(bounds, tuple(one["counts"]), one["sum_s"])
        for name, one in facts.get("histograms", {}).items()
    }
