"""Pools are spread over hosts again, one replica at a time; moves without effect end."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.ids import NodeId
from serving.scaling.core.pool_spread import MOVE_S, MOVES, PoolPlaces, Spreading

A, B, C = (NodeId(name) for name in "abc")
AFTER_S = 30.0


def places(target: int, *, steady: bool = True, room: bool = True, **serving: int) -> PoolPlaces:
    return PoolPlaces(target, {NodeId(host): count for host, count in serving.items()}, steady, room)


def test_a_move_is_one_more_and_then_one_less() -> None:
    spreading = Spreading(AFTER_S)
    assert spreading.check("decode", places(2, a=2, b=0), 0.0) is None
    assert spreading.check("decode", places(2, a=2, b=0), 29.0) is None
    assert spreading.check("decode", places(2, a=2, b=0), 30.0) == (3, "more")
    assert spreading.check("decode", places(3, a=2, b=0, steady=False), 31.0) is None
    assert spreading.check("decode", places(3, a=2, b=1), 35.0) == (2, "less")
    assert spreading.check("decode", places(2, a=1, b=1), 36.0) is None
    assert spreading.check("decode", places(2, a=1, b=1), 99.0) is None


def test_nothing_is_moved_unless_asked_for_nor_without_room_nor_amid_other_changes() -> None:
    for spreading, check in (
        (Spreading(0.0), places(2, a=2, b=0)),
        (Spreading(AFTER_S), places(2, a=2, b=0, room=False)),
        (Spreading(AFTER_S), places(2, a=2, b=0, steady=False)),
        (Spreading(AFTER_S), places(3, a=2, b=1)),
        (Spreading(AFTER_S), places(2, a=2)),
    ):
        assert [spreading.check("decode", check, at) for at in (0.0, 31.0, 999.0)] == [None] * 3


def test_who_changes_the_target_meanwhile_has_ended_the_move() -> None:
    spreading = Spreading(AFTER_S)
    spreading.check("decode", places(2, a=2, b=0), 0.0)
    assert spreading.check("decode", places(2, a=2, b=0), 30.0) == (3, "more")
    assert spreading.check("decode", places(1, a=2, b=0), 31.0) is None
    assert spreading.check("decode", places(1, a=1, b=0), 32.0) is None


def test_a_replica_that_never_serves_is_given_up() -> None:
    spreading = Spreading(AFTER_S)
    spreading.check("decode", places(2, a=2, b=0), 0.0)
    spreading.check("decode", places(2, a=2, b=0), 30.0)
    assert spreading.check("decode", places(3, a=2, b=0, steady=False), 29.0 + MOVE_S) is None
    assert spreading.check("decode", places(3, a=2, b=0, steady=False), 30.0 + MOVE_S) == (2, "less")


def test_moves_that_bring_nothing_end_until_hosts_change() -> None:
    spreading, now, moves = Spreading(AFTER_S), 0.0, 0

    def go(*others: NodeId) -> None:
        nonlocal now, moves
        for _ in range(200):
            now += 10.0
            empty = dict.fromkeys(others, 0)
            if spreading.check("decode", PoolPlaces(2, {A: 2, **empty}, steady=True, room=True), now) is not None:
                moves += 1
                full = PoolPlaces(3, {A: 3, **empty}, steady=True, room=True)
                assert spreading.check("decode", full, now + 1.0) == (2, "less")

    go(B)
    assert moves == MOVES
    go(B, C)
    assert moves == 2 * MOVES


class Cluster(RuleBasedStateMachine):
    """Ray puts each new replica on any host with capacity; hosts die and join; a pool ends even or out of moves."""

    def __init__(self) -> None:
        super().__init__()
        self.spreading = Spreading(AFTER_S)
        self.now = 0.0
        self.target, self.starting = 2, 0
        self.on: Counter[NodeId] = Counter({A: 1, B: 1})
        self.hosts = {A, B}

    @rule(seconds=st.sampled_from([1.0, 20.0, 400.0]))
    def check(self, seconds: float) -> None:
        self.now += seconds
        steady = not self.starting and self.on.total() == self.target
        seen = PoolPlaces(self.target, {host: self.on[host] for host in self.hosts}, steady, room=True)
        step = self.spreading.check("decode", seen, self.now)
        if step is not None:
            target, half = step
            assert target - self.target == (1 if half == "more" else -1)
            assert half == "less" or seen.uneven
            self.target = target
        while self.on.total() + self.starting > self.target and self.starting:
            self.starting -= 1
        while self.on.total() > self.target:
            self.on[max(self.on, key=lambda host: self.on[host])] -= 1
        self.starting = self.target - self.on.total()

    @precondition(lambda self: self.starting)
    @rule(data=st.data())
    def serves(self, data: st.DataObject) -> None:
        self.starting -= 1
        self.on[data.draw(st.sampled_from(sorted(self.hosts)))] += 1

    @precondition(lambda self: len(self.hosts) > 1)
    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        host = data.draw(st.sampled_from(sorted(self.hosts)))
        self.hosts.discard(host)
        self.starting += self.on.pop(host, 0)

    @rule(host=st.sampled_from([A, B, C]))
    def comes(self, host: NodeId) -> None:
        self.hosts.add(host)

    @invariant()
    def never_more_than_one_beside_what_was_asked_for(self) -> None:
        assert 2 <= self.target <= 3


TestCluster = Cluster.TestCase


@given(first=st.integers(2, 9))
def test_a_host_that_is_back_gets_its_share_if_ray_gives_it_new_replicas(first: int) -> None:
    spreading, on, target, now = Spreading(AFTER_S), Counter({A: first, B: 0}), first, 0.0
    for _ in range(20 * first):
        now += AFTER_S
        step = spreading.check("decode", PoolPlaces(target, on, on.total() == target, room=True), now)
        if step is not None:
            target = step[0]
            on[B if step[1] == "more" else A] += 1 if step[1] == "more" else -1
    assert on[A] - on[B] <= 1
