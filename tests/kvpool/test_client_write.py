"""Writes that cannot be: each is dropped with its reason, and leaves nothing behind."""

from serving.kvpool.core.messages import Done, SetNamespaces
from serving.values.pool_view import NamespaceRecord
from tests.kvpool.client_case import BLOCK, MIB, SPACE, chain, client_of, facts_of, get, put, soon
from tests.kvpool.pool_cluster import PoolCluster


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
