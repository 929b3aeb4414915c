"""A `PoolAdmin` over dicts: servers with given contents, which respond or stay silent as configured."""

from dataclasses import dataclass, field, replace
from typing import Any

from serving.gateway.api.admin.pool_admin import ServerAnswers
from serving.ids import NodeId
from serving.values.pool_view import NamespaceRecord, PoolView, ServerRecord, ServerState, ViewServer

MIB = 1 << 20


def facts(dram_mib: int = 10, ssd_mib: int = 20, **held: int) -> dict[str, Any]:
    """Facts that a memory server announces. `held`: entries of 1 MiB in DRAM, by namespace."""
    return {
        "ledger": {
            "counters": {
                "hits_dram": 30,
                "hits_ssd": 5,
                "misses": 65,
                "refused": {"full": 2, "too large": 1},
                "evicted_to_ssd": 7,
                "evicted_dropped": 6,
                "evicted_by_quota": 4,
                "evicted_from_ssd": 3,
            },
            "dram_capacity_bytes": 64 * MIB,
            "dram_used_bytes": dram_mib * MIB,
            "ssd_capacity_bytes": 128 * MIB,
            "ssd_used_bytes": ssd_mib * MIB,
            "entries": 33,
        },
        "namespaces": {
            name: {"dram_bytes": count * MIB, "ssd_bytes": 0, "entries": count} for name, count in held.items()
        },
        "counters": {"bytes_found_dram": 35, "bytes_written": 12, "damaged_dram": 1, "ssd_bytes_read": 9},
        "bounds_s": [0.001, 0.01],
        "histograms": {"lookup": {"counts": [3, 2, 1], "count": 6, "sum_s": 0.25}},
    }


def server(name: str, weight: float = 1.0, **more: Any) -> ViewServer:
    """A server of the view; `more` as for `facts`."""
    state = ServerState.ACTIVE if weight else ServerState.DRAINING
    record = ServerRecord(name, "i", NodeId("n" * 56), "h", 1, "/s", 1, 64 * MIB, state, 12.34, (), facts(**more))
    return ViewServer(record, weight)


@dataclass
class FakePoolAdmin:
    """The servers of `pool`; those in `mute` do not respond. `broken` has the audit's problems by server."""

    pool: PoolView
    mute: frozenset[str] = frozenset()
    broken: dict[str, list[str]] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    audits: list[bool] = field(default_factory=list)

    def view(self) -> PoolView:
        """The configured view."""
        return self.pool

    async def usage(self) -> ServerAnswers:
        """Usage from each server's facts."""
        return self._answers({one.record.name: one.record.facts["namespaces"] for one in self.pool.servers})

    async def forget(self, namespace: str) -> ServerAnswers:
        """Record the call; each server deletes its entries of the namespace."""
        self.forgotten.append(namespace)
        deleted = {}
        for one in self.pool.servers:
            held = one.record.facts["namespaces"].get(namespace, {"dram_bytes": 0, "entries": 0})
            deleted[one.record.name] = {"bytes": held["dram_bytes"], "entries": held["entries"]}
        return self._answers(deleted)

    async def audit(self, *, repair: bool) -> ServerAnswers:
        """Record the call; servers in `broken` have problems."""
        self.audits.append(repair)
        found = {}
        for one in self.pool.servers:
            problems = self.broken.get(one.record.name, [])
            found[one.record.name] = {"ok": not problems, "problems": problems, "problem_count": len(problems)}
        return self._answers(found)

    async def set_namespace(self, record: NamespaceRecord) -> None:
        """Change the next view, like an operator's change."""
        others = [one for one in self.pool.namespaces if one.name != record.name]
        self.pool = replace(self.pool, namespaces=(*others, replace(record, over=(0, 1.0))))

    async def drop_namespace(self, name: str) -> None:
        """Remove it from the next view."""
        self.pool = replace(self.pool, namespaces=tuple(one for one in self.pool.namespaces if one.name != name))

    def _answers(self, by_server: dict[str, Any]) -> ServerAnswers:
        answers = {name: value for name, value in by_server.items() if name not in self.mute}
        return ServerAnswers(answers, {name: "no answer in time" for name in by_server if name in self.mute})


def two_servers() -> FakePoolAdmin:
    """A pool of two servers with two tenants and the default one."""
    namespaces = (NamespaceRecord("acme", 100 * MIB), NamespaceRecord("umbrella"))
    servers = (server("kvcache-a", acme=3, default=1), server("kvcache-b", 0.5, dram_mib=40, acme=2, umbrella=4))
    return FakePoolAdmin(PoolView("v1", servers, namespaces))
