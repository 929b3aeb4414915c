"""Sources of free space: ahead of demand, from other sizes, from models; and the files that a restart finds on disk."""

from serving.kvpool.core.entry import EntryTier, Kind, Space, Unlink
from tests.kvpool.core.ledger_driver import (
    PAGE,
    SPACE,
    named,
    put,
    small_manager,
    spill_all,
    spills,
    tiers,
    try_reserve,
    with_ssd,
)


def test_above_the_high_water_mark_the_coldest_leave_until_the_low_one() -> None:
    manager = small_manager(slabs=10, slab_pages=1, high_water=0.8, low_water=0.5)
    put(manager, *range(8))
    manager.tick(0.0)
    assert len(tiers(manager)) == 8
    put(manager, 8)
    assert manager.next_tick(1.0) == 1.0
    manager.tick(1.0)
    assert tiers(manager).keys() == {4, 5, 6, 7, 8}
    assert manager.next_tick(1.0) is None


def test_water_marks_spill_and_count_what_is_on_its_way() -> None:
    manager = small_manager(slabs=10, slab_pages=1, high_water=0.8, low_water=0.5, ssd_bytes=100 * PAGE, max_spills=2)
    put(manager, *range(9))
    manager.tick(0.0)
    assert spills(manager) == [1, 2]
    manager.tick(0.0)
    assert spills(manager) == []
    assert manager.next_tick(0.0) == 0.02  # no short timer while nothing can change
    manager.spilled(1, True, 0.0)
    manager.spilled(2, True, 0.0)
    manager.tick(0.02)
    assert spills(manager) == [3, 4]
    assert tiers(manager)[0] == "ssd"
    assert manager.next_tick(0.02) is None
    manager.check()


def test_memory_flows_to_the_size_that_is_asked_for() -> None:
    manager = small_manager(slabs=4)
    put(manager, *range(16))
    manager.lookup(SPACE, [named(5)], 1, 0.0)  # pins its slab
    put(manager, 100, pages=4)
    assert tiers(manager).keys() == {*range(4, 16), 100}
    put(manager, 101, pages=8)
    assert tiers(manager).keys() == {*range(4, 8), 100, 101}
    manager.check()


def test_no_more_is_emptied_than_needed() -> None:
    manager = small_manager(slabs=6)
    put(manager, *range(24))
    put(manager, 100, pages=8)
    assert tiers(manager).keys() == {*range(8, 24), 100}
    manager.lookup(SPACE, [named(index) for index in range(8, 12)], 1, 0.0, lease_s=0.0)
    manager.tick(0.0)
    put(manager, 101, pages=8)  # the coldest run starts after a hot slab
    assert tiers(manager).keys() == {*range(8, 12), *range(20, 24), 100, 101}


def test_a_slab_that_is_being_emptied_is_not_filled_again() -> None:
    manager = with_ssd(slabs=2)
    put(manager, *range(8))
    assert try_reserve(manager, 100, pages=4) == ["full"]
    emptied = spills(manager)
    assert emptied == [1, 2, 3, 4]
    assert try_reserve(manager, 101, pages=4) == ["full"]
    for version in emptied[:3]:
        manager.spilled(version, True, 0.0)
    assert try_reserve(manager, 50) == ["full"]  # three blocks are free, but they are not for this size
    manager.check()
    manager.spilled(emptied[3], True, 0.0)
    assert try_reserve(manager, 100, pages=4) == ["granted"]


def test_a_slab_that_cannot_be_emptied_in_time_is_used_again() -> None:
    manager = with_ssd(slabs=1)
    put(manager, *range(4))
    assert try_reserve(manager, 100, pages=4) == ["full"]
    manager.lookup(SPACE, [named(0)], 1, 0.0, lease_s=100.0)
    spill_all(manager)
    assert tiers(manager) == {0: "both", 1: "ssd", 2: "ssd", 3: "ssd"}
    assert try_reserve(manager, 50, now=0.1) == ["full"]
    assert manager.next_tick(0.1) == 2.0
    manager.tick(1.9)
    assert try_reserve(manager, 50, now=1.9) == ["full"]
    manager.tick(2.0)
    assert try_reserve(manager, 50, now=2.0) == ["granted"]
    manager.check()


