"""A shelf is a memory server without messages: the same calls, made both ways, leave the same ledger."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from serving.kvpool.core.entry import Entry, GrantStatus, LoadFromSsd, Spill
from serving.kvpool.core.memory_manager import MemoryManager
from tests.kvpool.core.ledger_driver import PAGE, SPACE, named, small_manager

CLIENT = 1
CHAIN = st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True)
PAGES = st.sampled_from([1, 1, 1, 2, 5])


def told(manager: MemoryManager, indices: Sequence[int], pages: int, now: float) -> list[str]:
    """Reserve, then commit the last one first, as a client does."""
    items = [(named(index), pages * PAGE) for index in indices]
    grants = manager.reserve(SPACE, items, CLIENT, now)
    for grant in reversed(grants):
        if grant.status is GrantStatus.GRANTED:
            assert manager.commit(grant.version, 0, CLIENT, now)
    return [grant.status.value for grant in grants]


def shelved(manager: MemoryManager, indices: Sequence[int], pages: int, now: float) -> list[str]:
    """The same with a shelf."""
    shelf = manager.shelf(SPACE)
    for index in reversed(indices):
        shelf.use_known(named(index), now)
    made = [shelf.admit(named(index), pages * PAGE, CLIENT, now) for index in indices]
    for one in reversed(made):
        if isinstance(one, Entry):
            shelf.finish(one, now)
    return ["granted" if isinstance(one, Entry) else one.value for one in made]


def state(manager: MemoryManager) -> dict[str, Any]:
    """All observable state of a ledger, without the counters of messages."""
    stats = manager.stats()
    inventory = manager._inventory
    unseen: dict[str, Any] = {"lookups": 0, "misses": 0, "leases_expired": 0}
    return {
        "entries": list(manager.entries()),
        "stats": replace(stats, counters=replace(stats.counters, **unseen)),
        "extents": inventory.allocator.live,
        "fragmentation": manager.fragmentation(),
        "usage": manager.usage(),
        "account": list(inventory.accounts.of(SPACE.namespace).shown),
        "ssd": list(inventory.ssd_order),
    }


class ShelfMachine(RuleBasedStateMachine):
    """One ledger driven by messages, one by its shelf."""

    @initialize(
        eviction=st.sampled_from(["lru", "lfu", "fifo", "cost"]),
        slabs=st.integers(1, 3),
        slab_pages=st.sampled_from([1, 4]),
        ssd_pages=st.sampled_from([0, 0, 5, 100]),
        write_through=st.booleans(),
        quota=st.sampled_from([0, 0, 6]),
        water=st.sampled_from([(1.0, 1.0), (0.8, 0.4)]),
    )
    def build(
        self,
        eviction: str,
        slabs: int,
        slab_pages: int,
        ssd_pages: int,
        write_through: bool,
        quota: int,
        water: tuple[float, float],
    ) -> None:
        usual: dict[str, Any] = {
            "ssd_bytes": ssd_pages * PAGE,
            "write_through": write_through,
            "eviction": eviction,
            "lease_s": 1e9,
        }
        ledgers = [small_manager(slabs, slab_pages, **usual, high_water=water[0], low_water=water[1]) for _ in range(2)]
        self.told, self.shelved = ledgers
        for ledger in ledgers:
            ledger.set_quotas({SPACE.namespace: quota * PAGE})
        self.held: list[tuple[list[int], list[Entry]]] = []
        self.now = 0.0
        self.client = CLIENT

    @rule(chain=CHAIN, pages=PAGES)
    def put(self, chain: list[int], pages: int) -> None:
        self.now += 1.0
        assert told(self.told, chain, pages, self.now) == shelved(self.shelved, chain, pages, self.now)

    @rule(chain=CHAIN, bring=st.booleans())
    def hold(self, chain: list[int], bring: bool) -> None:
        """Every lookup is a separate client: a shelf lends as often as requested."""
        self.now += 1.0
        self.client += 1
        hashes = [named(index) for index in chain]
        found = [one for one in self.told.lookup(SPACE, hashes, self.client, self.now) if one is not None]
        shelf = self.shelved.shelf(SPACE)
        entries = [shelf.entries[one] for one in hashes if one in shelf.entries]
        for entry in reversed(entries):
            shelf.use(entry, self.now)
            shelf.lend(entry)
        assert [entry.as_found(0) for entry in entries] == found
        if bring and found:
            self.told.promote([one.version for one in found], self.client, self.now)
            shelf.bring(entries, self.now)
        self.held.append(([one.version for one in found], entries))

    @rule(which=st.integers(0, 20))
    def release(self, which: int) -> None:
        if self.held:
            index = which % len(self.held)
            client = self.client - len(self.held) + 1 + index
            versions, entries = self.held[index]
            self.held[index] = ([], [])
            self.told.release(versions, client, self.now)
            for entry in entries:
                self.shelved.shelf(SPACE).give_back(entry)
            self.shelved._room_may_be_free(self.now)

    @rule(ok=st.booleans())
    def disk(self, ok: bool) -> None:
        orders = self.told.take_orders()
        assert orders == self.shelved.take_orders()
        for order in orders:
            for ledger in (self.told, self.shelved):
                if isinstance(order, Spill):
                    ledger.spilled(order.version, ok, self.now)
                elif isinstance(order, LoadFromSsd):
                    ledger.loaded(order.version, ok, self.now)

    @rule(index=st.integers(0, 11))
    def distrust(self, index: int) -> None:
        """A lent entry may be hidden, and is removed when it is returned."""
        entry = self.shelved.shelf(SPACE).entries.get(named(index))
        if entry is not None:
            assert self.told.distrust(entry.version, self.now)
            assert self.shelved.distrust(entry.version, self.now)

    @rule()
    def tick(self) -> None:
        self.now += 1.0
        self.told.tick(self.now)
        self.shelved.tick(self.now)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "told"):
            self.told.check()
            self.shelved.check()
            assert state(self.told) == state(self.shelved)


TestShelf = ShelfMachine.TestCase
TestShelf.settings = settings(max_examples=25, stateful_step_count=30)


def test_an_entry_is_lent_as_often_as_it_is_asked_for() -> None:
    manager = small_manager(slabs=1, slab_pages=1)
    shelf = manager.shelf(SPACE)
    assert shelved(manager, [1], 1, 0.0) == ["granted"]
    entry = shelf.entries[named(1)]
    shelf.lend(entry)
    shelf.lend(entry)
    shelf.give_back(entry)
    assert shelf.admit(named(2), PAGE, CLIENT, 0.0) is GrantStatus.FULL
    shelf.give_back(entry)
    assert shelved(manager, [2], 1, 0.0) == ["granted"]
    assert named(1) not in shelf.entries


def test_a_shelf_stays_good_when_its_space_runs_empty() -> None:
    manager = small_manager()
    shelf = manager.shelf(SPACE)
    shelved(manager, [1], 1, 0.0)
    manager.delete_namespace(SPACE.namespace, 0.0)
    assert not shelf.entries
    shelved(manager, [2], 1, 0.0)
    assert list(shelf.entries) == [named(2)]
    manager.check()
