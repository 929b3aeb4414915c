"""Members of the pool and their shares: virtual time decides like the live controller that receives announcements."""

from hashlib import blake2b

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.config.kvcache import KvCacheConfig
from serving.ids import BlockHash, NodeId
from serving.kvpool.core.controller import ControlSettings, PoolController
from serving.kvpool.core.roster import SEAT_S
from serving.values.pool_view import ServerRecord, ServerState
from serving.virtual.memory_pool import VirtualPool

ANNOUNCE_S = 1.0
HASHES = [BlockHash(blake2b(bytes([i]), digest_size=16).digest()) for i in range(200)]
WHICH = st.integers(0, 100)


class MembershipMachine(RuleBasedStateMachine):
    """Servers announce themselves to a live controller every second, and stop when they are lost."""

    @initialize(founders=st.integers(1, 3), ramp_s=st.sampled_from([0.0, 8.0, 40.0]))
    def build(self, founders: int, ramp_s: float) -> None:
        config = KvCacheConfig(replicas=founders, ub_memory_mib=300, ramp_s=ramp_s, drain_s=4.0, lease_s=600.0)
        self.pool = VirtualPool(config, 1 << 20)
        self.live = PoolController(ControlSettings("test", ramp_s=ramp_s, founding=True))
        self.up: dict[str, tuple[str, float, ServerState]] = {}
        self.now = 0.0
        self.incarnations = 0
        for one in self.pool.servers():
            self.join(one.name)
        self.announce()
        self.pool.store("default", HASHES, 1, 0.0)
        self.pool.lookup_and_hold("default", HASHES, 1, 0.0)  # never released: a drain lasts until its deadline

    def join(self, name: str) -> None:
        self.incarnations += 1
        self.up[name] = (str(self.incarnations), self.now, ServerState.ACTIVE)

    def announce(self) -> None:
        for name, (incarnation, born, state) in self.up.items():
            place = (NodeId("n"), "host", 1, "segment", 1, 1 << 20)
            record = ServerRecord(name, incarnation, *place, state, self.now - born)
            assert self.live.hear(record, (), self.now)

    @precondition(lambda self: len(self.up) < 6)
    @rule()
    def add(self) -> None:
        """A new server, or the replacement of the one lost first, expired or not."""
        self.join(self.pool.add_server(self.now))
        self.announce()

    @precondition(lambda self: self.up)
    @rule(which=WHICH)
    def lose(self, which: int) -> None:
        name = list(self.up)[which % len(self.up)]
        self.pool.lose_server(name, self.now)
        del self.up[name]

    @precondition(lambda self: self.pool.active())
    @rule(which=WHICH)
    def drain(self, which: int) -> None:
        name = self.pool.active()[which % len(self.pool.active())]
        self.pool.remove_server(name, self.now)
        self.up[name] = (*self.up[name][:2], ServerState.DRAINING)
        self.announce()

    @rule(seconds=st.sampled_from([1, 2, 4, 6, 30, SEAT_S + 10]))
    def wait(self, seconds: float) -> None:
        period_s = ANNOUNCE_S if seconds < SEAT_S else 4.0
        for _ in range(int(seconds / period_s)):
            self.now += period_s
            while (due := self.pool.next_tick()) is not None and due <= self.now:
                self.pool.tick(due)
                self.withdraw_gone(due)
            self.announce()

    def withdraw_gone(self, now: float) -> None:
        there = {one.name for one in self.pool.servers()}
        for name in [name for name in self.up if name not in there]:
            incarnation, _born, state = self.up.pop(name)
            assert state is ServerState.DRAINING, "only a server that leaves goes while it is up"
            self.live.withdraw(name, incarnation, now)

    @invariant()
    def same_view(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.now += 0.25  # between two announcements: a change at this very moment is due
        self.pool.tick(self.now)
        self.withdraw_gone(self.now)
        view = self.live.view(self.now)
        assert view is not None
        assert {one.name: one.weight for one in self.pool.servers()} == {s.record.name: s.weight for s in view.servers}
        self.now += 0.75
        self.pool.tick(self.now)
        self.withdraw_gone(self.now)
        self.announce()


TestMembership = MembershipMachine.TestCase
TestMembership.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)


def test_the_replacement_that_comes_after_its_seat_has_expired_still_reaches_its_full_share() -> None:
    pool = VirtualPool(KvCacheConfig(replicas=2, ub_memory_mib=300, ramp_s=8.0), 1 << 20)
    pool.lose_server("server-0", 20.0)
    pool.tick(20.0 + SEAT_S + 10.0)
    assert pool.add_server(20.0 + SEAT_S + 10.0) == "server-0"
    assert pool.servers()[0].weight == 1 / 8
    pool.tick(20.0 + SEAT_S + 20.0)
    assert pool.servers()[0].weight == 1.0
