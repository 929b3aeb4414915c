"""Writers and readers of one memory server: allocation of space, lookups, and leases."""

import pytest

from serving.errors import LedgerError
from serving.kvpool.core.entry import EntryTier, Grant, GrantStatus, Kind, Space
from serving.kvpool.core.writers import MODEL_LEASE_S
from tests.kvpool.core.ledger_driver import PAGE, SPACE, named, put, small_manager, tiers, try_reserve


def test_a_written_entry_is_found_where_it_was_written() -> None:
    manager = small_manager(base_offset=77 * PAGE)
    (grant,) = manager.reserve(SPACE, [(named(1), 100)], 1, 0.0)
    assert grant == Grant(GrantStatus.GRANTED, 1, 77 * PAGE)
    assert manager.lookup(SPACE, [named(1)], 2, 0.0) == (None,)
    assert manager.commit(grant.version, 4711, 1, 0.0)
    found, absent = manager.lookup(SPACE, [named(1), named(2)], 2, 0.0)
    assert absent is None
    assert found is not None
    assert (found.version, found.tier, found.offset, found.nbytes, found.checksum) == (
        1,
        EntryTier.DRAM,
        77 * PAGE,
        100,
        4711,
    )
    assert manager.found(1) == found
    assert manager.found(2) is None
    manager.check()


def test_nothing_is_written_twice() -> None:
    manager = small_manager()
    assert try_reserve(manager, 1, 1) == ["granted", "present"]
    (mine,) = manager.reserve(SPACE, [(named(1), PAGE)], 2, 0.0)
    assert mine.status is GrantStatus.PRESENT
    manager.commit(1, 0, 1, 0.0)
    assert try_reserve(manager, 1) == ["present"]
    assert manager.stats().counters.present == 3


def test_what_is_present_is_not_evicted_for_what_follows_it() -> None:
    manager = small_manager(slabs=1)
    put(manager, 1, 2, 3, 4)
    assert try_reserve(manager, 1, 5) == ["present", "granted"]
    assert tiers(manager).keys() == {1, 3, 4}


def test_an_entry_without_bytes_is_our_bug() -> None:
    with pytest.raises(LedgerError, match="of 0 bytes"):
        small_manager().reserve(SPACE, [(named(1), 0)], 1, 0.0)


def test_impossible_settings_are_our_bug() -> None:
    with pytest.raises(LedgerError, match="no room for a page"):
        small_manager(capacity_bytes=100)
    with pytest.raises(LedgerError, match="no eviction policy"):
        small_manager(eviction="luck")


@pytest.mark.parametrize("how", ["commit", "abort", "leave"])
def test_the_room_of_a_late_writer_is_nobody_elses_until_it_has_ended(how: str) -> None:
    """A process stopped in the middle of a copy continues it when it wakes."""
    manager = small_manager(slabs=1, write_lease_s=10.0)
    (late,) = manager.reserve(SPACE, [(named(1), PAGE)], 1, 0.0)
    assert try_reserve(manager, 1, 2, 3, 4, now=10.0) == ["granted"] * 3 + ["full"]
    assert {entry.offset for entry in manager.entries()}.isdisjoint({late.offset})
    manager.check()
    match how:
        case "commit":
            assert not manager.commit(late.version, 0, 1, 10.0)
        case "abort":
            manager.abort(late.version, 1, 10.0)
        case "leave":
            manager.client_gone(1, 10.0)
    assert try_reserve(manager, 4, now=10.0) == ["granted"]
    manager.check()


def test_a_model_may_be_written_for_longer() -> None:
    manager = small_manager(write_lease_s=10.0)
    (grant,) = manager.reserve(SPACE, [(named(1), PAGE)], 1, 5.0, Kind.MODEL)
    assert manager.commit(grant.version, 0, 1, 4 + MODEL_LEASE_S)
    manager.reserve(SPACE, [(named(2), PAGE)], 1, 5.0, Kind.MODEL)
    manager.tick(5 + MODEL_LEASE_S)
    assert manager.stats().counters.reservations_expired == 1


