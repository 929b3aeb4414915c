"""Between DRAM and SSD: entries that leave and return, and a failing disk."""

import pytest

from serving.errors import LedgerError
from serving.kvpool.core.entry import EntryTier, Kind, LoadFromSsd, Spill, Unlink
from serving.kvpool.core.memory_manager import MemoryManager
from tests.kvpool.core.ledger_driver import (
    PAGE,
    SPACE,
    LedgerDriver,
    named,
    put,
    small_manager,
    spill_all,
    spills,
    tiers,
    try_reserve,
    with_ssd,
)


def test_without_ssd_the_coldest_make_room_at_once() -> None:
    manager = small_manager(slabs=1)
    put(manager, 1, 2, 3, 4)
    put(manager, 5)
    assert tiers(manager).keys() == {2, 3, 4, 5}
    assert manager.stats().counters.evicted_dropped == 1
    assert manager.take_orders() == ()


def test_with_ssd_room_comes_when_the_spill_has_ended() -> None:
    manager = with_ssd()
    put(manager, 1, 2, 3, 4)
    assert try_reserve(manager, 5, 6) == ["full", "full"]
    first, second = manager.take_orders()
    assert first == Spill(1, SPACE, named(1), Kind.CONTEXT, 0, PAGE, 1)
    assert isinstance(second, Spill)
    assert manager.stats().spilling == 2
    manager.spilled(first.version, True, 0.0)
    assert tiers(manager)[1] == "ssd"
    assert try_reserve(manager, 5, 6) == ["granted", "full"]
    assert manager.stats().counters.evicted_to_ssd == 1
    manager.check()


def test_an_entry_in_both_tiers_leaves_at_once_even_if_others_are_colder() -> None:
    manager = with_ssd(write_through=True, max_spills=2)
    put(manager, 1, 2, 3, 4)
    assert spills(manager) == [1, 2]
    manager.spilled(2, True, 0.0)
    assert tiers(manager) == {1: "dram", 2: "both", 3: "dram", 4: "dram"}
    assert try_reserve(manager, 5) == ["granted"]
    assert tiers(manager)[2] == "ssd"


def test_write_through_copies_everything_and_frees_nothing() -> None:
    manager = with_ssd(write_through=True, max_spills=1)
    driver = LedgerDriver(manager)
    for index in (1, 2, 3):
        put(manager, index)
        driver.memory[index - 1] = index
    driver.do_all(0.0)
    assert set(tiers(manager).values()) == {"both"}
    assert manager.usage()["tenant"].dram_bytes == manager.usage()["tenant"].ssd_bytes == 3 * PAGE
    assert manager.stats().counters.spills == 3
    assert manager.next_tick(0.0) is None


def test_write_through_spares_the_quota() -> None:
    manager = with_ssd(write_through=True)
    manager.set_quotas({"tenant": 3 * PAGE})
    put(manager, 1, 2)
    assert spills(manager) == [1]
    manager.spilled(1, True, 0.0)
    manager.check()


def test_what_is_used_while_it_is_written_stays() -> None:
    manager = with_ssd()
    put(manager, 1, 2, 3, 4)
    try_reserve(manager, 5, 6, 7)
    manager.lookup(SPACE, [named(1)], 1, 0.0)  # still leased when the spill ends
    manager.lookup(SPACE, [named(2)], 1, 0.0)
    manager.release([2], 1, 0.0)  # used, though not any more
    spill_all(manager)
    assert tiers(manager) == {1: "both", 2: "both", 3: "ssd", 4: "dram"}


@pytest.mark.parametrize("used", [True, False])
def test_a_failed_spill_drops_what_was_to_leave_unless_it_is_used(used: bool) -> None:
    manager = with_ssd()
    put(manager, 1, 2, 3, 4)
    try_reserve(manager, 5)
    if used:
        manager.lookup(SPACE, [named(1)], 1, 0.0)
    assert spills(manager) == [1]
    manager.spilled(1, False, 0.0)
    assert (1 in tiers(manager)) == used
    assert manager.stats().ssd_used_bytes == 0
    assert manager.stats().counters.spill_failures == 1
    manager.check()