def test_models_outlive_context_unless_they_are_older_than_all_of_it() -> None:
    manager = small_manager(slabs=3)
    put(manager, *range(4), now=0.0)
    put(manager, 100, pages=4, kind=Kind.MODEL, now=1.0)
    put(manager, *range(4, 8), now=2.0)
    put(manager, 200, pages=4, now=3.0)  # of the model's size, but context still makes space
    assert tiers(manager).keys() == {100, *range(4, 8), 200}
    put(manager, 300, pages=4, now=4.0)  # now the model is the coldest of all
    assert tiers(manager).keys() == {*range(4, 8), 200, 300}


def test_a_model_goes_when_nothing_else_can() -> None:
    manager = small_manager(slabs=2)
    put(manager, 1, now=0.0)
    put(manager, 100, pages=4, kind=Kind.MODEL, now=1.0)
    manager.lookup(SPACE, [named(1)], 1, 1.0)
    put(manager, 101, pages=4, kind=Kind.MODEL, now=2.0)
    assert tiers(manager).keys() == {1, 101}


def test_a_large_object_finds_the_coldest_run_anywhere() -> None:
    manager = small_manager(slabs=30, slab_pages=1)
    put(manager, *range(30))
    manager.lookup(SPACE, [named(index) for index in range(30) if not 10 <= index < 20], 1, 0.0)
    put(manager, 100, pages=9)
    kept = tiers(manager).keys()
    assert kept >= {index for index in range(30) if not 10 <= index < 20}
    assert len(kept) == 20 + 1 + 1
    assert try_reserve(manager, 101, pages=12) == ["full"]
    manager.check()


def test_entries_on_disk_are_found_again_after_a_restart() -> None:
    manager = with_ssd(ssd_bytes=3 * PAGE, first_version=50)
    for index in (1, 2, 3):
        assert manager.restore(SPACE, named(index), Kind.CONTEXT, PAGE, index, index * 0.1, 1.0) == 49 + index
    assert manager.restore(SPACE, named(3), Kind.CONTEXT, PAGE, 3, 0.3, 1.0) is None
    assert manager.take_orders() == ()
    assert manager.restore(SPACE, named(4), Kind.MODEL, PAGE, 4, 0.4, 1.0) == 53
    assert manager.take_orders() == (Unlink(SPACE, named(1), Kind.CONTEXT),)
    (found,) = manager.lookup(SPACE, [named(2)], 1, 1.0)
    assert found is not None
    assert (found.tier, found.checksum) == (EntryTier.SSD, 2)
    assert manager.stats().counters.restored == 4
    assert manager.stats().models == 1
    manager.check()


def test_files_that_are_not_taken_over_are_ordered_away() -> None:
    manager = with_ssd(ssd_bytes=3 * PAGE)
    put(manager, 1)
    manager.set_quotas({"poor": PAGE})
    poor = Space("poor", "layout")
    assert manager.restore(SPACE, named(1), Kind.CONTEXT, PAGE, 1, 0.0, 0.0) is None  # DRAM has a newer copy
    assert manager.restore(SPACE, named(2), Kind.CONTEXT, 4 * PAGE, 1, 0.0, 0.0) is None
    assert manager.restore(poor, named(3), Kind.CONTEXT, 2 * PAGE, 1, 0.0, 0.0) is None
    assert manager.take_orders() == (
        Unlink(SPACE, named(1), Kind.CONTEXT),
        Unlink(SPACE, named(2), Kind.CONTEXT),
        Unlink(poor, named(3), Kind.CONTEXT),
    )
    manager.check()