def test_a_lease_ends_by_release_by_time_and_with_its_client() -> None:
    manager = small_manager(slabs=1, lease_s=5.0)
    versions = put(manager, 1, 2, 3, 4)
    manager.lookup(SPACE, [named(i) for i in (1, 2, 3, 4)], 1, 0.0)
    manager.lookup(SPACE, [named(1)], 2, 0.0)
    assert manager.stats().leased == 4
    manager.release([*versions[:2], 99], 1, 0.0)
    assert manager.stats().leased == 3  # client 2 reads the first one, too
    manager.client_gone(1, 0.0)
    assert manager.stats().leased == 1
    assert manager.next_tick(0.0) == 5.0
    manager.tick(5.0)
    assert manager.stats().leased == 0
    assert manager.stats().counters.leases_expired == 1
    manager.release(versions, 2, 5.0)
    manager.check()


def test_looking_again_makes_a_lease_longer_never_shorter() -> None:
    manager = small_manager()
    put(manager, 1)
    manager.lookup(SPACE, [named(1)], 1, 0.0, lease_s=9.0)
    manager.lookup(SPACE, [named(1)], 1, 1.0, lease_s=1.0)
    manager.tick(8.9)
    assert manager.stats().leased == 1
    manager.lookup(SPACE, [named(1)], 1, 8.9, lease_s=2.0)
    manager.tick(10.8)
    assert manager.stats().leased == 1
    manager.tick(10.9)
    assert manager.stats().leased == 0


def test_of_a_chain_the_tail_leaves_first() -> None:
    manager = small_manager(slabs=1)
    put(manager, 1, 2, 3, 4)
    manager.lookup(SPACE, [named(i) for i in (1, 2, 3, 4)], 1, 0.0, lease_s=0.0)
    put(manager, 5, 6, now=1.0)
    assert tiers(manager).keys() == {1, 2, 5, 6}


def test_a_held_entry_stays_for_good() -> None:
    manager = small_manager(slabs=1)
    (version,) = put(manager, 1, pages=4, kind=Kind.MODEL)
    assert manager.hold(version, 7, 0.0)
    assert manager.hold(version, 7, 0.0)
    assert manager.hold(version, 8, 0.0)
    assert not manager.hold(99, 7, 0.0)
    assert try_reserve(manager, 2, now=1e6) == ["full"]
    assert manager.stats().held == 1
    manager.unhold(version, 7, 1e6)
    manager.unhold(version, 7, 1e6)
    assert not manager.remove(version, 1e6)
    manager.unhold(version, 8, 1e6)
    manager.unhold(99, 8, 1e6)
    assert manager.stats().held == 0
    assert try_reserve(manager, 2, now=1e6) == ["granted"]


def test_the_end_of_a_hold_is_a_use_of_a_model_but_not_of_a_block() -> None:
    manager = small_manager(slabs=1)
    model, block = *put(manager, 1, kind=Kind.MODEL), *put(manager, 2)
    put(manager, 3, 4)
    for version in (model, block):  # audits hold blocks to read them, and must not change the order
        manager.hold(version, 1, 0.0)
        manager.unhold(version, 1, 0.0)
    put(manager, 5, 6, 7)
    assert tiers(manager).keys() == {1, 5, 6, 7}


def test_distrusted_bytes_are_found_by_nobody_and_freed_when_nobody_reads() -> None:
    manager = small_manager(slabs=1)
    (version,) = put(manager, 1, pages=4)
    manager.lookup(SPACE, [named(1)], 1, 0.0)
    assert manager.distrust(version, 0.0)
    assert not manager.distrust(version, 0.0)
    assert manager.lookup(SPACE, [named(1)], 2, 0.0) == (None,)
    assert manager.found(version) is None
    assert not manager.hold(version, 1, 0.0)
    assert manager.usage() == {}
    assert manager.stats().hidden == 1
    assert try_reserve(manager, 1) == ["full"]
    manager.release([version], 1, 0.0)
    put(manager, 1, pages=4)
    assert manager.stats().hidden == 0
    manager.check()


def test_a_namespace_over_quota_gives_up_its_own_oldest() -> None:
    manager = small_manager(slabs=4)
    other = Space("other", "layout")
    put(manager, 9, space=other)
    manager.set_quotas({"tenant": 3 * PAGE, "nobody": 5})
    put(manager, 1, 2, 3)
    manager.lookup(SPACE, [named(1)], 1, 0.0, lease_s=0.0)
    manager.tick(0.0)
    put(manager, 4)
    assert tiers(manager).keys() == {9, 1, 3, 4}
    assert manager.usage()["tenant"].dram_bytes == 3 * PAGE
    assert manager.stats().counters.evicted_by_quota == 1