def test_distrust_during_a_spill_orders_the_file_away_afterwards() -> None:
    manager = with_ssd(write_through=True)
    put(manager, 1)
    assert spills(manager) == [1]
    manager.distrust(1, 0.0)
    put(manager, 1)  # its successor's file has the same name: it must wait
    assert manager.take_orders() == ()
    manager.spilled(1, True, 0.0)
    unlink, spill = manager.take_orders()
    assert unlink == Unlink(SPACE, named(1), Kind.CONTEXT)
    assert isinstance(spill, Spill)
    assert spill.version == 2
    manager.spilled(2, True, 0.0)
    assert tiers(manager) == {1: "both"}
    manager.check()


def test_the_ssd_tier_forgets_what_was_used_longest_ago_but_nothing_leased() -> None:
    manager = with_ssd(ssd_bytes=2 * PAGE, write_through=True)
    put(manager, 1, 2)
    spill_all(manager)
    manager.lookup(SPACE, [named(1)], 1, 0.0)
    put(manager, 3)
    unlink, spill = manager.take_orders()
    assert unlink == Unlink(SPACE, named(2), Kind.CONTEXT)
    assert isinstance(spill, Spill)
    manager.spilled(spill.version, True, 0.0)
    assert tiers(manager) == {1: "both", 2: "dram", 3: "both"}
    manager.lookup(SPACE, [named(3)], 1, 0.0)
    put(manager, 4)
    assert manager.take_orders() == ()  # all entries are leased
    assert tiers(manager)[4] == "dram"
    assert manager.stats().counters.evicted_from_ssd == 1


@pytest.mark.parametrize("ssd_pages", [1, 2])
def test_what_ssd_cannot_take_is_dropped_at_once(ssd_pages: int) -> None:
    manager = with_ssd(ssd_bytes=ssd_pages * PAGE)
    driver = LedgerDriver(manager)
    if ssd_pages == 2:  # large enough, but full of what is leased
        put(manager, 1, pages=2)
        driver.memory.update({0: 1, 1: 1})
        put(manager, 2, pages=2)
        try_reserve(manager, 3, pages=2)
        driver.do_all(0.0)
        manager.lookup(SPACE, [named(1)], 1, 0.0)
    else:
        put(manager, 1, 2, pages=2)
    assert try_reserve(manager, 4, 5, pages=2) == ["granted", "granted"]
    assert manager.stats().counters.evicted_dropped == (1 if ssd_pages == 2 else 2)


def promoted_machine() -> tuple[MemoryManager, LedgerDriver]:
    """Entry 1 is on SSD, 2 to 5 fill DRAM."""
    manager = with_ssd()
    driver = LedgerDriver(manager)
    put(manager, 1, 2, 3, 4)
    driver.memory.update({0: 1, 1: 2, 2: 3, 3: 4})
    try_reserve(manager, 5)
    driver.do_all(0.0)
    put(manager, 5)
    driver.memory[0] = 5
    assert tiers(manager) == {1: "ssd", 2: "dram", 3: "dram", 4: "dram", 5: "dram"}
    return manager, driver


def test_an_entry_on_ssd_comes_back_when_there_is_room() -> None:
    manager, driver = promoted_machine()
    (found,) = manager.lookup(SPACE, [named(1)], 1, 0.0)
    assert found is not None
    assert (found.tier, found.offset) == (EntryTier.SSD, -1)
    manager.promote([found.version, 99], 1, 0.0)
    assert manager.pending(found.version)
    assert manager.found(found.version) == found
    driver.do_all(0.0)  # a spill frees space, the load follows
    assert not manager.pending(found.version)
    now = manager.found(found.version)
    assert now is not None
    assert now.tier is EntryTier.DRAM
    assert driver.holds(now)
    assert tiers(manager) == {1: "both", 2: "ssd", 3: "dram", 4: "dram", 5: "dram"}
    manager.promote([found.version], 1, 0.0)  # it already exists
    assert manager.take_orders() == ()
    assert manager.stats().counters.promotions == 1
    manager.check()


