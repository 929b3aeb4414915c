"""A client against real servers: the longest prefix, every byte, for any distribution of the blocks."""

import threading
from pathlib import Path

from serving.kvpool.core.entry import EntryTier
from serving.kvpool.core.messages import Done, SetNamespaces
from serving.values.pool_outcome import MissReason, StoreReport
from serving.values.pool_view import NamespaceRecord
from tests.kvpool.client_case import (
    BLOCK,
    KIB,
    MIB,
    SPACE,
    chain,
    content,
    entries_of,
    facts_of,
    filled,
    get,
    put,
    put_all,
    read,
    soon,
)
from tests.kvpool.pool_cluster import PoolCluster


def test_longest_prefix() -> None:
    hashes = chain(60)
    with PoolCluster(3) as pool:
        client = pool.client()
        assert put(client, hashes[:40]) == StoreReport(stored=40, nbytes=40 * BLOCK)
        assert get(client, hashes).blocks == 40
        assert put(client, hashes[41:]).stored == 19  # all but one
        report = get(client, hashes)
        assert (report.blocks, report.lost_blocks, report.reason) == (40, 0, None)
        assert put(client, hashes) == StoreReport(stored=1, present=59, nbytes=BLOCK)
        assert get(client, hashes).blocks == 60
        assert get(client, chain(3, "other")).blocks == 0
        held = [len(entries_of(client, f"kv-{i}")) for i in range(3)]
        assert sum(held) == 60, "each block is held once"
        assert all(held)


def test_memory_and_ssd_mixed_in_one_prefix(tmp_path: Path) -> None:
    hashes, nbytes = chain(100), 64 * KIB
    with PoolCluster(2, capacity_bytes=2 * MIB, slab_bytes=256 * KIB, ssd_folder=tmp_path, ssd_bytes=64 * MIB) as pool:
        client = pool.client()
        put_all(client, hashes, nbytes)  # more than the servers' memory: the older go to disk
        tiers = {found.tier for found in client.lookup(SPACE, hashes, soon()).found}
        assert tiers == {EntryTier.DRAM, EntryTier.SSD}
        report = get(client, hashes, nbytes)
        assert report.blocks == 100
        assert 0 < report.from_ssd < 100
        assert get(client, hashes, nbytes).blocks == 100, "loading some did not lose others"


def test_a_server_of_another_node_is_read_and_written_through_its_connection() -> None:
    hashes, nbytes = chain(4), 2 * MIB + 4 * KIB  # more than two chunks
    with PoolCluster(1, node="n1") as pool:
        client = pool.client(node="n0")
        assert put(client, hashes, nbytes).stored == 4
        assert get(client, hashes, nbytes).blocks == 4
        assert len(client.segments) == 0
        assert facts_of(client, "kv-0")["counters"]["bytes_sent"] == 4 * nbytes
        near = pool.client(node="n1")
        assert get(near, hashes, nbytes).blocks == 4
        assert len(near.segments) == 1
        only_own_node = pool.client(node="n0", scope="node")
        assert get(only_own_node, hashes, nbytes).blocks == 0
        assert put(only_own_node, hashes).dropped == (("no server", 4),)


def test_concurrent_writers_of_the_same_blocks() -> None:
    hashes = chain(50)
    with PoolCluster(2) as pool:
        clients = [pool.client() for _ in range(3)]
        reports: list[StoreReport] = []
        threads = [threading.Thread(target=lambda c=one: reports.append(put(c, hashes))) for one in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(report.stored for report in reports) == 50
        assert sum(report.present for report in reports) == 100
        assert get(clients[0], hashes).blocks == 50


def test_a_target_of_another_size_is_an_error_and_no_harm() -> None:
    with filled(1, 3) as (_, client, hashes):
        find = client.lookup(SPACE, hashes, soon())
        places = [memoryview(bytearray(size)) for size in (BLOCK, BLOCK - 1, BLOCK)]
        report = client.read(find, places, soon())
        assert (report.blocks, report.lost_blocks, report.reason) == (1, 2, MissReason.ERROR)
        assert bytes(places[0]) == content(hashes[0])


def test_what_cannot_be_written_is_dropped_with_its_reason() -> None:
    block, *others = chain(6)
    with PoolCluster(1) as pool:
        client = pool.client()
        report = put(client, [block, block])
        assert (report.stored, report.present) == (1, 1)
        assert put(client, chain(1, "large"), 17 * MIB).dropped == (("too large", 1),)
        quota = SetNamespaces((NamespaceRecord(SPACE.namespace, MIB),))
        client.placement.links["kv-0"].ask(Done, quota, soon())
        assert put(client, chain(1, "quota"), 2 * MIB).dropped == (("quota", 1),)
        assert put(client, others).stored == 5


def test_of_two_copies_that_of_the_likelier_holder_is_read() -> None:
    with filled(1, 40) as (pool, client, hashes):
        pool.add()
        put(client, hashes)  # the new owner gets copies
        find = client.lookup(SPACE, hashes, soon())
        assert list(find.prefix.servers) == [client.placement.ring.primary(block) for block in hashes]

        def leased() -> int:
            return sum(facts_of(client, f"kv-{i}")["ledger"]["leased"] for i in range(2))

        assert leased() == 40, "the other copies are released at once"
        assert read(client, find)[0] == 40
        assert leased() == 0
