"""Writes that cannot be: each is dropped with its reason, and leaves nothing behind."""

import time
from collections.abc import Sequence

import pytest

from serving.kvpool.core.entry import Grant, Kind
from serving.kvpool.core.messages import Done, SetNamespaces
from serving.kvpool.live.batch_write import BatchWrite, NewEntry
from serving.kvpool.live.server_link import ServerLink
from serving.values.pool_view import NamespaceRecord
from tests.kvpool.client_case import BLOCK, MIB, SPACE, chain, client_of, content, entries_of, facts_of, get, put, soon
from tests.kvpool.pool_cluster import PoolCluster


class SlowWrite(BatchWrite):
    """A writer that falls asleep between being granted room and using it."""

    def _copy(self, link: ServerLink, grants: Sequence[tuple[int, Grant]]) -> list[tuple[int, int, int]]:
        time.sleep(0.5)
        return super()._copy(link, grants)


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_a_writer_that_is_too_late(node: str) -> None:
    hashes = chain(3)
    with PoolCluster(1, node=node, write_lease_s=0.1) as pool:
        client = client_of(pool)
        client.warm(soon())
        entries = [NewEntry(block, memoryview(content(block))) for block in hashes]
        late = SlowWrite(client.segments, client.placement.primary, entries, soon())
        assert late.run(SPACE, Kind.CONTEXT) == ["expired"] * 3
        assert facts_of(client, "kv-0")["ledger"]["writing"] == 0
        assert put(client, hashes).stored == 3
        assert get(client, hashes).blocks == 3
        client.close()


def test_a_writer_whose_time_is_over_gives_its_room_back() -> None:
    hashes = chain(3)
    with PoolCluster(1) as pool:
        client = client_of(pool)
        client.warm(soon())
        entries = [NewEntry(block, memoryview(content(block))) for block in hashes]
        late = SlowWrite(client.segments, client.placement.primary, entries, soon(0.3))
        assert late.run(SPACE, Kind.CONTEXT) == ["timeout"] * 3
        assert facts_of(client, "kv-0")["ledger"]["writing"] == 0
        assert entries_of(client, "kv-0") == ()
        client.close()


def test_bytes_that_are_not_what_they_should_be_are_not_stored() -> None:
    good, bad = chain(2)
    with PoolCluster(1) as pool:
        client = client_of(pool)
        client.placement.refresh()
        entries = [NewEntry(good, memoryview(content(good))), NewEntry(bad, memoryview(content(bad)), expected=1)]
        assert client.write_to(client.placement.primary, SPACE, entries, soon()) == ["stored", "checksum"]
        assert [entry.hash for entry in entries_of(client, "kv-0")] == [good]
        assert facts_of(client, "kv-0")["ledger"]["writing"] == 0
        client.close()


def test_a_killed_server_between_reserve_and_commit() -> None:
    hashes = chain(3)
    with PoolCluster(1) as pool:
        client = client_of(pool)
        client.warm(soon())

        class Interrupted(BatchWrite):
            def _copy(self, link: ServerLink, grants: Sequence[tuple[int, Grant]]) -> list[tuple[int, int, int]]:
                pool.kill(0, listed=True)
                return super()._copy(link, grants)

        entries = [NewEntry(block, memoryview(content(block))) for block in hashes]
        write = Interrupted(client.segments, client.placement.primary, entries, soon())
        assert write.run(SPACE, Kind.CONTEXT) == ["unreachable"] * 3
        client.close()


def test_the_same_hash_twice_in_one_batch() -> None:
    block = chain(1)[0]
    with PoolCluster(1) as pool:
        client = client_of(pool)
        report = put(client, [block, block])
        assert (report.stored, report.present) == (1, 1)
        assert get(client, [block]).blocks == 1
        client.close()


def test_a_namespace_over_its_quota() -> None:
    with PoolCluster(1) as pool:
        client = client_of(pool)
        client.placement.refresh()
        quota = SetNamespaces((NamespaceRecord(SPACE.namespace, MIB),))
        client.placement.links["kv-0"].ask(Done, quota, soon())
        assert put(client, chain(1), 2 * MIB).dropped == (("quota", 1),)
        assert put(client, chain(5)).stored == 5
        client.close()


def test_two_copies_the_likelier_holder_is_read() -> None:
    hashes = chain(40)
    with PoolCluster(1) as pool:
        client = client_of(pool)
        put(client, hashes)
        pool.add()
        put(client, hashes)  # the new owner gets its own copies
        find = client.lookup(SPACE, hashes, soon())
        assert list(find.prefix.servers) == [client.placement.ring.primary(block) for block in hashes]
        leased = [facts_of(client, f"kv-{i}")["ledger"]["leased"] for i in range(2)]
        assert sum(leased) == 40, "the other copies are released at once"
        report = client.read(find, [memoryview(bytearray(BLOCK)) for _ in hashes], soon())
        assert report.blocks == 40
        client.close()
