"""Starts of replicas by phase: durations of the board and of the replica are combined."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenMember
from serving.scaling.core.start_keeper import TELL_S, SeenStart, StartKeeper
from serving.values.system_tally import PHASES, TOTAL
from tests.scaling.live.case import SERVING, STARTING, deployment, member, replica

OWN = {"process": 0.5, "imports": 1.5, "weights": 2.0}


def look(
    at: float, phase: ReplicaPhase | None, *members: SeenMember, pool: str = "decode", began: float = 8.0
) -> ClusterSnapshot:
    replicas = () if phase is None else (replica("x", "a", phase, began),)
    return ClusterSnapshot(
        at, {pool: deployment(1, *replicas)}, members={one.name.rpartition("#")[2]: one for one in members}
    )


def told(first_step_s: float = 0.0, incarnation: str = "1", own: dict[str, float] | None = None) -> SeenMember:
    return member("x", "decode", incarnation, start_s=OWN if own is None else own, first_step_s=first_step_s)


def test_a_start_is_made_of_its_phases() -> None:
    keeper = StartKeeper()
    assert keeper.observe(look(10.0, STARTING)) == []
    keeper.node_came("decode", 20.0)
    keeper.node_came("prefill", 21.0)
    assert keeper.observe(look(26.0, SERVING)) == [], "it has not told its own part yet"
    (start,) = keeper.observe(look(27.0, SERVING, told()))
    assert start.seconds == {TOTAL: 18.0, "node": 12.0, **OWN, "placing": 2.0}
    assert start.text == "serves after 18.0 s: node 12.0, placing 2.0, process 0.5, imports 1.5, weights 2.0 s"
    assert keeper.medians() == {"decode": dict(start.seconds)}
    assert keeper.observe(look(28.0, SERVING, told())) == []
    (first,) = keeper.observe(look(40.0, SERVING, told(0.25)))
    assert first.seconds == {"first_step": 0.25}
    assert keeper.observe(look(41.0, SERVING, told(0.25))) == []


def test_a_replica_that_never_tells_has_a_start_without_its_own_part() -> None:
    keeper = StartKeeper()
    keeper.observe(look(10.0, STARTING))
    assert keeper.observe(look(12.0, SERVING)) == []
    (start,) = keeper.observe(look(12.0 + TELL_S, SERVING))
    assert start == SeenStart("decode", "x", {TOTAL: 4.0})
    assert start.text == "serves after 4.0 s"


@pytest.mark.parametrize("members", [[member("x.r0", "decode", rank=0, shell="x")], []])
def test_memory_servers_and_groups_tell_no_part_and_are_not_waited_for(members: list[SeenMember]) -> None:
    keeper, pool = StartKeeper(), "decode" if members else "kvcache"
    keeper.observe(look(10.0, STARTING, pool=pool))
    (start,) = keeper.observe(look(12.0, SERVING, *members, pool=pool))
    assert start.seconds == {TOTAL: 4.0}


def test_a_replica_that_ends_before_it_serves_has_no_start() -> None:
    keeper = StartKeeper()
    keeper.observe(look(10.0, STARTING))
    assert keeper.observe(look(11.0, None)) == []
    assert keeper.observe(look(12.0, SERVING, told())) == [], "this one was not seen to start"


def test_the_first_step_of_a_successor_is_not_taken_for_its_own() -> None:
    keeper = StartKeeper()
    keeper.observe(look(10.0, STARTING))
    keeper.observe(look(12.0, SERVING, told()))
    assert keeper.observe(look(13.0, SERVING, told(0.25, incarnation="2"))) == []


@given(
    total_s=st.floats(0.0, 100.0),
    node_s=st.floats(0.0, 200.0),
    own=st.fixed_dictionaries({name: st.floats(0.0, 100.0) for name in OWN}),
)
def test_the_parts_make_the_whole_whatever_is_told(total_s: float, node_s: float, own: dict[str, float]) -> None:
    """A process that Ray already had is older than the request."""
    keeper = StartKeeper()
    keeper.observe(look(10.0, STARTING, began=10.0))
    keeper.node_came("decode", 10.0 + node_s)
    (start,) = keeper.observe(look(10.0 + total_s, SERVING, told(own=own)))
    parts = [start.seconds.get(phase, 0.0) for phase in PHASES]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(start.seconds[TOTAL]) == pytest.approx(total_s)
