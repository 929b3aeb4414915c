"""A memory server's entries follow the ring automatically, and all of them move when it drains."""

import time
from collections.abc import Callable, Iterator

import pytest

from serving.ids import NodeId
from serving.kvpool.core.ring import ring_of
from serving.kvpool.live.migration import CommitWorker
from tests.kvpool.client_case import chain, entries_of, get, put, soon
from tests.kvpool.pool_cluster import PoolCluster
from tests.kvpool.waits import wait_for


@pytest.fixture
def pool() -> Iterator[PoolCluster]:
    with PoolCluster(1) as running:
        yield running


@pytest.fixture
def settle(pool: PoolCluster) -> Iterator[Callable[..., CommitWorker]]:
    """Factory of commit workers of the first server; they end with the test."""
    made: list[CommitWorker] = []

    def make(node: NodeId | None = None, **more: float) -> CommitWorker:
        made.append(CommitWorker(pool.client(), "kv-0", pool.view, node, **more))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()
        assert not one.alive


def test_entries_move_when_a_server_joins(pool: PoolCluster, settle: Callable[..., CommitWorker]) -> None:
    hashes, client = chain(40), pool.client()
    put(client, hashes)
    settler = settle()
    settler.view_changed()
    pool.add()
    theirs = {block for block in hashes if ring_of(pool.view()).primary(block) == "kv-1"}
    assert 0 < len(theirs) < 40
    settler.view_changed()
    wait_for(lambda: settler.moved.moved == len(theirs), "they move")
    wait_for(lambda: {e.hash for e in entries_of(client, "kv-1")} == theirs, "and are there")
    assert settler.moved.left == 0
    assert get(client, hashes).blocks == 40


def test_the_same_view_is_no_reason_to_look_again(pool: PoolCluster, settle: Callable[..., CommitWorker]) -> None:
    hashes, client = chain(40), pool.client()
    pool.add()
    settler = settle(idle_s=0.3)
    settler.view_changed()
    time.sleep(0.1)
    pool.draining.add(1)
    pool.change()  # from now on all writes go to the first server
    put(client, hashes)
    pool.draining.clear()
    pool.change()
    settler.view_changed()
    wait_for(lambda: settler.moved.moved > 0, "stragglers move")
    moved = settler.moved
    settler.view_changed()
    time.sleep(0.1)
    assert settler.moved == moved


def test_what_comes_to_the_wrong_server_later_moves_without_a_new_view(
    pool: PoolCluster, settle: Callable[..., CommitWorker]
) -> None:
    old_view = pool.view()
    pool.add()
    settler = settle(idle_s=0.2)
    settler.view_changed()
    time.sleep(0.1)
    hashes = chain(40)
    put(pool.client(view=lambda: old_view), hashes)  # a client that has not heard yet
    theirs = [block for block in hashes if ring_of(pool.view()).primary(block) == "kv-1"]
    wait_for(lambda: settler.moved.moved == len(theirs), "they move too")


@pytest.mark.parametrize("announced", [True, False])
def test_a_drain_hands_over_everything(pool: PoolCluster, settle: Callable[..., CommitWorker], announced: bool) -> None:
    hashes, client = chain(40), pool.client()
    put(client, hashes)
    settler = settle()
    pool.add()
    if announced:
        pool.drain(0)
    assert settler.drain(soon()) == 0
    assert not settler.alive
    assert entries_of(client, "kv-0") == ()
    assert get(client, hashes).blocks == 40


def test_a_drain_with_nobody_to_take_anything_ends_at_once(
    pool: PoolCluster, settle: Callable[..., CommitWorker]
) -> None:
    client = pool.client()
    put(client, chain(4))
    settler = settle()
    pool.drain(0)
    begun = time.monotonic()
    assert settler.drain(soon(100)) is None
    assert time.monotonic() - begun < 50


@pytest.mark.real_time
def test_a_drain_whose_heir_hangs_ends_with_its_deadline(
    pool: PoolCluster, settle: Callable[..., CommitWorker]
) -> None:
    client = pool.client()
    put(client, chain(20))
    pool.add()
    settler = settle()
    pool.process(1).freeze()
    pool.drain(0)
    begun = time.monotonic()
    assert settler.drain(soon(1.0)) == 20
    assert time.monotonic() - begun < 8
    pool.process(1).resume()


def test_in_scope_node_only_servers_of_the_node_take_over(
    pool: PoolCluster, settle: Callable[..., CommitWorker]
) -> None:
    client = pool.client()
    put(client, chain(20))
    pool.add(node="n1")
    settler = settle(NodeId("n0"))
    settler.view_changed()
    time.sleep(0.2)
    assert settler.moved.moved == 0
    pool.drain(0)
    assert settler.drain(soon()) is None
