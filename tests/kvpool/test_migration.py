"""A server's own entries move to their owners: after a join, and when it drains. No entry is lost on the way."""

import time
from pathlib import Path

import pytest

from serving.ids import BlockHash
from serving.kvpool.core.entry import Kind
from serving.kvpool.core.ring import HashRing, RingServer, ring_of
from serving.kvpool.live.migration import Migrator, Settled
from serving.kvpool.live.pool_client import PoolClient
from tests.kvpool.client_case import BLOCK, KIB, MIB, chain, entries_of, filled, get, put, put_all, soon
from tests.kvpool.pool_cluster import PoolCluster


def settle(pool: PoolCluster, number: int, node: str = "n0", leaving: bool = False, rounds: int = 20) -> Settled:
    """Run rounds of one server's migrator until it is done, or no entry moves."""
    client = pool.client(node=node)
    migrator = Migrator(client, f"kv-{number}")
    moved = nbytes = 0
    for _ in range(rounds):
        one = migrator.settle(ring_of(pool.view()), soon(), leaving)
        moved, nbytes = moved + one.moved, nbytes + one.nbytes
        if one.left == 0 or one.moved == 0:
            break
    return Settled(moved, one.left, nbytes)


def held(client: PoolClient, number: int) -> set[BlockHash]:
    """Hashes held by a server."""
    return {entry.hash for entry in entries_of(client, f"kv-{number}")}


@pytest.mark.parametrize("nodes", [("n0", "n0"), ("n0", "n1")])
def test_after_a_join_entries_move_to_their_owner(nodes: tuple[str, str]) -> None:
    with filled(1, 60, node=nodes[0]) as (pool, client, hashes):
        pool.add(node=nodes[1])
        ring = ring_of(pool.view())
        theirs = {block for block in hashes if ring.primary(block) == "kv-1"}
        assert settle(pool, 0) == Settled(len(theirs), 0, len(theirs) * BLOCK)
        assert held(client, 1) == theirs
        assert held(client, 0) == set(hashes) - theirs
        assert get(client, hashes).blocks == 60
        assert settle(pool, 0) == settle(pool, 1, node=nodes[1]) == Settled()


def test_a_drain_empties_a_server(tmp_path: Path) -> None:
    hashes, nbytes = chain(80), 64 * KIB
    sizes = {"capacity_bytes": 2 * MIB, "slab_bytes": 256 * KIB, "ssd_bytes": 64 * MIB}
    with PoolCluster(1, ssd_folder=tmp_path, **sizes) as pool:
        client = pool.client()
        put_all(client, hashes, nbytes)
        assert any(not entry.in_dram for entry in entries_of(client, "kv-0"))
        for _ in range(2):
            pool.add(capacity_bytes=16 * MIB)
        pool.drain(0)
        report = settle(pool, 0, leaving=True)
        assert report == Settled(80, 0, 80 * nbytes)
        assert held(client, 0) == set()
        pool.stop(0)
        assert get(client, hashes, nbytes).blocks == 80


def test_models_stay_until_the_server_leaves() -> None:
    models, blocks = chain(3, "model"), chain(10)
    with PoolCluster(1, capacity_bytes=32 * MIB) as pool:
        client = pool.client()
        put(client, models, 5 * MIB, kind=Kind.MODEL)
        put(client, blocks)
        pool.add(node="n1")
        pool.add(node="n0")
        settle(pool, 0)
        assert set(models) <= held(client, 0)
        pool.drain(0)
        assert settle(pool, 0).left == 0
        assert held(client, 0) == set()
        assert set(models) <= held(client, 2), "they stay on the node whose processes map them"
        assert {entry.kind for entry in entries_of(client, "kv-2") if entry.hash in models} == {Kind.MODEL}


def test_the_pace_and_the_bound_of_a_round() -> None:
    hashes = chain(130)
    pauses: list[float] = []
    with PoolCluster(1) as pool:
        client = pool.client()
        put(client, hashes[:120])
        time.sleep(0.01)
        put(client, hashes[120:])
        pool.add()
        ring = HashRing([RingServer("kv-1", 1.0)])
        mover = pool.client()
        bounded = Migrator(mover, "kv-0", bytes_per_s=1e4, round_bytes=10 * BLOCK, pause=pauses.append)
        report = bounded.settle(ring, soon(1000))
        assert (report.moved, report.left) == (10, 120)
        assert sum(pauses) == pytest.approx(10 * BLOCK / 1e4, rel=0.5)
        assert held(client, 1) == set(hashes[120:]), "the last used go first"
        stopped = Migrator(mover, "kv-0", pause=lambda _: True)
        assert 0 < stopped.settle(ring, soon()).left < 120, "one batch, then the caller wants to stop"
        assert get(client, hashes).blocks == 130


def test_without_a_target_nothing_moves_and_nothing_is_lost() -> None:
    with filled(2) as (pool, client, _):
        before = held(client, 0)
        ring = HashRing([RingServer("kv-1", 1.0)])
        pool.kill(1, listed=True)
        mover = pool.client()
        assert Migrator(mover, "kv-0").settle(ring, soon(2.0)) == Settled(0, len(before))
        assert held(client, 0) == before
        pool.drain(0)
        pool.unlisted.add(1)
        pool.drain(0)
        assert settle(pool, 0) == Settled(), "a last server keeps what it has"
        assert Migrator(mover, "kv-7").settle(ring, soon()) == Settled(left=1), "nobody knows what kv-7 has"
        pool.process(0).kill()
        assert Migrator(mover, "kv-0").settle(ring, soon()).left == 1
