"""The gateway's requests to real memory servers, and their announcements on the way to a page."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from serving.gateway.api.admin.pool_admin import ServerAnswers
from serving.gateway.api.admin.pool_summary import audit_summary, holdings
from serving.gateway.live import pool_admin
from serving.gateway.live.pool_admin import LivePoolAdmin, _finding
from serving.ids import BlockHash, BlockId, NodeId
from serving.kvpool.core.entry import Space
from serving.kvpool.core.pool_facts import (
    DROPPED_REASONS,
    LOST_REASONS,
    REFUSED_REASONS,
    memory_server_stats,
    pool_client_stats,
)
from serving.kvpool.live.context_cache import PoolContextCache
from serving.kvpool.live.pool_client import PoolClient
from serving.telemetry.metrics import GatewayMetrics
from serving.values.pool_view import EMPTY_VIEW, PoolView, ServerState, ViewServer
from tests.fakes.pool_admin import FakePoolAdmin
from tests.kvpool.pool_cluster import PoolCluster
from tests.kvpool.raw_client import RawClient
from tests.telemetry.samples import value

pytestmark = pytest.mark.asyncio

NODE = NodeId("n0")
BLOCK = 64 << 10


@pytest.fixture
def cluster() -> Iterator[PoolCluster]:
    with PoolCluster(servers=2) as running:
        yield running


def admin_of(cluster: PoolCluster, secret: str = "secret") -> LivePoolAdmin:
    return LivePoolAdmin("gateway", NODE, secret, cluster.view, FakePoolAdmin(EMPTY_VIEW))


def hashes(count: int, start: int = 0) -> list[BlockHash]:
    return [BlockHash(bytes([i, 7]) * 8) for i in range(start, start + count)]


def fill(cluster: PoolCluster, namespace: str, count: int, start: int = 0) -> None:
    """Publish blocks in a namespace, on the servers that own them."""
    client = PoolClient("writer", NODE, "secret", cluster.view)
    items = [(one, memoryview(bytes([i % 251]) * BLOCK)) for i, one in enumerate(hashes(count, start))]
    report = client.write(Space(namespace, "layout"), items, time.monotonic() + 60)
    client.close()
    assert report.stored == count, report


def with_facts(cluster: PoolCluster) -> PoolView:
    """The view as a controller has it, with the current report of each server."""
    servers = []
    for server in cluster.view().servers:
        with RawClient(server.record) as client:
            servers.append(ViewServer(replace(server.record, facts=client.stats()), server.weight))
    return PoolView("now", tuple(servers))


async def test_usage_and_deletion(cluster: PoolCluster) -> None:
    admin = admin_of(cluster)
    fill(cluster, "acme", 20)
    fill(cluster, "umbrella", 5, start=100)
    usage = await admin.usage()
    assert usage.silent == {}
    assert set(usage.by_server) == {"kv-0", "kv-1"}
    assert {name: held["entries"] for name, held in holdings(usage).items()} == {"acme": 20, "umbrella": 5}
    assert holdings(usage)["acme"]["dram_bytes"] >= 20 * BLOCK
    deleted = await admin.forget("acme")
    assert sum(one["entries"] for one in deleted.by_server.values()) == 20
    assert set(holdings(await admin.usage())) == {"umbrella"}, "a deletion shows at once"
    assert audit_summary(await admin.audit(repair=False))["ok"]


async def test_what_an_audit_finds_is_told_in_words(cluster: PoolCluster) -> None:
    told: list[str] = []
    admin = LivePoolAdmin("gateway", NODE, "secret", cluster.view, FakePoolAdmin(EMPTY_VIEW), audited=told.append)
    await admin.audit(repair=False)
    assert told == ["2 memory servers audited, sound"]
    assert _finding(ServerAnswers({"a": {"problems": ["b", "c"]}}, {"d": "silent"}), repair=True) == (
        "1 memory server audited, 2 problems removed; 1 did not answer"
    )


async def test_usage_is_asked_once_a_second(cluster: PoolCluster) -> None:
    admin = admin_of(cluster)
    first, again = await asyncio.gather(admin.usage(), admin.usage())
    assert first is again


@pytest.mark.real_time
async def test_servers_that_do_not_answer_are_told(cluster: PoolCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_admin, "USAGE_DEADLINE_S", 0.4)
    admin = admin_of(cluster)
    fill(cluster, "acme", 20)
    cluster.process(0).freeze()
    started = time.monotonic()
    usage = await admin.usage()
    assert time.monotonic() - started < 1.5
    assert set(usage.by_server) == {"kv-1"}
    assert set(usage.silent) == {"kv-0"}
    cluster.process(0).resume()
    cluster.kill(1, listed=True)
    audit = audit_summary(await admin.audit(repair=False))
    assert not audit["ok"]
    assert set(audit["silent"]) == {"kv-1"}
    assert audit["servers"]["kv-0"]["ok"]


async def test_a_gateway_with_another_secret_learns_nothing(cluster: PoolCluster) -> None:
    fill(cluster, "acme", 3)
    admin = admin_of(cluster, "a guess")
    answers: ServerAnswers
    for answers in (await admin.usage(), await admin.forget("acme"), await admin.audit(repair=True)):
        assert answers.by_server == {}
        assert len(answers.silent) == 2
    assert holdings(await admin_of(cluster).usage())["acme"]["entries"] == 3


async def test_what_a_server_announces_becomes_series(cluster: PoolCluster) -> None:
    fill(cluster, "acme", 12)
    reader = PoolClient("reader", NODE, "secret", cluster.view)
    find = reader.lookup(Space("acme", "layout"), hashes(14), time.monotonic() + 60)
    assert find.blocks == 12
    reader.release(find, time.monotonic() + 60)
    reader.close()
    stats = memory_server_stats(with_facts(cluster))
    assert sum(one.entries for one in stats) == 12
    assert sum(one.hits["dram"] for one in stats) == 12
    assert all(one.misses > 0 for one in stats)
    assert all(0 < one.used_bytes["dram"] <= one.capacity_bytes["dram"] for one in stats)
    assert sum(one.moved_bytes["written"] for one in stats) == 12 * BLOCK
    assert sum(one.moved_bytes["found_dram"] for one in stats) == 12 * BLOCK
    assert all({"lookup", "reserve", "put"} <= set(one.latencies) for one in stats)
    assert all(set(one.refused) == set(REFUSED_REASONS) for one in stats)
    assert all(one.damaged == {"dram": 0, "ssd": 0} for one in stats)
    metrics = GatewayMetrics("m")
    metrics.publish_servers(stats)
    assert value(metrics, "cloudmatrix:memory_server_entries", server="kv-0") == stats[0].entries
    assert value(metrics, "cloudmatrix:memory_server_seconds_count", server="kv-0", operation="lookup") >= 1


async def test_what_an_instance_counts_becomes_numbers(cluster: PoolCluster) -> None:
    arena = bytearray(16 * BLOCK)
    clients = [PoolClient(name, NODE, "secret", cluster.view) for name in ("fetcher", "storer")]
    cache = PoolContextCache(clients[:1], clients[1], layout="layout", arena=memoryview(arena), block_bytes=BLOCK)
    blocks = [BlockId(i) for i in range(8)]
    assert cache.store("acme", hashes(4), blocks[:4]).stored == 4
    assert cache.store("acme", hashes(4), blocks[:4]).present == 4
    assert cache.fetch("acme", hashes(6), blocks[:6]).blocks == 4
    facts: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(cache.facts()))
    stats = pool_client_stats(facts)
    assert stats.blocks == {"dram": 4, "ssd": 0, "absent": 2, "lost": 0}
    assert (stats.lookups, stats.stored, stats.present) == (1, 4, 4)
    assert stats.lost == dict.fromkeys(LOST_REASONS, 0), "each reason is told from the start"
    assert stats.dropped == dict.fromkeys(DROPPED_REASONS, 0)
    assert stats.moved_bytes == {"get": 4 * BLOCK, "put": 4 * BLOCK}
    assert {name: sum(one.counts) for name, one in stats.latencies.items()} == {"lookup": 1, "get": 1, "put": 2}
    for number in cluster.alive():
        cluster.kill(number, listed=True)
    assert cache.fetch("acme", hashes(6), blocks[:6]).blocks == 0
    assert cache.store("acme", hashes(3, 50), blocks[:3]).stored == 0
    stats = pool_client_stats(cache.facts())
    cache.close()
    assert stats.blocks["lost"] == sum(stats.lost.values()) == 6
    assert stats.lost["unreachable"] == 6
    assert sum(stats.dropped.values()) == 3
    assert set(stats.dropped) == set(DROPPED_REASONS)


async def test_what_is_not_announced_counts_as_nothing(cluster: PoolCluster) -> None:
    cluster.drain(1)
    assert cluster.view().servers[1].record.state is ServerState.DRAINING
    bare = [ViewServer(replace(one.record, facts={}), one.weight) for one in cluster.view().servers]
    stats = memory_server_stats(PoolView("v", tuple(bare)))
    assert [(one.weight, one.entries, one.capacity_bytes["dram"]) for one in stats] == [
        (1.0, 0, 16 << 20),
        (0.0, 0, 16 << 20),
    ]
    assert not any(one.heard for one in stats)
