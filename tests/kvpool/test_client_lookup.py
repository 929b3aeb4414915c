"""A client against real servers: the longest prefix, every byte, whoever holds it."""

import threading
from pathlib import Path

import pytest

from serving.kvpool.core.entry import EntryTier, Kind
from serving.kvpool.live.client import PoolClient
from serving.values.pool_outcome import StoreReport
from tests.kvpool.client_case import (
    BLOCK,
    KIB,
    MIB,
    SPACE,
    chain,
    client_of,
    content,
    entries_of,
    facts_of,
    get,
    put,
    soon,
)
from tests.kvpool.pool_cluster import PoolCluster


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_longest_prefix(servers: int) -> None:
    hashes = chain(60)
    with PoolCluster(servers) as pool:
        client = client_of(pool)
        assert put(client, hashes[:40]) == StoreReport(stored=40, nbytes=40 * BLOCK)
        assert get(client, hashes).blocks == 40
        assert put(client, hashes[41:]).stored == 19  # all but one
        report = get(client, hashes)
        assert (report.blocks, report.lost_blocks, report.reason) == (40, 0, None)
        assert put(client, hashes) == StoreReport(stored=1, present=59, nbytes=BLOCK)
        assert get(client, hashes).blocks == 60
        assert get(client, chain(3, "other")).blocks == 0
        held = [len(entries_of(client, f"kv-{i}")) for i in range(servers)]
        assert sum(held) == 60, "each block is held once"
        assert all(held)
        client.close()


def test_no_lease_is_left_after_a_read() -> None:
    hashes = chain(20)
    with PoolCluster(2) as pool:
        client = client_of(pool)
        put(client, [*hashes[:10], *hashes[11:]])
        find = client.lookup(SPACE, hashes, soon())
        assert find.blocks == 10
        assert leased(client) == 10, "what lies behind the gap is released at once"
        client.read(find, [memoryview(bytearray(BLOCK)) for _ in hashes], soon())
        assert leased(client) == 0
        client.release(client.lookup(SPACE, hashes, soon()), soon())
        assert leased(client) == 0
        client.close()


def leased(client: PoolClient) -> int:
    """Entries in use by readers, on both servers."""
    return sum(facts_of(client, f"kv-{i}")["ledger"]["leased"] for i in range(2))


def test_fewer_targets_than_found() -> None:
    hashes = chain(10)
    with PoolCluster(1) as pool:
        client = client_of(pool)
        put(client, hashes)
        find = client.lookup(SPACE, hashes, soon())
        assert (find.blocks, find.nbytes) == (10, 10 * BLOCK)
        report = client.read(find, [memoryview(bytearray(BLOCK)) for _ in range(4)], soon())
        assert (report.blocks, report.lost_blocks, report.nbytes) == (4, 0, 4 * BLOCK)
        client.close()


def test_memory_and_ssd_mixed_in_one_prefix(tmp_path: Path) -> None:
    hashes, nbytes = chain(100), 64 * KIB
    with PoolCluster(2, capacity_bytes=2 * MIB, slab_bytes=256 * KIB, ssd_folder=tmp_path, ssd_bytes=64 * MIB) as pool:
        client = client_of(pool)
        for start in range(0, 100, 5):  # more than the servers' memory: the older go to disk
            assert put_all(client, hashes[start : start + 5], nbytes)
        tiers = {found.tier for found in client.lookup(SPACE, hashes, soon()).found}
        assert tiers == {EntryTier.DRAM, EntryTier.SSD}
        report = get(client, hashes, nbytes)
        assert report.blocks == 100
        assert 0 < report.from_ssd < 100
        assert get(client, hashes, nbytes).blocks == 100, "loading some did not lose others"
        client.close()


def put_all(client: PoolClient, hashes: list, nbytes: int) -> bool:
    """Writes until all are there: while the disk is busy the memory is full."""
    until = soon()
    while (report := put(client, hashes, nbytes)).dropped:
        assert set(dict(report.dropped)) == {"full"}
        if soon(0) > until:
            return False
    return True


def test_a_server_of_another_node_is_read_and_written_through_its_connection() -> None:
    hashes, nbytes = chain(4), 2 * MIB + 4 * KIB  # more than two chunks
    with PoolCluster(1, node="n1") as pool:
        client = client_of(pool, node="n0")
        assert put(client, hashes, nbytes).stored == 4
        assert get(client, hashes, nbytes).blocks == 4
        assert len(client.segments) == 0
        assert facts_of(client, "kv-0")["counters"]["bytes_sent"] == 4 * nbytes
        near = client_of(pool, node="n1")
        assert get(near, hashes, nbytes).blocks == 4
        assert len(near.segments) == 1
        only_own_node = client_of(pool, node="n0", scope="node")
        assert get(only_own_node, hashes, nbytes).blocks == 0
        assert put(only_own_node, hashes).dropped == (("no server", 4),)
        for one in (client, near, only_own_node):
            one.close()


def test_concurrent_writers_of_the_same_blocks() -> None:
    hashes = chain(50)
    with PoolCluster(2) as pool:
        clients = [client_of(pool) for _ in range(3)]
        reports: list[StoreReport] = []
        threads = [threading.Thread(target=lambda c=one: reports.append(put(c, hashes))) for one in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(report.stored for report in reports) == 50
        assert sum(report.present for report in reports) == 100
        assert get(clients[0], hashes).blocks == 50
        for one in clients:
            one.close()


def test_a_block_larger_than_a_server_is_dropped() -> None:
    with PoolCluster(1, capacity_bytes=4 * MIB) as pool:
        client = client_of(pool)
        report = put(client, chain(1), 8 * MIB)
        assert report.dropped == (("too large", 1),)
        client.close()


def test_spaces_share_nothing() -> None:
    hashes = chain(3)
    with PoolCluster(1) as pool:
        client = client_of(pool)
        put(client, hashes)
        for other in (type(SPACE)("tenant-b", SPACE.layout), type(SPACE)(SPACE.namespace, "layout-2")):
            assert client.lookup(other, hashes, soon()).blocks == 0
        client.close()


def test_kinds_are_kept() -> None:
    with PoolCluster(1) as pool:
        client = client_of(pool)
        assert put(client, chain(1), MIB, kind=Kind.MODEL).stored == 1
        assert [entry.kind for entry in entries_of(client, "kv-0")] == [Kind.MODEL]
        client.close()


def test_no_pool_finds_nothing_and_drops_everything() -> None:
    with PoolCluster(0) as pool:
        client = client_of(pool)
        assert get(client, chain(3)).blocks == 0
        assert put(client, chain(3)).dropped == (("no server", 3),)
        assert put(client, []) == StoreReport()
        assert client.lookup(SPACE, [], soon()).blocks == 0


def test_a_target_of_another_size_is_an_error_and_no_harm() -> None:
    hashes = chain(3)
    with PoolCluster(1) as pool:
        client = client_of(pool)
        put(client, hashes)
        find = client.lookup(SPACE, hashes, soon())
        sizes = [BLOCK, BLOCK - 1, BLOCK]
        targets = [memoryview(bytearray(size)) for size in sizes]
        report = client.read(find, targets, soon())
        assert (report.blocks, report.lost_blocks) == (1, 2)
        assert report.reason is not None
        assert report.reason.value == "error"
        assert bytes(targets[0]) == content(hashes[0])
        client.close()