def test_over_quota_nothing_is_given_up_in_vain() -> None:
    manager = small_manager(slabs=4)
    manager.set_quotas({"tenant": 3 * PAGE})
    put(manager, 1, 2, 3)
    manager.lookup(SPACE, [named(2), named(3)], 1, 0.0)
    assert try_reserve(manager, 4, pages=2) == ["quota"]
    assert try_reserve(manager, 5, pages=4) == ["quota"]
    assert tiers(manager).keys() == {1, 2, 3}
    assert manager.stats().counters.refused == {"quota": 2}


def test_a_lowered_quota_shrinks_the_namespace_at_the_next_tick() -> None:
    manager = small_manager(slabs=4)
    put(manager, 1, 2, 3, now=0.0)
    manager.lookup(SPACE, [named(1)], 1, 1.0, lease_s=0.0)  # before it had a quota, its order was not recorded
    manager.set_quotas({"tenant": 2 * PAGE})
    manager.tick(1.0)
    assert tiers(manager).keys() == {1, 3}
    manager.lookup(SPACE, [named(3)], 1, 1.0)
    manager.set_quotas({"tenant": PAGE})
    manager.tick(1.0)
    assert tiers(manager).keys() == {3}
    manager.set_quotas({})
    put(manager, 4, 5, 6)
    manager.check()


def test_a_deleted_namespace_is_gone_at_once() -> None:
    manager = small_manager(slabs=4)
    versions = put(manager, 1, 2)
    put(manager, 3, space=Space("tenant", "other"))
    put(manager, 4, space=Space("other", "layout"))
    (grant,) = manager.reserve(SPACE, [(named(5), PAGE)], 1, 0.0)
    manager.lookup(SPACE, [named(1)], 1, 0.0)
    assert manager.delete_namespace("tenant", 0.0) == (4 * PAGE, 3)
    assert manager.lookup(SPACE, [named(1), named(2)], 2, 0.0) == (None, None)
    assert manager.usage().keys() == {"other"}
    assert manager.stats().hidden == 2  # one is read, one is written
    assert not manager.commit(grant.version, 0, 1, 0.0)
    manager.release(versions, 1, 0.0)
    assert manager.stats().hidden == 0
    assert manager.delete_namespace("tenant", 0.0) == (0, 0)
    assert manager.stats().counters.deleted == 3
    manager.check()


def test_statistics_and_views_tell_what_there_is() -> None:
    manager = small_manager(base_offset=PAGE, lease_s=3.0)
    put(manager, 1, now=2.0)
    put(manager, 2, now=2.0, kind=Kind.MODEL)
    manager.reserve(SPACE, [(named(3), PAGE)], 1, 2.0)
    manager.lookup(SPACE, [named(1), named(4)], 1, 4.0)
    stats = manager.stats()
    assert (stats.entries, stats.models, stats.writing, stats.leased) == (2, 1, 1, 1)
    assert (stats.dram_used_bytes, stats.dram_capacity_bytes) == (3 * PAGE, 8 * PAGE)
    counters = stats.counters
    assert (counters.lookups, counters.hits_dram, counters.misses, counters.puts) == (2, 1, 1, 2)
    assert counters.put_bytes == 2 * PAGE
    first, second = manager.entries()
    assert (first.leased, first.hits, first.last_use, first.offset) == (True, 1, 4.0, PAGE)
    assert (second.kind, second.leased, second.checksum) == (Kind.MODEL, False, 2)
    assert list(manager.entries(after=first.version)) == [second]
    assert manager.models() == (second,)
    assert manager.fragmentation().live_bytes == 3 * PAGE
    manager.lookup(SPACE, [named(1)], 1, 4.0)
    assert counters.lookups == 2  # a copy


def test_an_aborted_reservation_leaves_nothing() -> None:
    manager = small_manager()
    (grant,) = manager.reserve(SPACE, [(named(1), PAGE)], 1, 0.0)
    manager.abort(grant.version, 2, 0.0)
    assert manager.stats().writing == 1
    manager.abort(grant.version, 1, 0.0)
    manager.abort(grant.version, 1, 0.0)
    assert not manager.commit(grant.version, 0, 1, 0.0)
    stats = manager.stats()
    assert (stats.writing, stats.dram_used_bytes) == (0, 0)
    assert manager.usage() == {}
    manager.check()
