"""A client and servers that die, freeze, lie and come back: a miss with its reason, never wrong bytes, never a hang."""

import time
from pathlib import Path

import pytest

from serving.kvpool.core.messages import Committed, Drop
from serving.values.pool_outcome import MissReason
from tests.kvpool.client_case import BLOCK, SPACE, chain, client_of, entries_of, flip_bit, freeze, get, put, soon
from tests.kvpool.pool_cluster import PoolCluster


def test_a_bit_flip_is_a_miss_and_is_removed() -> None:
    hashes = chain(10)
    with PoolCluster(2) as pool:
        client = client_of(pool)
        put(client, hashes)
        flip_bit(pool, client, hashes, 6)
        report = get(client, hashes)
        assert (report.blocks, report.lost_blocks, report.reason) == (6, 4, MissReason.CHECKSUM)
        report = get(client, hashes)
        assert (report.blocks, report.lost_blocks, report.reason) == (6, 0, None), "the server removed it"
        assert put(client, hashes).stored == 1
        assert get(client, hashes).blocks == 10
        client.close()


@pytest.mark.real_time
def test_killed_between_lookup_and_read_on_the_same_node() -> None:
    hashes = chain(10)
    with PoolCluster(1) as pool:
        client = client_of(pool)
        put(client, hashes)
        find = client.lookup(SPACE, hashes, soon())
        pool.kill(0, listed=True)
        targets = [memoryview(bytearray(BLOCK)) for _ in hashes]
        assert client.read(find, targets, soon()).blocks == 10, "mapped bytes outlive their server, and are verified"
        start = time.monotonic()
        report = get(client, hashes)
        assert (report.blocks, report.lost_blocks, report.reason) == (0, 10, MissReason.UNREACHABLE)
        assert put(client, hashes).dropped == (("unreachable", 10),)
        assert time.monotonic() - start < 1.0
        client.segments.drop_dead()
        assert len(client.segments) == 0
        client.close()


@pytest.mark.parametrize("forget", [False, True])
def test_killed_between_lookup_and_read_when_it_is_not_mapped(forget: bool) -> None:
    hashes = chain(10)
    with PoolCluster(1, node="n0" if forget else "n1") as pool:
        client = client_of(pool)
        put(client, hashes)
        find = client.lookup(SPACE, hashes, soon())
        pool.kill(0, listed=True)
        if forget:
            client.segments.keep(())
            Path(find.links["kv-0"].record.segment).unlink()
        report = client.read(find, [memoryview(bytearray(BLOCK)) for _ in hashes], soon())
        assert (report.blocks, report.lost_blocks, report.reason) == (0, 10, MissReason.UNREACHABLE)
        client.close()


def test_removed_between_lookup_and_read() -> None:
    hashes = chain(4)
    with PoolCluster(1, node="n1", lease_s=0.1) as pool:
        client, other = client_of(pool), client_of(pool)
        put(client, hashes)
        find = client.lookup(SPACE, hashes, soon())
        time.sleep(0.3)  # the leases end
        other.placement.refresh()
        version = find.found[2].version
        assert other.placement.links["kv-0"].ask(Committed, Drop((version,)), soon()).ok == (True,)
        report = client.read(find, [memoryview(bytearray(BLOCK)) for _ in hashes], soon())
        assert (report.blocks, report.lost_blocks, report.reason) == (2, 2, MissReason.GONE)
        assert get(client, hashes).blocks == 2, "the connection is still good"
        client.close()
        other.close()


def test_a_frozen_server_costs_one_timeout() -> None:
    hashes = chain(30)
    with PoolCluster(2) as pool:
        client = client_of(pool)
        put(client, hashes)
        first = client.placement.primary(hashes[0])
        assert first is not None
        frozen = int(first.name[-1])
        freeze(pool, frozen)
        start = time.monotonic()
        report = get(client, hashes, deadline_s=1.0)
        assert (report.blocks, report.lost_blocks > 0, report.reason) == (0, True, MissReason.TIMEOUT)
        assert time.monotonic() - start > 0.4
        assert client.placement.skipped() == [first.name]
        rest = [block for block in hashes if client.placement.primary(block) is not first]
        reasons = []
        for _ in range(30):
            assert get(client, rest).blocks == len(rest), "the other server is as good as ever"
            reasons.append(get(client, hashes).reason)
            time.sleep(0.02)
        # On a slow machine its pause may end meanwhile: then it is tried once more.
        assert set(reasons) <= {MissReason.UNREACHABLE, MissReason.TIMEOUT}
        assert reasons.count(MissReason.UNREACHABLE) > 20, "nobody waits for it again"
        pool.process(frozen).resume()
        until = soon()
        while get(client, hashes).blocks < 30:
            assert time.monotonic() < until
            time.sleep(0.05)
        client.close()


