"""The ring: even shares, few moves, the old owner always among the queried servers, equal results in all processes."""

import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.ids import NodeId
from serving.kvpool.core.ring import HashRing, RingServer, ring_of
from serving.values.pool_view import EMPTY_VIEW, PoolView, ServerRecord, ServerState, ViewServer

EDGES = (bytes(14), b"\xff" * 14)
KEYS = [random.Random(n).randbytes(16) for n in range(6_000)]


def ring(*names: str, **weights: float) -> HashRing:
    return HashRing([RingServer(n, 1.0) for n in names] + [RingServer(n, w) for n, w in weights.items()])


def names(count: int) -> list[str]:
    return [f"server-{n}" for n in range(count)]


ring_of_many = ring(*names(48))


def view(*servers: tuple[str, str, float]) -> PoolView:
    def record(name: str, node: str, weight: float) -> ServerRecord:
        state = ServerState.ACTIVE if weight else ServerState.DRAINING
        return ServerRecord(name, "i", NodeId(node), "h", 1, "s", 0, 1, state, 0.0)

    return PoolView("v", tuple(ViewServer(record(*s), s[2]) for s in servers))


@pytest.mark.parametrize("count", [2, 48])
def test_servers_own_even_shares(count: int) -> None:
    shares = Counter(map(ring(*names(count)).primary, KEYS))
    fair = len(KEYS) / count
    assert len(shares) == count
    assert 0.65 * fair < min(shares.values())
    assert max(shares.values()) < 1.4 * fair


@pytest.mark.parametrize("count", [1, 7, 20])
def test_an_added_server_takes_its_share_and_nothing_else_moves(count: int) -> None:
    before, after = ring(*names(count)), ring(*names(count), "new")
    moved = [k for k in KEYS if before.primary(k) != after.primary(k)]
    assert {after.primary(k) for k in moved} == {"new"}
    assert 0.75 / (count + 1) < len(moved) / len(KEYS) < 1.25 / (count + 1)


def test_the_fallback_is_the_old_owner_when_one_is_added_and_the_new_owner_when_one_is_removed() -> None:
    few, many = ring(*names(6)), ring(*names(6), "new")
    gained = [k for k in KEYS if many.primary(k) == "new"]
    assert gained
    for key in gained:
        assert many.owners(key) == ("new", few.primary(key))


def test_growing_weight_moves_keys_only_to_the_growing_server() -> None:
    owner = list(map(ring(*names(4), new=1 / 512).primary, KEYS))
    for step in range(1, 9):
        now = list(map(ring(*names(4), new=step / 8).primary, KEYS))
        assert all(b in (a, "new") for a, b in zip(owner, now, strict=True))
        share = now.count("new") / len(KEYS)
        assert share == pytest.approx(step / (32 + step), rel=0.3)
        owner = now


def test_owners_are_distinct_and_as_many_as_there_are() -> None:
    assert HashRing([]).owners(KEYS[0]) == HashRing([]).readers(KEYS[0]) == ()
    assert HashRing([]).primary(KEYS[0]) is None
    assert set(map(ring("a").owners, KEYS[:100])) == {("a",)}
    assert set(map(ring("a", "b").owners, KEYS[:100])) == {("a", "b"), ("b", "a")}
    assert all(len(set(ring_of_many.owners(key))) == 2 for key in KEYS[:2000])


def test_hashes_before_the_first_and_behind_the_last_point_belong_to_the_same_server() -> None:
    assert ring_of_many.owners(b"\0" * 16) == ring_of_many.owners(b"\xff" * 16)


def test_a_draining_server_owns_nothing_and_is_asked_for_everything() -> None:
    left, draining = ring("a", "b"), ring("a", "b", old=0.0)
    assert draining.draining == ("old",)
    for key in KEYS[:500]:
        assert draining.owners(key) == left.owners(key)
        assert draining.readers(key) == (*left.owners(key), "old")
    alone = ring(old=0.0)
    assert alone.owners(KEYS[0]) == ()
    assert alone.readers(KEYS[0]) == ("old",)


def test_in_a_settled_pool_the_readers_are_the_owners() -> None:
    assert all(ring_of_many.readers(k) == ring_of_many.owners(k) for k in KEYS[:2000])


@settings(max_examples=15)
@given(st.integers(1, 4), st.integers(1, 7), st.sampled_from([0.125, 0.5, 0.875]))
def test_however_many_young_servers_there_are_the_old_owner_is_asked(old: int, young: int, weight: float) -> None:
    before = ring(*names(old))
    after = ring(*names(old), **{f"young-{n}": weight for n in range(young)})
    for key in KEYS[:200]:
        readers = after.readers(key)
        assert before.primary(key) in readers
        assert readers[:2] == after.owners(key)
        assert len(set(readers)) == len(readers) <= 3


@pytest.mark.parametrize("servers", [names(0), names(1), names(48)])
def test_many_hashes_at_once_have_the_primaries_that_each_has(servers: list[str]) -> None:
    whole = ring(*servers)
    # Places of points, and the bytes around the ends of a cell, are where an index could be one off.
    edges = [bytes([first, second, *tail]) for first in (0, 1, 255) for second in (0, 15, 16, 255) for tail in EDGES]
    points = whole._points
    arcs = [point[:2] + rest for point in points for rest in EDGES]
    keys = [*KEYS[:500], *edges, *arcs, *(point + bytes(8) for point in points), *points]
    assert whole.primaries(keys) == [whole.primary(key) for key in keys]


def test_a_tiny_weight_still_has_one_point_and_no_weight_counts_for_more_than_full() -> None:
    assert "small" in set(map(ring("a", small=1e-9).primary, KEYS))
    assert list(map(ring("a", b=2.0).owners, KEYS)) == list(map(ring("a", "b").owners, KEYS))


def test_order_of_servers_and_process_do_not_matter() -> None:
    three = ring("a", "b", "c")
    assert list(map(ring("c", "b", "a").readers, KEYS)) == list(map(three.readers, KEYS))
    code = (
        "from serving.kvpool.core.ring import HashRing, RingServer\n"
        "ring = HashRing([RingServer(n, 1.0) for n in ('a', 'b', 'c')])\n"
        "print(''.join(''.join(ring.owners(bytes([n]) * 16)) for n in range(256)))"
    )
    here = "".join("".join(three.owners(bytes([n]) * 16)) for n in range(256))
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == here


def test_places_are_part_of_the_format() -> None:
    # SSD folders outlive a release: their servers must own the same keys after an upgrade.
    three = ring("a", "b", "c")
    assert "".join(three.owners(bytes([n * 16]) * 16)[0] for n in range(16)) == "cccbcaaaaababbbc"


def test_a_view_gives_the_ring_of_the_pool_or_of_one_node() -> None:
    pool = view(("a", "n1", 1.0), ("b", "n1", 0.5), ("c", "n2", 1.0), ("d", "n2", 0.0))
    whole = ring_of(pool)
    assert {whole.primary(k) for k in KEYS[:500]} == {"a", "b", "c"}
    assert whole.draining == ("d",)
    first, second = ring_of(pool, NodeId("n1")), ring_of(pool, NodeId("n2"))
    assert {name for k in KEYS[:500] for name in first.readers(k)} == {"a", "b"}
    assert {second.readers(k) for k in KEYS[:500]} == {("c", "d")}
    assert ring_of(pool, NodeId("n3")).readers(KEYS[0]) == ring_of(EMPTY_VIEW).readers(KEYS[0]) == ()
