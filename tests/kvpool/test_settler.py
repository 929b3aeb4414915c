"""A memory server's entries follow the ring without anybody asking, and all of them go when it leaves."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.ids import NodeId
from serving.kvpool.core.ring import ring_of
from serving.kvpool.live import settler as settler_module
from serving.kvpool.live.settler import Settler
from tests.kvpool.client_case import chain, client_of, entries_of, get, put, soon
from tests.kvpool.pool_cluster import PoolCluster


@pytest.fixture
def pool() -> Iterator[PoolCluster]:
    with PoolCluster(1) as running:
        yield running


@pytest.fixture
def settle(pool: PoolCluster) -> Iterator[Callable[[], Settler]]:
    """Makes settlers of the first server; they are ended with the test."""
    made: list[Settler] = []

    def make(node: NodeId | None = None) -> Settler:
        made.append(Settler(client_of(pool), "kv-0", pool.view, node))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()
        assert not one.alive


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_entries_move_when_a_server_joins(pool: PoolCluster, settle: Callable[[], Settler]) -> None:
    hashes, client = chain(40), client_of(pool)
    put(client, hashes)
    settler = settle()
    settler.view_changed()
    pool.add()
    theirs = {block for block in hashes if ring_of(pool.view()).primary(block) == "kv-1"}
    assert 0 < len(theirs) < 40
    settler.view_changed()
    until(lambda: settler.moved.moved == len(theirs), "they move")
    until(lambda: {e.hash for e in entries_of(client, "kv-1")} == theirs, "and are there")
    assert settler.moved.left == 0
    assert get(client, hashes).blocks == 40
    client.close()


def test_the_same_view_is_no_reason_to_look_again(
    pool: PoolCluster, settle: Callable[[], Settler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler_module, "IDLE_S", 0.3)
    hashes, client = chain(40), client_of(pool)
    pool.add()
    settler = settle()
    settler.view_changed()
    time.sleep(0.1)
    pool.draining.add(1)
    pool._change()  # everything that is written now goes to the first server
    put(client, hashes)
    pool.draining.clear()
    pool._change()
    settler.view_changed()
    until(lambda: settler.moved.moved > 0, "stragglers move")
    moved = settler.moved
    settler.view_changed()
    time.sleep(0.1)
    assert settler.moved == moved
    client.close()


def test_what_comes_to_the_wrong_server_later_moves_without_a_new_view(
    pool: PoolCluster, settle: Callable[[], Settler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler_module, "IDLE_S", 0.2)
    old_view = pool.view()
    pool.add()
    settler = settle()
    settler.view_changed()
    time.sleep(0.1)
    late = client_of(pool)
    late.placement._view = lambda: old_view  # a client that has not heard yet
    hashes = chain(40)
    put(late, hashes)
    theirs = [block for block in hashes if ring_of(pool.view()).primary(block) == "kv-1"]
    until(lambda: settler.moved.moved == len(theirs), "they move too")
    late.close()


@pytest.mark.parametrize("announced", [True, False])
def test_a_drain_hands_over_everything(pool: PoolCluster, settle: Callable[[], Settler], announced: bool) -> None:
    hashes, client = chain(40), client_of(pool)
    put(client, hashes)
    settler = settle()
    pool.add()
    if announced:
        pool.drain(0)
    assert settler.drain(soon()) == 0
    assert not settler.alive
    assert entries_of(client, "kv-0") == ()
    assert get(client, hashes).blocks == 40
    client.close()


def test_a_drain_with_nobody_to_take_anything_ends_at_once(pool: PoolCluster, settle: Callable[[], Settler]) -> None:
    client = client_of(pool)
    put(client, chain(4))
    settler = settle()
    pool.drain(0)
    begun = time.monotonic()
    assert settler.drain(soon(100)) is None
    assert time.monotonic() - begun < 50
    client.close()


@pytest.mark.real_time
def test_a_drain_whose_heir_hangs_ends_with_its_deadline(pool: PoolCluster, settle: Callable[[], Settler]) -> None:
    client = client_of(pool)
    put(client, chain(20))
    pool.add()
    settler = settle()
    pool.process(1).freeze()
    pool.drain(0)
    begun = time.monotonic()
    assert settler.drain(soon(1.0)) == 20
    assert time.monotonic() - begun < 8
    pool.process(1).resume()
    client.close()


def test_in_scope_node_only_servers_of_the_node_take_over(
    pool: PoolCluster, settle: Callable[[NodeId], Settler], tmp_path: Path
) -> None:
    client = client_of(pool)
    put(client, chain(20))
    pool._settings["node"] = "n1"
    pool.add()
    settler = settle(NodeId("n0"))
    settler.view_changed()
    time.sleep(0.2)
    assert settler.moved.moved == 0
    pool.drain(0)
    assert settler.drain(soon()) is None
    client.close()
