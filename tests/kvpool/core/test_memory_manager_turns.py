"""An entry that cannot be served delays no other, and a chain is evicted from its tail."""

import pytest

from serving.kvpool.core.entry import Kind, LoadFromSsd, Space, Spill
from serving.kvpool.core.memory_manager import MemoryManager
from tests.kvpool.core.ledger_driver import PAGE, SPACE, named, put, small_manager, tiers, try_reserve, with_ssd

OTHER = Space("other", SPACE.layout)


def carry_out(manager: MemoryManager, now: float) -> list[int]:
    """Execute all commands. Returns: loaded versions."""
    loads = []
    while orders := manager.take_orders():
        for order in orders:
            if isinstance(order, Spill):
                manager.spilled(order.version, True, now)
            elif isinstance(order, LoadFromSsd):
                manager.loaded(order.version, True, now)
                loads.append(order.version)
    return loads


def test_wishes_that_find_no_room_do_not_hold_up_those_of_others() -> None:
    manager = with_ssd(slabs=16)
    at_quota = 40
    wished = [manager.restore(SPACE, named(i), Kind.CONTEXT, PAGE, i, 0.0, 0.0) for i in range(at_quota)]
    wanted = manager.restore(OTHER, named(99), Kind.CONTEXT, PAGE, 99, 0.0, 0.0)
    assert wanted is not None
    manager.set_quotas({SPACE.namespace: at_quota * PAGE})  # and a load needs a page more
    put(manager, *range(100, 164), space=Space("third", SPACE.layout))
    manager.lookup(SPACE, [named(i) for i in range(at_quota)], 1, 0.0, lease_s=100.0)
    manager.lookup(OTHER, [named(99)], 2, 0.0, lease_s=100.0)
    manager.promote([version for version in wished if version is not None], 1, 0.0)
    manager.promote([wanted], 2, 0.0)
    loaded = carry_out(manager, 0.0)
    now = 0.0
    while wanted not in loaded and now < 4.0:
        now += 0.02
        manager.tick(now)
        loaded += carry_out(manager, now)
    assert wanted in loaded
    manager.check()


@pytest.mark.parametrize("eviction", ["lru", "cost"])
def test_a_chain_that_is_written_again_leaves_from_its_tail(eviction: str) -> None:
    manager = small_manager(slabs=2, eviction=eviction)
    chain = (1, 2, 3, 4, 5, 6)
    grants = manager.reserve(SPACE, [(named(i), PAGE) for i in chain], 1, 0.0)
    for grant, index in zip(reversed(grants), reversed(chain), strict=True):
        assert manager.commit(grant.version, index, 1, 0.0)
    assert try_reserve(manager, *chain, now=1.0) == ["present"] * 6
    put(manager, 11, 12, 13, 14, 15, now=2.0)
    assert [index for index in chain if index in tiers(manager)] == [1, 2, 3]


def test_while_a_write_hangs_what_is_cold_is_dropped() -> None:
    manager = with_ssd()
    put(manager, 1, 2, 3, 4)
    manager.disk_hangs(True)
    put(manager, 5)
    assert tiers(manager).keys() == {2, 3, 4, 5}
    assert manager.take_orders() == ()
    manager.disk_hangs(False)
    assert try_reserve(manager, 6) == ["full"]
    (spill,) = manager.take_orders()
    assert isinstance(spill, Spill)
    manager.check()


def test_what_the_disk_cannot_read_just_now_stays() -> None:
    manager = with_ssd()
    version = manager.restore(SPACE, named(1), Kind.CONTEXT, PAGE, 1, 0.0, 0.0)
    assert version is not None
    for unreadable, there in ((True, {1: "ssd"}), (False, {})):
        manager.promote([version], 1, 0.0)
        (load,) = manager.take_orders()
        assert isinstance(load, LoadFromSsd)
        manager.loaded(version, False, 0.0, unreadable=unreadable)
        manager.release([version], 1, 0.0)
        assert tiers(manager) == there
        manager.check()
    assert manager.stats().counters.promotion_failures == 2


def test_what_is_there_does_not_leave_for_what_is_written_behind_it() -> None:
    manager = small_manager(slabs=1)
    put(manager, 1, 2, 3, 4)
    assert try_reserve(manager, 5, 6, 1, 2, now=1.0) == ["granted", "granted", "present", "present"]
