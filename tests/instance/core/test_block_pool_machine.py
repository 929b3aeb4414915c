"""The block pool against a model made of plain sets and lists."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.ids import BlockHash, BlockId
from serving.instance.core.block_pool import BlockPool


class BlockPoolMachine(RuleBasedStateMachine):
    """Tables are taken, shared, published and released; the model tracks contents and the order of releases."""

    @initialize(blocks=st.integers(1, 12))
    def build(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.tables: list[list[BlockId]] = []
        self.known: dict[BlockId, BlockHash] = {}
        self.cold: list[BlockId] = []  # oldest first
        self.hashes = 0

    def users(self, block: BlockId) -> int:
        return sum(table.count(block) for table in self.tables)

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            return
        blank = self.pool.num_free - self.pool.num_cold
        evicted = self.cold[: max(0, count - blank)]
        taken = self.pool.allocate(count)
        assert len(set(taken)) == count
        assert all(self.users(block) == 0 for block in taken)
        assert [b for b in taken if b in self.cold] == evicted
        for block in evicted:
            self.cold.remove(block)
            del self.known[block]
        self.tables.append(taken)

    @precondition(lambda self: any(self.tables))
    @rule(which=st.integers(0, 1000), repeat=st.booleans())
    def publish(self, which: int, repeat: bool) -> None:
        blocks = [b for table in self.tables for b in table if b not in self.known]
        if not blocks:
            return
        block = blocks[which % len(blocks)]
        if repeat and self.known:
            self.pool.publish(
                [block], [next(iter(self.known.values()))], 0, 1
            )  # known under another block: nothing happens
            return
        self.hashes += 1
        self.known[block] = BlockHash(self.hashes.to_bytes(16, "little"))
        self.pool.publish([block], [self.known[block]], 0, 1)

    @precondition(lambda self: self.known)
    @rule(which=st.lists(st.integers(0, 1000), min_size=1, max_size=4, unique=True), limit=st.integers(0, 4))
    def share(self, which: list[int], limit: int) -> None:
        known = list(self.known)
        wanted = list(dict.fromkeys(known[i % len(known)] for i in which))  # no table has a block twice
        found = self.pool.match([self.known[b] for b in wanted], limit)
        assert found == wanted[:limit]
        assert self.pool.count_cold(found) == sum(self.users(b) == 0 for b in found)
        self.pool.retain(found)
        self.cold = [b for b in self.cold if b not in found]
        self.tables.append(found)

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 1000))
    def release(self, which: int) -> None:
        table = self.tables.pop(which % len(self.tables))
        self.pool.release(table)
        for block in reversed(table):
            if self.users(block) == 0 and block in self.known and block not in self.cold:
                self.cold.append(block)

    @invariant()
    def balances(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check(self.tables)
            used = {block for table in self.tables for block in table}
            assert self.pool.num_used == len(used)
            assert self.pool.num_cold == len(self.cold)
            for block, prefix_hash in self.known.items():
                assert self.pool.match([prefix_hash], 1) == [block]


BlockPoolMachine.TestCase.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=50)
TestBlockPoolMachine = BlockPoolMachine.TestCase