def test_a_promotion_that_finds_no_room_is_given_up() -> None:
    manager, _driver = promoted_machine()
    manager.lookup(SPACE, [named(i) for i in (1, 2, 3, 4, 5)], 1, 0.0, lease_s=100.0)
    manager.promote([1], 1, 0.0)
    assert manager.pending(1)
    assert manager.stats().waiting == 1
    due = manager.next_tick(0.0)
    assert due is not None
    assert due <= 0.02
    manager.tick(4.9)
    assert manager.pending(1)
    manager.tick(5.0)
    assert not manager.pending(1)
    assert tiers(manager)[1] == "ssd"
    assert manager.stats().counters.promotion_failures == 1


def test_a_promotion_waits_for_readers_to_finish() -> None:
    manager, _driver = promoted_machine()
    manager.lookup(SPACE, [named(i) for i in (2, 3, 4, 5)], 1, 0.0)
    manager.promote([1, 1], 2, 0.0)
    manager.release([2], 1, 0.0)
    assert spills(manager) == [2]
    manager.spilled(2, True, 0.0)
    (load,) = manager.take_orders()
    assert load == LoadFromSsd(1, SPACE, named(1), Kind.CONTEXT, PAGE, PAGE, 1)
    assert manager.stats().loading == 1
    manager.loaded(1, True, 0.0)
    manager.check()


def test_an_unreadable_file_removes_the_entry() -> None:
    manager, driver = promoted_machine()
    manager.remove(2, 0.0)
    manager.promote([1], 1, 0.0)
    assert not manager.hold(1, 1, 0.0)
    assert driver.names() == [(SPACE, named(1))]
    driver.do_one((SPACE, named(1)), ok=False, now=0.0)
    assert manager.found(1) is None
    assert not manager.pending(1)
    assert manager.take_orders() == (Unlink(SPACE, named(1), Kind.CONTEXT),)
    assert manager.stats().counters.promotion_failures == 1
    manager.release([1], 1, 0.0)
    manager.check()


def test_room_for_a_promotion_never_costs_its_own_file() -> None:
    manager = with_ssd(ssd_bytes=PAGE)
    put(manager, 1, 2, 3, 4)
    try_reserve(manager, 5)
    spill_all(manager)
    put(manager, 5)
    manager.promote([1], 1, 0.0)
    manager.release([1], 1, 0.0)
    manager.tick(0.0)
    assert 1 in tiers(manager)
    manager.set_quotas({"tenant": 5 * PAGE})
    manager.check()


def test_a_promotion_respects_the_quota() -> None:
    manager, driver = promoted_machine()
    manager.set_quotas({"tenant": 5 * PAGE})
    manager.promote([1], 1, 0.0)
    driver.do_all(0.0)
    assert tiers(manager) == {1: "both", 3: "dram", 4: "dram", 5: "dram"}
    usage = manager.usage()["tenant"]
    assert usage.dram_bytes + usage.ssd_bytes == 5 * PAGE


def test_reports_that_nobody_ordered_are_our_bug() -> None:
    manager = with_ssd()
    (version,) = put(manager, 1)
    with pytest.raises(LedgerError, match="reported as spilled"):
        manager.spilled(version, True, 0.0)
    with pytest.raises(LedgerError, match="reported as spilled"):
        manager.spilled(99, True, 0.0)
    with pytest.raises(LedgerError, match="reported as loaded"):
        manager.loaded(version, True, 0.0)
    with pytest.raises(LedgerError, match="reported as loaded"):
        manager.loaded(99, True, 0.0)


def test_a_failed_copy_of_write_through_changes_nothing() -> None:
    manager = with_ssd(write_through=True)
    put(manager, 1)
    assert spills(manager) == [1]
    manager.spilled(1, False, 0.0)
    assert tiers(manager) == {1: "dram"}
