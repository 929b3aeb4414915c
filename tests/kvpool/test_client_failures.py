"""A client and servers that die, freeze, send wrong data and return: a miss with its reason, never wrong bytes, never a
hang.
"""

import time
from pathlib import Path

import pytest

from serving.kvpool.core.messages import Committed, Drop
from serving.values.pool_outcome import MissReason
from tests.kvpool.client_case import SPACE, chain, entries_of, filled, flip_bit, get, got, put, read, soon
from tests.kvpool.pool_cluster import PoolCluster
from tests.kvpool.waits import wait_for


def test_a_bit_flip_is_a_miss_and_is_removed() -> None:
    with filled(2) as (_, client, hashes):
        flip_bit(client, hashes, 6)
        assert got(client, hashes) == (6, 4, MissReason.CHECKSUM)
        assert got(client, hashes) == (6, 0, None), "the server removed it"
        assert put(client, hashes).stored == 1
        assert get(client, hashes).blocks == 10


@pytest.mark.real_time
def test_killed_between_lookup_and_read_on_the_same_node() -> None:
    with filled(1) as (pool, client, hashes):
        find = client.lookup(SPACE, hashes, soon())
        pool.kill(0, listed=True)
        assert read(client, find)[0] == 10, "mapped bytes outlive their server, and are verified"
        start = time.monotonic()
        assert got(client, hashes) == (0, 10, MissReason.UNREACHABLE)
        assert put(client, hashes).dropped == (("unreachable", 10),)
        assert time.monotonic() - start < 1.0
        client.segments.drop_dead()
        assert len(client.segments) == 0


@pytest.mark.parametrize("forget", [False, True])
def test_killed_between_lookup_and_read_when_it_is_not_mapped(forget: bool) -> None:
    with filled(1, node="n0" if forget else "n1") as (pool, client, hashes):
        find = client.lookup(SPACE, hashes, soon())
        pool.kill(0, listed=True)
        if forget:
            client.segments.keep(())
            Path(find.links["kv-0"].record.segment).unlink()
        assert read(client, find) == (0, 10, MissReason.UNREACHABLE)


def test_removed_between_lookup_and_read() -> None:
    with filled(1, 4, node="n1", lease_s=0.1) as (pool, client, hashes):
        other = pool.client()
        find = client.lookup(SPACE, hashes, soon())
        other.placement.refresh()
        drop = Drop((find.found[2].version,))
        wait_for(lambda: other.placement.links["kv-0"].ask(Committed, drop, soon()).ok == (True,), "the lease ends")
        assert read(client, find) == (2, 2, MissReason.GONE)
        assert get(client, hashes).blocks == 2, "the connection is still good"


def test_a_frozen_server_costs_one_timeout() -> None:
    with filled(2, 30) as (pool, client, hashes):
        first = client.placement.primary(hashes[0])
        assert first is not None
        frozen = int(first.name[-1])
        pool.process(frozen).freeze()
        start = time.monotonic()
        blocks, lost, reason = got(client, hashes, deadline_s=1.0)
        assert (blocks, lost > 0, reason) == (0, True, MissReason.TIMEOUT)
        assert time.monotonic() - start > 0.4
        assert client.placement.skipped() == [first.name]
        rest = [block for block in hashes if client.placement.primary(block) is not first]
        reasons = []
        for _ in range(30):
            assert get(client, rest).blocks == len(rest), "the other server is as good as ever"
            reasons.append(get(client, hashes).reason)
        # On a slow machine its pause may end before: then it is tried once more.
        assert set(reasons) <= {MissReason.UNREACHABLE, MissReason.TIMEOUT}
        assert reasons.count(MissReason.UNREACHABLE) > 20, "nobody waits for it again"
        pool.process(frozen).resume()
        wait_for(lambda: get(client, hashes).blocks == 30, "it is asked again")


def test_a_server_that_freezes_with_an_answer_owed_does_not_keep_the_others_waiting() -> None:
    with filled(2, 30) as (pool, client, hashes):
        first = client.placement.primary(hashes[0])
        assert first is not None
        rest = [block for block in hashes if client.placement.primary(block) is not first]
        find = client.lookup(SPACE, hashes, soon())
        pool.process(int(first.name[-1])).freeze()
        client.release(find, soon())  # posted to both, answered by one
        assert get(client, rest, deadline_s=1.0).blocks == len(rest)


@pytest.mark.parametrize("settled", [1, 2])
def test_adding_a_server_loses_nothing(settled: int) -> None:
    with filled(settled, 60) as (pool, client, hashes):
        added = f"kv-{pool.add()}"
        assert get(client, hashes).blocks == 60, "the server that had a key before is its fallback"
        assert put(client, hashes).stored > 0, "writes go to the new owner"
        assert entries_of(client, added)
        assert get(client, hashes).blocks == 60


def test_a_dead_server_comes_back_under_its_name(tmp_path: Path) -> None:
    with filled(2, 40, ssd_folder=tmp_path, ssd_bytes=1 << 26, write_through=True) as (pool, client, hashes):
        servers = ("kv-0", "kv-1")
        wait_for(lambda: all(one.on_ssd for name in servers for one in entries_of(client, name)), "all is on disk")
        pool.kill(1, listed=True)
        blocks, _, reason = got(client, hashes)
        assert blocks < 40
        assert reason is MissReason.UNREACHABLE
        pool.replace(1)
        report = get(client, hashes)
        assert (report.blocks, report.reason) == (40, None), "its pause ended with the new incarnation"
        assert report.from_ssd > 0


def test_a_draining_server_is_read_and_not_written() -> None:
    with filled(2, 40) as (pool, client, hashes):
        before = len(entries_of(client, "kv-0"))
        pool.drain(0)
        assert get(client, hashes).blocks == 40
        put(client, chain(40, "later"))
        assert len(entries_of(client, "kv-0")) == before
        pool.drain(1)
        assert put(client, chain(1, "last")).dropped == (("no server", 1),)


def test_a_wrong_secret_is_a_miss() -> None:
    with PoolCluster(1) as pool:
        client = pool.client(secret="guess")
        assert get(client, chain(2)).reason is MissReason.UNREACHABLE
        assert put(client, chain(2)).dropped == (("unreachable", 2),)


def test_a_view_without_a_server_ends_its_link_and_its_mapping() -> None:
    with filled(2, 20) as (pool, client, hashes):
        find = client.lookup(SPACE, hashes, soon())
        assert len(client.segments) == 2
        pool.unlisted.add(0)
        pool.drain(1)  # any change
        client.lookup(SPACE, hashes, soon())
        assert set(client.placement.links) == {"kv-1"}
        assert len(client.segments) == 1
        blocks, _, reason = read(client, find)
        assert blocks < 20
        assert reason is MissReason.UNREACHABLE


def test_without_time_nothing_is_begun_and_nobody_is_blamed() -> None:
    with filled(1, 5) as (_, client, hashes):
        assert got(client, hashes, deadline_s=0.0) == (0, 5, MissReason.TIMEOUT)
        assert read(client, client.lookup(SPACE, hashes, soon()), -1) == (0, 5, MissReason.TIMEOUT)
        assert put(client, chain(3, "late"), deadline_s=0.0).dropped == (("timeout", 3),)
        assert client.placement.skipped() == []
        assert get(client, hashes).blocks == 5