def test_a_slab_of_other_blocks_is_emptied_when_they_are_the_coldest() -> None:
    manager = small_manager(slabs=12, slab_pages=16)
    put(manager, *range(160))
    put(manager, 200, 201, 202, 203, pages=8)
    put(manager, 204, pages=8)
    assert tiers(manager).keys() == {*range(16, 160), *range(200, 205)}
    manager.check()


def test_many_wishes_for_one_place_are_tried_a_few_at_a_time() -> None:
    manager = with_ssd()
    for index in range(40):
        manager.restore(SPACE, named(index), Kind.CONTEXT, PAGE, index, 0.0, 0.0)
    manager.reserve(SPACE, [(named(100 + index), PAGE) for index in range(4)], 1, 0.0)
    manager.promote(range(1, 41), 1, 0.0)
    assert manager.stats().waiting == 40
    manager.client_gone(1, 0.0)
    assert manager.stats().loading == 4
    assert manager.stats().waiting == 36
    manager.check()


def test_many_leased_files_at_the_cold_end_are_no_reason_to_search_on() -> None:
    manager = with_ssd(ssd_bytes=100 * PAGE)
    for index in range(100):
        manager.restore(SPACE, named(index), Kind.CONTEXT, PAGE, index, 0.0, 0.0)
    manager.lookup(SPACE, [named(index) for index in range(70)], 1, 0.0)
    assert manager.restore(SPACE, named(100), Kind.CONTEXT, PAGE, 100, 0.0, 0.0) is not None  # used ones are hot
    manager.lookup(SPACE, [named(index) for index in range(70, 101)], 2, 0.0)
    manager.release(range(71, 102), 2, 0.0)
    assert manager.restore(SPACE, named(101), Kind.CONTEXT, PAGE, 101, 0.0, 0.0) is None
    manager.check()


def test_a_file_of_that_name_that_is_being_written_is_left_alone() -> None:
    manager = with_ssd(write_through=True)
    put(manager, 1)
    assert spills(manager) == [1]
    manager.distrust(1, 0.0)
    assert manager.restore(SPACE, named(1), Kind.CONTEXT, PAGE, 1, 0.0, 0.0) is None
    assert manager.take_orders() == ()


def test_a_whole_slab_that_is_colder_goes_before_an_entry_of_the_same_size() -> None:
    manager = small_manager(slabs=3)
    put(manager, *range(8))
    put(manager, 100, pages=4)
    put(manager, 101, pages=4)
    assert tiers(manager).keys() == {*range(4, 8), 100, 101}


def test_but_not_if_it_would_have_to_be_written_first() -> None:
    manager = with_ssd(slabs=3, write_through=True, max_spills=1)
    put(manager, 100, pages=4)
    assert spills(manager) == [1]
    put(manager, *range(8))
    manager.lookup(SPACE, [named(100)], 1, 0.0, lease_s=0.0)
    manager.tick(0.0)
    manager.spilled(1, True, 0.0)
    assert tiers(manager)[100] == "both"
    assert try_reserve(manager, 101, pages=4) == ["granted"]
    assert tiers(manager) == {100: "ssd", **dict.fromkeys(range(8), "dram")}
    manager.check()


def test_a_small_server_has_small_slabs_for_many_sizes() -> None:
    manager = small_manager(capacity_bytes=8 << 20, slab_bytes=2 << 20)
    for pages in range(1, 31):
        put(manager, pages, pages=pages)
    assert len(tiers(manager)) == 30  # four slabs would fit four sizes
    manager.check()


def test_a_large_file_takes_the_place_of_several() -> None:
    manager = with_ssd(ssd_bytes=4 * PAGE)
    for index in range(4):
        manager.restore(SPACE, named(index), Kind.CONTEXT, PAGE, index, 0.0, 0.0)
    manager.restore(SPACE, named(9), Kind.CONTEXT, 3 * PAGE, 9, 0.0, 0.0)
    assert tiers(manager) == {3: "ssd", 9: "ssd"}
    assert len(manager.take_orders()) == 3
