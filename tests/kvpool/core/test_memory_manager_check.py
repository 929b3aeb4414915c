"""A ledger that does not balance is detected, for every kind of defect."""

from collections.abc import Callable

import pytest

from serving.errors import LedgerError
from serving.kvpool.core.entry import Kind, LoadFromSsd
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.memory_manager import MemoryManager
from serving.kvpool.core.quotas import Account
from serving.kvpool.core.slab_allocator import SlabAllocator
from tests.kvpool.core.ledger_driver import PAGE, SPACE, named, put, small_manager, try_reserve

Break = Callable[[Inventory], object]


def inside(manager: MemoryManager) -> Inventory:
    """The internal state that `check` inspects."""
    return manager._inventory


def busy_manager() -> MemoryManager:
    """One entry in every state: 1 on SSD, 2 loading, 3 held, 4 leased, 5 idle, 6 spilling, 7 written, 8 hidden."""
    manager = small_manager(slabs=4, ssd_bytes=100 * PAGE)
    for index in (1, 2):
        manager.restore(SPACE, named(index), Kind.CONTEXT, PAGE, index, 0.0, 0.0)
    manager.promote([2], 1, 0.0)
    manager.release([2], 1, 0.0)
    assert isinstance(manager.take_orders()[0], LoadFromSsd)
    put(manager, 3, kind=Kind.MODEL)
    put(manager, 4, 5, 6)
    manager.hold(3, 1, 0.0)
    manager.lookup(SPACE, [named(4)], 1, 0.0)
    manager._spills.start(inside(manager).by_version[6], leaving=True)
    assert try_reserve(manager, 7) == ["granted"]
    put(manager, 8)
    manager.lookup(SPACE, [named(8)], 1, 0.0)
    manager.distrust(8, 0.0)
    manager.check()
    return manager


def set_to(index: int, **values: object) -> Break:
    """Set attributes of one entry to other values."""

    def change(inventory: Inventory) -> None:
        for name, value in values.items():
            setattr(inventory.by_version[index], name, value)

    return change


def swap_versions(inventory: Inventory) -> None:
    inventory.by_version[4], inventory.by_version[5] = inventory.by_version[5], inventory.by_version[4]


def misfile(inventory: Inventory) -> None:
    known = inventory.spaces()[SPACE]
    known[named(4)], known[named(5)] = known[named(5)], known[named(4)]


def lose_account(inventory: Inventory) -> None:
    del inventory.accounts._accounts["tenant"]


def overlap(inventory: Inventory) -> None:
    """Make an entry larger than its extent, consistently in all records."""
    entry = inventory.by_version[4]
    entry.nbytes = entry.nbytes + PAGE
    inventory.allocator.live[entry.offset] = entry.nbytes
    entry.answer = None


def shrink(inventory: Inventory) -> None:
    inventory.by_version[5].nbytes = 5


def account(inventory: Inventory) -> Account:
    return inventory.accounts.of("tenant")


BROKEN: list[tuple[Break, str]] = [
    (swap_versions, "filed as"),
    (set_to(7, in_dram=True), "being written and more"),
    (set_to(2, on_ssd=False), "loaded from nowhere"),
    (set_to(6, on_ssd=True), "spilled from nowhere"),
    (set_to(5, leaving=True), "leaves without a spill"),
    (set_to(1, holders={1}), "held without being in DRAM"),
    (set_to(8, leases=0), "hidden and not in use"),
    (set_to(8, on_ssd=True), "hidden and has a file"),
    (set_to(1, on_ssd=False), "is nowhere"),
    (set_to(1, offset=0), "does not need"),
    (set_to(5, shown=False), "found although it must not be"),
    (set_to(4, checksum=77), "lookups answer"),
    (lambda i: i.spaces().setdefault(SPACE.__class__("x", "y"), {}), "empty and still there"),
    (misfile, "under another hash"),
    (lambda i: setattr(i, "shown", 1), "are counted"),
    (lambda i: i.models.clear(), "models are missed"),
    (lambda i: setattr(i, "hidden", 5), "5 hidden|filed and"),
    (lambda i: i.at.popitem(), "map of their extents"),
    (shrink, "the allocator disagree"),
    (lambda i: i.policy.remove(5), "order of eviction"),
    (lambda i: i.ssd_order.remove(next(iter(i.ssd_order))), "order of the SSD tier"),
    (set_to(4, leases=2), "leases of clients"),
    (lambda i: setattr(i.leases, "leased", 7), "count of leased"),
    (lambda i: i.reservations._of.clear(), "reservations of clients"),
    (lambda i: setattr(account(i), "dram_bytes", 1), "account of tenant"),
    (lambda i: account(i).shown.popitem(), "order of tenant"),
    (lose_account, "without account"),
    (lambda i: setattr(i, "ssd_used_bytes", 0), "bytes on SSD"),
    (set_to(6, leaving=False), "account of tenant"),
]


@pytest.mark.parametrize(("break_it", "message"), BROKEN)
def test_check_finds_what_is_wrong(break_it: Break, message: str) -> None:
    manager = busy_manager()
    break_it(inside(manager))
    with pytest.raises(LedgerError, match=message):
        manager.check()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda m: setattr(m._spills, "leaving_bytes", 0), "bytes are leaving"),
        (lambda m: setattr(m._promotions, "under_way", 0), "count of loads"),
        (lambda m: setattr(m, "_held", 0), "count of held"),
    ],
)
def test_check_finds_wrong_counts_of_what_is_under_way(
    break_it: Callable[[MemoryManager], object], message: str
) -> None:
    manager = busy_manager()
    break_it(manager)
    with pytest.raises(LedgerError, match=message):
        manager.check()


def test_an_extent_behind_the_end_is_seen() -> None:
    manager = small_manager(slabs=1)
    put(manager, 1, 2, 3, 4)
    inside(manager).allocator.capacity_bytes = 3 * PAGE
    with pytest.raises(LedgerError, match="behind the region"):
        manager.check()


def test_two_extents_in_one_place_are_seen_even_if_the_allocator_believes_in_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = busy_manager()
    overlap(inside(manager))
    monkeypatch.setattr(SlabAllocator, "check", lambda _self: None)
    with pytest.raises(LedgerError, match="begins inside another"):
        manager.check()
