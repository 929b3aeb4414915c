"""Rows of the page: pools that serve, start, drain or do not respond."""

from dataclasses import replace
from typing import Any

from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.event_log import EventKind
from serving.scaling.core.history import BusyShares
from serving.scaling.core.page_state import pool_rows
from serving.scaling.core.signals import CacheTotals, memory_fill
from serving.values.pool_view import PoolView, ServerRecord, ServerState, ViewServer
from tests.scaling.live.case import DRAINING, STARTING, config, deployment, member, nodes, replica, started


def server(name: str, pid: int, used: int, evicted: int = 0) -> ViewServer:
    ledger = {"dram_used_bytes": used, "dram_capacity_bytes": 100, "counters": {"evicted_dropped": evicted}}
    record = ServerRecord(
        name, "1", NodeId("b"), "", 0, "", 1, 100, ServerState.ACTIVE, 1.0, facts={"pid": pid, "ledger": ledger}
    )
    return ViewServer(record, 1.0)


def snapshot(**other: Any) -> ClusterSnapshot:
    facts: dict[str, Any] = {
        "npus": ["n0.npu0", "n0.npu1"], "queued_tokens": 9, "waiting": 1, "pulling": 0, "fetching": 4, "running": 2,
        "kv_blocks_used": 5, "kv_blocks_total": 10, "prefix_queries_tokens_total": 200,
        "prefix_hits_tokens_total": 50, "pid": 77, "block_tokens": 16, "kv_block_bytes": 1000,
        "pool": {"counters": {"blocks_asked": 10, "blocks_pulled_dram": 3, "blocks_pulled_ssd": 1}},
    }  # fmt: skip
    members = {"p1": member("p1", "prefill", **facts)}
    cache = PoolView("1", (server("kvcache-0-0", replica("k1").pid or 0, 40, evicted=2),))
    return replace(ClusterSnapshot(1.0, started(), nodes(), members, cache), **other)


def row(pool: str, seen: ClusterSnapshot, **lost: EventKind) -> dict[str, Any]:
    holds = {"prefill": {"left_s": 3.0, "by": "cli"}}
    rows = pool_rows(config(), seen, {"prefill": 6}, {"prefill": "no NPUs"}, holds, 0.4, lost, BusyShares(), {})
    return next(one for one in rows if one["pool"] == pool)


def test_an_engine_pool() -> None:
    shown = row("prefill", snapshot())
    assert (shown["kind"], shown["target"], shown["running"], shown["starting"]) == ("engine", 1, 1, 0)
    assert (shown["npus"], shown["npus_per_instance"], shown["ub_memory_mib"]) == (2, 2, 128)
    assert (shown["queued_tokens"], shown["sequences"], shown["kv_fill"], shown["hit_rate"]) == (9, 7, 0.5, 0.25)
    assert (shown["fits"], shown["shortage"], shown["hold"]) == (6, "no NPUs", {"left_s": 3.0, "by": "cli"})
    (one,) = shown["replicas"]
    assert (one["name"], one["state"], one["node"], one["npus"]) == ("p1", "serving", "a", ["n0.npu0", "n0.npu1"])
    assert (one["sequences"], one["queued_tokens"], one["kv_fill"]) == (7, 9, 0.5)


def test_a_lost_replica_serves_nobody_whatever_serve_says() -> None:
    for kind, state in ((EventKind.DIED, "dead"), (EventKind.FROZEN, "frozen")):
        shown = row("prefill", snapshot(), p1=kind)
        assert (shown["running"], shown["dead"], shown["replicas"][0]["state"]) == (0, 1, state)
    assert row("kvcache", snapshot(), k1=EventKind.DIED)["replicas"][0]["state"] == "dead"
    assert row("decode", snapshot(), p1=EventKind.DIED)["dead"] == 0


def test_who_serves_stands_before_who_comes_and_who_goes() -> None:
    three = deployment(2, replica("x", "b", DRAINING), replica("y", None, STARTING), replica("z"))
    shown = row("decode", snapshot(deployments={**started(), "decode": three}))
    assert [(one["name"], one["state"]) for one in shown["replicas"]] == [
        ("z", "serving"), ("y", "starting"), ("x", "draining"),
    ]  # fmt: skip
    assert (shown["running"], shown["starting"], shown["draining"]) == (1, 1, 1)
    assert shown["replicas"][1]["node"] is None
    assert shown["kv_fill"] is None, "nobody told"


def test_an_instance_that_says_it_leaves_leaves() -> None:
    leaving = snapshot(members={"p1": member("p1", "prefill", draining=True)})
    assert row("prefill", leaving)["replicas"][0]["state"] == "draining"


def test_the_cache_pool() -> None:
    shown = row("kvcache", snapshot())
    assert (shown["kind"], shown["kv_fill"], shown["hit_rate"]) == ("cache", 0.4, 0.4)
    (one,) = shown["replicas"]
    assert (one["name"], one["node"], one["kv_fill"]) == ("kvcache-0-0", "b", 0.4), "known by its process"
    unknown = row("kvcache", snapshot(cache=None))
    assert unknown["kv_fill"] is None
    assert unknown["replicas"][0]["name"] == "k1"


def test_a_pool_that_is_not_deployed_yet() -> None:
    assert row("decode", snapshot(deployments={}))["replicas"] == []


def test_totals_of_the_cache() -> None:
    totals = CacheTotals()
    totals.observe(snapshot())
    totals.observe(snapshot())
    assert (totals.looked_up_tokens, totals.hit_tokens, totals.evicted_bytes) == (160, 64, 2000)
    assert memory_fill(snapshot()) == (40, 100)
    assert memory_fill(snapshot(cache=None)) == (0, 0)
