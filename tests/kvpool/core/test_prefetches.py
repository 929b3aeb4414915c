"""Loads from SSD ahead of readers: what is queued, refused, given up, and never in the way of a reader."""

import pytest

from serving.kvpool.core.entry import LoadFromSsd
from serving.kvpool.core.memory_manager import MemoryManager
from serving.kvpool.core.prefetches import LOADS_AHEAD, PrefetchCount
from tests.kvpool.core.ledger_driver import PAGE, SPACE, LedgerDriver, named, put, tiers, with_ssd

TOTAL = 16


def on_disk(prefetch_share: float = 0.5, capacity: int = 8) -> tuple[MemoryManager, LedgerDriver]:
    """Blocks 1 to 16; the first `16 - capacity` are on SSD only."""
    manager = with_ssd(
        slabs=capacity // 4, write_through=True, prefetch_share=prefetch_share, lease_s=5.0, write_lease_s=10.0
    )
    driver = LedgerDriver(manager)
    for index in range(1, TOTAL + 1):
        put(manager, index)
        where = next(view.offset for view in manager.entries() if view.hash == named(index))
        driver.write(where, PAGE, index)
        driver.do_all(0.0)
    assert [place for _, place in sorted(tiers(manager).items())] == ["ssd"] * (TOTAL - capacity) + ["both"] * capacity
    return manager, driver


def loads(manager: MemoryManager) -> list[int]:
    return [order.version for order in manager.take_orders() if isinstance(order, LoadFromSsd)]


def test_blocks_on_disk_come_a_few_at_a_time_without_a_lease() -> None:
    manager, driver = on_disk(prefetch_share=0.75)
    wanted = [named(index) for index in (1, 2, 3, 4, 5, 6, 16, 99)]
    assert manager.prefetch(SPACE, wanted, 1.0) == PrefetchCount(in_memory=1, loading=6, missing=1)
    assert manager.prefetch(SPACE, wanted, 1.0) == PrefetchCount(1, 6, 1), "once is enough"
    stats = manager.stats()
    assert (stats.loading, stats.leased, stats.counters.lookups) == (LOADS_AHEAD, 0, 0)
    driver.do_all(1.0)
    assert {index for index, place in tiers(manager).items() if place == "both"} == {1, 2, 3, 4, 5, 6, 15, 16}, (
        "the named one in memory counts as used; others made room"
    )
    assert manager.stats().counters.prefetches == 6
    assert manager.prefetch(SPACE, wanted, 1.0) == PrefetchCount(7, 0, 1)
    manager.check()


def test_waiting_bytes_are_bounded_and_nothing_leased_makes_room() -> None:
    manager, _ = on_disk(prefetch_share=0.25)
    assert manager.prefetch(SPACE, [named(i) for i in (1, 2, 3)], 1.0) == PrefetchCount(loading=2, refused=1)
    off, _ = on_disk(prefetch_share=0.0)
    assert off.prefetch(SPACE, [named(1)], 1.0) == PrefetchCount(refused=1)
    full, driver = on_disk()
    full.lookup(SPACE, [named(i) for i in range(9, 17)], 1, 1.0, lease_s=100.0)
    assert full.prefetch(SPACE, [named(1), named(2)], 1.0) == PrefetchCount(loading=2)
    assert loads(full) == []
    assert full.next_tick(1.0) == pytest.approx(1.0, abs=0.03), "it tries again while it may"
    full.tick(5.9)
    assert full.prefetch(SPACE, [named(1)], 5.9) == PrefetchCount(loading=1)
    full.tick(6.0)
    assert full.next_tick(6.0) == 101.0, "given up; the leases are left"
    full.check()
    driver.do_all(6.0)


def test_a_reader_is_never_behind_the_queue() -> None:
    manager, driver = on_disk()
    assert manager.prefetch(SPACE, [named(i) for i in (1, 2, 3, 4)], 1.0).loading == LOADS_AHEAD
    manager.set_quotas({})
    found = manager.lookup(SPACE, [named(8)], 1, 1.0)[0]
    assert found is not None
    manager.promote([found.version], 1, 1.0)
    assert loads(manager)[-1] == found.version, "ordered at once, with only a few before it"
    manager.check()
    del driver


def test_a_reader_takes_a_queued_block_over() -> None:
    manager, driver = on_disk(prefetch_share=0.75)
    assert manager.prefetch(SPACE, [named(i) for i in (1, 2, 3, 4, 5, 6)], 1.0).loading == 6
    found = manager.lookup(SPACE, [named(6)], 1, 1.0)[0]
    assert found is not None
    manager.promote([found.version], 1, 1.0)
    driver.do_all(1.0)
    counters = manager.stats().counters
    assert (counters.promotions, counters.prefetches) == (6, 5)
    manager.check()


def test_a_quota_refuses_and_an_unreadable_file_ends_the_load() -> None:
    manager, driver = on_disk()
    manager.set_quotas({"tenant": (TOTAL + 8) * PAGE})
    assert manager.prefetch(SPACE, [named(1)], 1.0) == PrefetchCount(refused=1), "it would cost the tenant its blocks"
    manager.set_quotas({})
    assert manager.prefetch(SPACE, [named(1), named(2)], 1.0) == PrefetchCount(loading=2)
    driver.do_all(1.0, ok=False)
    assert manager.prefetch(SPACE, [named(1), named(2)], 1.0) == PrefetchCount(missing=2)
    manager.check()
