"""Instances that grow and shrink by parts: who gets which size, what starts when, and how they are counted."""

import pytest

from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import ReplicaPhase
from serving.scaling.core.decode_parts import DecodeParts, ResizeInstance, SizedInstance, as_replicas, in_parts
from tests.scaling.core.looks import decode

A, B = NodeId("a"), NodeId("b")


def sized(name: str, parts: int, wanted: int = 0, place: NodeId = A) -> SizedInstance:
    return SizedInstance(name, place, parts, wanted or parts)


def due(target: int, *instances: SizedInstance, free: int = 100) -> list[tuple[str, int]]:
    changes = DecodeParts(2, 8, target).due(instances, {A: free})
    sizes = {one.name: one.parts for one in instances}
    assert all(one.before == sizes[one.name] for one in changes)
    return [(one.name, one.parts) for one in changes]


@pytest.mark.parametrize(
    ("target", "changes"),
    [(11, [("y", 5), ("x", 6)]), (8, []), (3, [("x", 2), ("y", 2)]), (40, [("x", 8), ("y", 8)])],
)
def test_parts_are_shared_evenly_within_the_bounds(target: int, changes: list[tuple[str, int]]) -> None:
    assert due(target, sized("x", 4), sized("y", 4)) == changes
    assert due(target) == []


def test_what_shrinks_starts_first_and_what_grows_gets_what_is_free() -> None:
    assert due(10, sized("x", 2), sized("y", 8)) == [("y", 5), ("x", 5)]
    assert due(12, sized("x", 4), sized("y", 4), free=3) == [("x", 6), ("y", 5)]
    assert due(12, sized("x", 4), sized("y", 4), free=0) == []
    elsewhere = DecodeParts(2, 8, 12).due([sized("x", 4), sized("y", 4, place=B)], {B: 1})
    assert elsewhere == [ResizeInstance("y", 4, 5)]


def test_a_change_that_has_started_finishes_first() -> None:
    assert due(4, sized("x", 4, 6), sized("y", 4)) == [("y", 2)]
    assert due(16, sized("x", 8, 5)) == []


def test_a_part_counts_as_a_replica_wherever_it_is_in_its_life() -> None:
    instances = [sized("x", 4, 6), sized("y", 5, 2, B)]
    seen = as_replicas(9, instances)
    assert (seen.target, len({one.name for one in seen.replicas})) == (9, 11)
    assert [seen.count(phase) for phase in ReplicaPhase] == [2, 6, 3]
    assert [one.node for one in seen.replicas] == [A] * 6 + [B] * 5
    whole = decode(2, npus_per_instance=16, max_sequences=40.0, crowd=60.0, seats=100, tokens_per_s=8.0)
    pool = in_parts(whole, 4, 9, instances, 4, (4, 16))
    assert (pool.target, pool.running, pool.starting, pool.draining) == (9, 6, 3, 3)
    assert (pool.npus_per_instance, pool.low, pool.high) == (4, 4, 16)
    assert (pool.max_sequences, pool.crowd, pool.seats, pool.tokens_per_s) == (10.0, 15.0, 25, 2.0)
