"""The KV-cache pool as JSON: its servers' announcements and responses, filtered by the caller's permissions."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from serving.gateway.api.admin.pool_admin import ServerAnswers
from serving.gateway.api.http.tenant import Tenant
from serving.kvpool.core.pool_facts import MODELS, memory_server_stats
from serving.kvpool.core.ring import HashRing, ring_of
from serving.telemetry.stats import PoolClientStats
from serving.values.pool_view import NamespaceRecord, PoolView

SAMPLES = 4096
"""Positions sampled on the ring to compute the shares; evenly spread, so a share is accurate to a fraction of 1 %."""

Holding = dict[str, int]

_IN_USE = ("leased", "writing", "spilling", "loading", "waiting", "hidden")
"""Counters of entries being read, written or moved, or deleted while still being read: all zero at idle."""


def pool_summary(
    view: PoolView, usage: ServerAnswers, clients: Iterable[PoolClientStats], tenant: Tenant, configured: frozenset[str]
) -> dict[str, Any]:
    """Response of `GET /pool` for a caller.

    Args:
        usage: the servers' responses about namespaces.
        clients: what each instance read from the pool.
        tenant: the caller: gets only its own namespace and no servers, whose rows reveal other tenants and hosts; an
            administrator gets all.
        configured: namespaces of the configuration.
    """
    namespaces = [row for row in _namespace_rows(view, usage, configured) if tenant.may_manage(row["name"])]
    if not tenant.admin:
        return {"servers": [], "blocks": {}, "namespaces": namespaces, "silent": {}, "complete": not usage.silent}
    blocks = Counter({"dram": 0, "ssd": 0, "absent": 0, "lost": 0})
    for client in clients:
        blocks.update(client.blocks)
    return {
        "servers": server_rows(view),
        "blocks": dict(blocks),
        "namespaces": namespaces,
        "silent": usage.silent,
        "complete": not usage.silent,
    }


def server_rows(view: PoolView) -> list[dict[str, Any]]:
    """Every memory server: its place in the ring, usage, hits and misses. JSON-ready."""
    shares = ring_shares(ring_of(view))
    stats = {one.server: one for one in memory_server_stats(view)}
    rows: list[dict[str, Any]] = []
    for server in view.servers:
        record, numbers = server.record, stats[server.record.name]
        ledger = record.facts.get("ledger", {})
        tiers = {
            tier: {"used_bytes": numbers.used_bytes[tier], "capacity_bytes": numbers.capacity_bytes[tier]}
            for tier in ("dram", "ssd")
        }
        rows.append(
            {
                "name": record.name,
                "node": record.node,
                "pid": record.facts.get("pid"),
                "state": record.state.value,
                "weight": server.weight,
                "share": shares.get(record.name, 0.0),
                "uptime_s": round(record.uptime_s, 1),
                "models": list(record.models),
                **tiers,
                "entries": numbers.entries,
                "hits": dict(numbers.hits),
                "misses": numbers.misses,
                "evictions": dict(numbers.evictions),
                "refused": dict(numbers.refused),
                "damaged": dict(numbers.damaged),
                "in_use": {name: ledger.get(name, 0) for name in _IN_USE},
            }
        )
    return rows


def ring_shares(ring: HashRing) -> dict[str, float]:
    """The share of new blocks that each server gets, by sampling the ring evenly; servers without any are omitted."""
    step = 2**64 // SAMPLES
    counts = Counter(ring.primary((i * step).to_bytes(8)) for i in range(SAMPLES))
    return {name: count / SAMPLES for name, count in counts.items() if name is not None}


def holdings(usage: ServerAnswers) -> dict[str, Holding]:
    """Holdings of each namespace in the whole pool, over the servers that responded; model weights are `MODELS`."""
    total: dict[str, Counter[str]] = {}
    for namespaces in usage.by_server.values():
        for name, held in namespaces.items():
            total.setdefault(name or MODELS, Counter()).update(held)
    return {name: dict(held) for name, held in total.items()}


def audit_summary(answers: ServerAnswers) -> dict[str, Any]:
    """Response of `POST /pool/audit`: `ok` only if there are servers, and every one responded and is sound."""
    sound = bool(answers.by_server) and all(answer["ok"] for answer in answers.by_server.values())
    return {"ok": sound and not answers.silent, "servers": answers.by_server, "silent": answers.silent}


def _namespace_rows(view: PoolView, usage: ServerAnswers, configured: frozenset[str]) -> list[dict[str, Any]]:
    records = {record.name: record for record in view.namespaces}
    held = holdings(usage)
    return [
        {
            "name": name,
            **{key: held.get(name, {}).get(key, 0) for key in ("dram_bytes", "ssd_bytes", "entries")},
            "quota_bytes": (record := records.get(name, NamespaceRecord(name))).quota_bytes,
            "weight": record.weight,
            "changed": record.over is not None,
            "configured": name in configured or name == MODELS,
        }
        for name in sorted({*records, *held})
    ]
