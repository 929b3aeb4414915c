"""A client of servers that fail at any message and any copy: correct bytes or none, without leaks."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.ids import BlockHash
from serving.kvpool.core import messages as m
from serving.kvpool.core.batch_write import BatchWrite, NewEntry
from serving.kvpool.core.entry import Kind
from serving.kvpool.core.prefix_find import FoundPrefix, PrefixFind
from serving.kvpool.core.prefix_read import PrefixRead
from tests.kvpool.core.ledger_driver import PAGE, SPACE
from tests.kvpool.core.queue_driver import Fate, QueueDriver, chain, held_by, moved

CHAIN = chain(30)
FATES = [fate for fate in Fate if fate is not Fate.WELL]
FAILURES = ["timeout", "unreachable", "error"]


class ClientMachine(RuleBasedStateMachine):
    """One client; every operation finishes before the next one starts."""

    @initialize(servers=st.integers(1, 4), memory=st.integers(1, 4), disk=st.booleans(), seed=st.integers(0, 10**6))
    def build(self, servers: int, memory: int, disk: bool, seed: int) -> None:
        self.driver = QueueDriver(servers, slabs=memory, ssd_pages=40 if disk else 0)
        self.disk = disk
        self.spoilt: set[BlockHash] = set()
        self.rng = Random(seed)
        self.trouble = 0.0
        self.found: FoundPrefix | None = None
        self.memory = memory
        self.driver.judge = self.judge
        self.driver.judge_copy = self.judge_copy

    def judge(self, _server: str, _message: m.Message) -> Fate:
        return self.rng.choice(FATES) if self.rng.random() < self.trouble else Fate.WELL

    def judge_copy(self, _server: str, _index: int) -> str | None:
        return self.rng.choice(FAILURES) if self.rng.random() < self.trouble / 3 else None

    @rule(trouble=st.sampled_from([0.0, 0.05, 0.4, 1.0]), copy_s=st.sampled_from([0.0, 0.01, 0.3]), disks=st.booleans())
    def times_change(self, trouble: float, copy_s: float, disks: bool) -> None:
        self.trouble = trouble
        self.driver.copy_s = copy_s
        for server in self.driver.servers.values():
            server.disk_works = disks

    @rule(first=st.integers(0, 25), count=st.integers(1, 8), seconds=st.sampled_from([0.0, 0.3, 2.0]))
    def write(self, first: int, count: int, seconds: float) -> None:
        blocks = CHAIN[first : first + count]
        self.driver.contents = [block[-1] for block in blocks]
        entries = [NewEntry(block, PAGE, self.driver.ring.primary(block)) for block in blocks]
        write = BatchWrite(SPACE, Kind.CONTEXT, entries, self.driver.now + seconds)
        self.driver.drive(write)
        assert write.result is not None
        assert len(write.result) == len(blocks)
        assert self.trouble or seconds < 2 or set(write.result) <= {"stored", "present", "full", "timeout"}

    @precondition(lambda self: self.found is None)
    @rule(first=st.integers(0, 25), count=st.integers(1, 12), seconds=st.sampled_from([0.0, 0.3, 2.0]))
    def find(self, first: int, count: int, seconds: float) -> None:
        blocks = CHAIN[first : first + count]
        find = PrefixFind(self.driver.ring, self.driver.servers, SPACE, blocks, 60.0, self.driver.now + seconds)
        held = {view.hash for server in self.driver.servers.values() for view in server.manager.entries()}
        self.driver.drive(find)
        assert find.result is not None
        found = [one.hash for one in find.result.found]
        assert found == blocks[: len(found)]
        if not self.trouble and seconds > 0.25:
            there = next((i for i, one in enumerate(blocks) if one not in held), len(blocks))
            assert (len(found), find.result.reason) == (there, None)
        self.found = find.result

    @precondition(lambda self: self.found is not None)
    @rule(wanted=st.sampled_from([0, 3, 100]), seconds=st.sampled_from([0.0, 0.3, 2.0, 8.0]))
    def read(self, wanted: int, seconds: float) -> None:
        found, self.found = self.found, None
        assert found is not None
        self.driver.got = {}
        read = PrefixRead(found, wanted, lambda _server: self.memory * 4 * PAGE, self.driver.now + seconds)
        self.driver.drive(read)
        assert read.result is not None
        blocks = read.result.blocks
        assert [self.driver.got[index] for index in range(blocks)] == [one.hash[-1] for one in found.found[:blocks]]
        assert blocks + read.result.lost_blocks == min(wanted, len(found.found)) + found.lost_blocks
        assert (read.result.reason is None) == (read.result.lost_blocks == 0)

    @precondition(lambda self: self.found is None)
    @rule(home=st.integers(0, 3), seconds=st.sampled_from([0.0, 0.3, 2.0, 8.0]))
    def move(self, home: int, seconds: float) -> None:
        """A server gives its entries away, like a draining one."""
        if len(self.driver.servers) < 2:
            return
        name = [*self.driver.servers][home % len(self.driver.servers)]
        before = held_by(self.driver)
        gone = moved(self.driver, name, seconds)
        after = held_by(self.driver)
        assert {entry.hash for entry in gone} <= before[name] - after[name]
        assert before[name] - after[name] <= set().union(*after.values()) | self.spoilt, "it is at its owner by now"

    @precondition(lambda self: not self.disk)
    @rule(which=st.integers(0, 29))
    def flip(self, which: int) -> None:
        """Flip bits of a block."""
        for server in self.driver.servers.values():
            for view in server.manager.entries():
                if view.hash == CHAIN[which]:
                    server.ledger.write(view.offset, PAGE, 200)
                    self.spoilt.add(view.hash)
                    return

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check()
            assert sum(server.manager.stats().writing for server in self.driver.servers.values()) == 0
            assert self.found is not None or self.driver.in_use == 0


TestClient = ClientMachine.TestCase
TestClient.settings = settings(max_examples=25, stateful_step_count=30)