def test_a_server_that_freezes_with_an_answer_owed_does_not_keep_the_others_waiting() -> None:
    hashes = chain(30)
    with PoolCluster(2) as pool:
        client = client_of(pool)
        put(client, hashes)
        assert get(client, hashes).blocks == 30
        first = client.placement.primary(hashes[0])
        assert first is not None
        rest = [block for block in hashes if client.placement.primary(block) is not first]
        find = client.lookup(SPACE, hashes, soon())
        freeze(pool, int(first.name[-1]))
        client.release(find, soon())  # posted to both, answered by one
        assert get(client, rest, deadline_s=1.0).blocks == len(rest)
        client.close()


@pytest.mark.parametrize("settled", [1, 2])
def test_adding_a_server_loses_nothing(settled: int) -> None:
    hashes = chain(60)
    with PoolCluster(settled) as pool:
        client = client_of(pool)
        put(client, hashes)
        added = f"kv-{pool.add()}"
        assert get(client, hashes).blocks == 60, "the server that had a key before is its fallback"
        assert put(client, hashes).stored > 0, "writes go to the new owner"
        assert entries_of(client, added)
        assert get(client, hashes).blocks == 60
        client.close()


def test_a_dead_server_comes_back_under_its_name(tmp_path: Path) -> None:
    hashes = chain(40)
    with PoolCluster(2, ssd_folder=tmp_path, ssd_bytes=1 << 26, write_through=True) as pool:
        client = client_of(pool)
        assert put(client, hashes).stored == 40
        until = soon()
        while not all(entry.on_ssd for i in range(2) for entry in entries_of(client, f"kv-{i}")):
            assert time.monotonic() < until
            time.sleep(0.02)
        pool.kill(1, listed=True)
        assert get(client, hashes).blocks < 40
        assert get(client, hashes).reason is MissReason.UNREACHABLE
        pool.replace(1)
        report = get(client, hashes)
        assert (report.blocks, report.reason) == (40, None), "its pause ended with the new incarnation"
        assert report.from_ssd > 0
        client.close()


def test_a_draining_server_is_read_and_not_written() -> None:
    hashes = chain(40)
    with PoolCluster(2) as pool:
        client = client_of(pool)
        put(client, hashes)
        before = len(entries_of(client, "kv-0"))
        pool.drain(0)
        assert get(client, hashes).blocks == 40
        put(client, chain(40, "later"))
        assert len(entries_of(client, "kv-0")) == before
        pool.drain(1)
        assert put(client, chain(1, "last")).dropped == (("no server", 1),)
        client.close()


def test_a_wrong_secret_is_a_miss() -> None:
    with PoolCluster(1) as pool:
        client = client_of(pool, secret="guess")
        assert get(client, chain(2)).reason is MissReason.UNREACHABLE
        assert put(client, chain(2)).dropped == (("unreachable", 2),)
        client.close()


def test_a_view_without_a_server_ends_its_link_and_its_mapping() -> None:
    hashes = chain(20)
    with PoolCluster(2) as pool:
        client = client_of(pool)
        put(client, hashes)
        find = client.lookup(SPACE, hashes, soon())
        assert len(client.segments) == 2
        pool.unlisted.add(0)
        pool.drain(1)  # any change
        client.lookup(SPACE, hashes, soon())
        assert set(client.placement.links) == {"kv-1"}
        assert len(client.segments) == 1
        report = client.read(find, [memoryview(bytearray(BLOCK)) for _ in hashes], soon())
        assert report.blocks < 20
        assert report.reason is MissReason.UNREACHABLE
        client.close()


def test_without_time_nothing_is_begun_and_nobody_is_blamed() -> None:
    hashes = chain(5)
    with PoolCluster(1) as pool:
        client = client_of(pool)
        put(client, hashes)
        report = get(client, hashes, deadline_s=0.0)
        assert (report.blocks, report.lost_blocks, report.reason) == (0, 5, MissReason.TIMEOUT)
        find = client.lookup(SPACE, hashes, soon())
        report = client.read(find, [memoryview(bytearray(BLOCK)) for _ in hashes], soon(-1))
        assert (report.blocks, report.lost_blocks, report.reason) == (0, 5, MissReason.TIMEOUT)
        assert put(client, chain(3, "late"), deadline_s=0.0).dropped == (("timeout", 3),)
        assert client.placement.skipped() == []
        assert get(client, hashes).blocks == 5
        client.close()
