"""Extents of many sizes: refusals, reuse of memory between sizes, and a machine over all of it."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.errors import LedgerError
from serving.kvpool.core.free_runs import FreeRuns
from serving.kvpool.core.slab_allocator import QUANTUM, SlabAllocator

KIB = 1024
MIB = 1024 * KIB


def fill(allocator: SlabAllocator, nbytes: int) -> list[int]:
    """Allocate until the region is full."""
    taken = []
    while (offset := allocator.allocate(nbytes)) is not None:
        taken.append(offset)
    return taken


def test_small_blocks_share_a_slab_and_sizes_do_not() -> None:
    allocator = SlabAllocator(8 * MIB, 2 * MIB)
    small = [allocator.allocate(16 * KIB) for _ in range(128)]
    assert {offset // (2 * MIB) for offset in small if offset is not None} == {small[0] // (2 * MIB)}  # type: ignore[operator]
    other = allocator.allocate(32 * KIB)
    assert other is not None
    assert other // (2 * MIB) != small[0] // (2 * MIB)  # type: ignore[operator]
    allocator.check()


def test_a_large_object_takes_a_run_of_slabs() -> None:
    allocator = SlabAllocator(16 * MIB, 2 * MIB)
    assert allocator.allocate(9 * MIB) is not None
    assert allocator.allocate(7 * MIB) is None  # three slabs of two are left
    assert allocator.allocate(6 * MIB) is not None
    assert allocator.fragmentation().free_bytes == 0
    allocator.check()


def test_blocks_that_would_waste_a_slab_share_several() -> None:
    allocator = SlabAllocator(30 * MIB, 2 * MIB)
    blocks = fill(allocator, 1100 * KIB)
    assert len(blocks) == 25  # five in each run of three slabs; one in each slab would be fifteen
    allocator.check()


def test_without_neighbours_a_shorter_run_will_do() -> None:
    allocator = SlabAllocator(8 * MIB, 2 * MIB)
    slabs = fill(allocator, 2 * MIB)
    allocator.free(slabs[0])
    allocator.free(slabs[2])
    assert allocator.allocate(1100 * KIB) is not None
    assert allocator.allocate(1100 * KIB) is not None
    allocator.check()


def test_a_region_that_is_no_multiple_of_a_slab_loses_its_end() -> None:
    allocator = SlabAllocator(5 * MIB, 2 * MIB)
    assert allocator.capacity_bytes == 4 * MIB
    assert not allocator.fits(5 * MIB)
    assert not allocator.fits(0)
    assert allocator.fragmentation().tail_bytes == MIB


def test_a_region_smaller_than_a_slab_is_one_slab() -> None:
    allocator = SlabAllocator(MIB + 1, 2 * MIB)
    assert allocator.capacity_bytes == MIB
    assert allocator.allocate(MIB) == 0


def test_fragmentation_tells_where_every_byte_is() -> None:
    allocator = SlabAllocator(9 * MIB, 2 * MIB)
    kept = [allocator.allocate(300 * KIB - 1), allocator.allocate(4 * MIB - 5)]
    assert None not in kept
    told = allocator.fragmentation()
    assert told.live_bytes == 300 * KIB - 1 + 4 * MIB - 5
    assert told.free_bytes == told.largest_run_bytes == 2 * MIB
    parts = (told.live_bytes, told.rounding_bytes, told.idle_bytes, told.tail_bytes, told.free_bytes)
    assert sum(parts) == 9 * MIB


def test_a_closed_span_gives_nothing_out_until_it_is_opened_again() -> None:
    allocator = SlabAllocator(2 * MIB, MIB)
    first = allocator.allocate(256 * KIB)
    assert first is not None
    span = allocator.span_at(first)
    allocator.close(span)
    allocator.check()
    taken = fill(allocator, 256 * KIB)
    assert len(taken) == 4
    assert all(allocator.span_at(offset) is not span for offset in taken)
    allocator.reopen(span)
    allocator.reopen(span)
    allocator.check()
    assert len(fill(allocator, 256 * KIB)) == 3


def test_a_closed_span_that_ran_empty_is_gone() -> None:
    allocator = SlabAllocator(MIB, MIB)
    first = allocator.allocate(256 * KIB)
    assert first is not None
    span = allocator.span_at(first)
    allocator.close(span)
    allocator.free(first)
    allocator.reopen(span)
    allocator.check()
    assert allocator.allocate(MIB) == 0


def test_a_full_span_can_be_closed_and_opened() -> None:
    allocator = SlabAllocator(MIB, MIB)
    taken = fill(allocator, 512 * KIB)
    span = allocator.span_at(taken[0])
    allocator.close(span)
    allocator.reopen(span)
    allocator.check()
    allocator.close(span)
    allocator.free(taken[0])
    assert allocator.allocate(512 * KIB) is None
    allocator.check()


def test_what_is_refused() -> None:
    with pytest.raises(LedgerError, match="no room for a page"):
        SlabAllocator(QUANTUM - 1, MIB)
    with pytest.raises(LedgerError, match="no room for a page"):
        SlabAllocator(MIB, 100)
    allocator = SlabAllocator(MIB, MIB)
    with pytest.raises(LedgerError, match="asked for"):
        allocator.allocate(MIB + 1)
    with pytest.raises(LedgerError, match="not in use"):
        allocator.free(0)
    with pytest.raises(LedgerError, match="no span"):
        allocator.span_at(0)
    with pytest.raises(LedgerError, match="no span"):
        allocator.charge_at(0)
    offset = allocator.allocate(1)
    assert offset is not None
    allocator.free(offset)
    with pytest.raises(LedgerError, match="not in use"):
        allocator.free(offset)


def test_free_runs_refuse_what_cannot_be() -> None:
    with pytest.raises(LedgerError, match="at least one slab"):
        FreeRuns(0)
    runs = FreeRuns(4)
    with pytest.raises(LedgerError, match="given back, of 4"):
        runs.give(3, 2)
    with pytest.raises(LedgerError, match="twice"):
        runs.give(0, 1)
    assert runs.take(5) is None
    assert (runs.take(4), runs.longest) == (0, 0)


def test_the_shortest_run_that_fits_is_taken() -> None:
    runs = FreeRuns(10)
    assert runs.take(10) == 0
    runs.give(0, 3)
    runs.give(5, 1)
    runs.give(7, 2)
    assert runs.take(2) == 7
    assert runs.take(1) == 5
    assert runs.free_set() == {0, 1, 2}
    runs.check()


def double_slab(allocator: SlabAllocator) -> None:
    allocator._spans[0].slabs = 2


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (double_slab, "in two spans"),
        (lambda a: a._live.pop(0), "in two places or in none"),
        (lambda a: a._open.clear(), "listed wrongly"),
        (lambda a: setattr(a, "charged_bytes", 1), "their spans disagree"),
    ],
)
def test_check_finds_what_is_wrong(break_it: Callable[[Any], object], message: str) -> None:
    allocator = SlabAllocator(4 * MIB, MIB)
    for nbytes in (QUANTUM, 2 * QUANTUM):
        allocator.allocate(nbytes)
    allocator.check()
    break_it(allocator)
    with pytest.raises(LedgerError, match=message):
        allocator.check()


class AllocatorMachine(RuleBasedStateMachine):
    """Compared with a model that only records the owner of each byte."""

    @initialize(slabs=st.integers(1, 12), slab_pages=st.integers(1, 9))
    def build(self, slabs: int, slab_pages: int) -> None:
        self.allocator = SlabAllocator(slabs * slab_pages * QUANTUM, slab_pages * QUANTUM)
        self.taken: dict[int, int] = {}

    @rule(pages=st.integers(1, 30), less=st.integers(0, QUANTUM - 1))
    def allocate(self, pages: int, less: int) -> None:
        nbytes = pages * QUANTUM - less
        if not self.allocator.fits(nbytes):
            return
        offset = self.allocator.allocate(nbytes)
        if offset is None:
            return
        assert offset % QUANTUM == 0
        assert 0 <= offset <= self.allocator.capacity_bytes - nbytes
        assert all(offset + nbytes <= other or other + size <= offset for other, size in self.taken.items())
        self.taken[offset] = nbytes

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 1000))
    def free(self, which: int) -> None:
        offset = list(self.taken)[which % len(self.taken)]
        del self.taken[offset]
        self.allocator.free(offset)

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 1000), opening=st.booleans())
    def close(self, which: int, opening: bool) -> None:
        span = self.allocator.span_at(list(self.taken)[which % len(self.taken)])
        (self.allocator.reopen if opening else self.allocator.close)(span)

    @rule()
    def empty(self) -> None:
        """After any history an empty region has space for the largest object."""
        for offset in self.taken:
            self.allocator.free(offset)
        self.taken.clear()
        assert self.allocator.allocate(self.allocator.capacity_bytes) == 0
        self.allocator.free(0)
        assert self.allocator.charged_bytes == 0

    @invariant()
    def balances(self) -> None:
        if hasattr(self, "allocator"):
            self.allocator.check()
            told = self.allocator.fragmentation()
            assert told.live_bytes == sum(self.taken.values())
            assert 0 <= self.allocator.charged_bytes <= self.allocator.capacity_bytes


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=30, stateful_step_count=40)


def test_a_smaller_quantum_packs_small_objects() -> None:
    allocator = SlabAllocator(64 * 1024, 4096, quantum=64)
    offsets = [allocator.allocate(50) for _ in range(1024)]
    assert sorted(offset for offset in offsets if offset is not None) == list(range(0, 64 * 1024, 64))
    assert allocator.allocate(1) is None
