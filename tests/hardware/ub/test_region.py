"""The region table: a state machine against a plain list, and each refusal."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from hardware.errors import UbCorruptError, UbFullError, UbRangeError, UbStaleError
from hardware.ub.process import ProcessStamp
from hardware.ub.region import ENTRY, RegionTable, UbRegion, round_up

START, END, ENTRIES = 4096, 4096 + 1000, 6
HOLDERS = tuple(ProcessStamp(pid, 10 * pid, 1) for pid in (1, 2, 3))


def make(entries: int = ENTRIES) -> RegionTable:
    return RegionTable(np.zeros(entries, ENTRY), START, END)


class TableMachine(RuleBasedStateMachine):
    """Compares the table with a list of the regions that must be live."""

    regions = Bundle("regions")
    gone = Bundle("gone")

    def __init__(self) -> None:
        super().__init__()
        self.table = make()
        self.live: list[UbRegion] = []
        self.generation = 0

    def fits_at(self, nbytes: int, align: int) -> int | None:
        """First fit by trying every aligned place."""
        for place in range(round_up(START, align), END - nbytes + 1, align):
            if all(place + nbytes <= r.offset or r.offset + r.nbytes <= place for r in self.live):
                return place
        return None

    @rule(
        target=regions,
        nbytes=st.integers(1, 500),
        align=st.sampled_from([1, 2, 8, 64, 256]),
        holder=st.sampled_from(HOLDERS),
    )
    def allocate(self, nbytes: int, align: int, holder: ProcessStamp) -> UbRegion | None:
        self.generation += 1
        place = self.fits_at(nbytes, align)
        if place is None or len(self.live) == ENTRIES:
            with pytest.raises(UbFullError):
                self.table.allocate(nbytes, "who", align, holder, self.generation)
            return None
        region = self.table.allocate(nbytes, "who", align, holder, self.generation)
        assert region == UbRegion(place, nbytes, self.generation, "who", holder)
        self.live.append(region)
        return region

    @rule(target=gone, region=consumes(regions))
    def release(self, region: UbRegion | None) -> UbRegion | None:
        if region is not None:
            self.table.require_live(region.generation, "who")
            self.table.release(region)
            self.live.remove(region)
        return region

    @rule(region=gone)
    def release_again(self, region: UbRegion | None) -> None:
        if region is not None:
            with pytest.raises(UbStaleError):
                self.table.release(region)
            with pytest.raises(UbStaleError):
                self.table.require_live(region.generation, "who")

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.table.check()
        assert list(self.table.regions()) == sorted(self.live, key=lambda region: region.offset)
        assert self.table.holders() == {region.process for region in self.live}
        used = sum(region.nbytes for region in self.live)
        assert self.table.used_bytes == used
        assert self.table.free_bytes == sum(size for _, size in self.table.holes()) == 1000 - used


TestTableMachine = TableMachine.TestCase


def test_a_refusal_says_what_was_asked_what_is_free_and_who_holds() -> None:
    table = make()
    first = table.allocate(300, "prefill-0", 1, HOLDERS[0], 1)
    table.allocate(300, "decode-0", 1, HOLDERS[1], 2)
    table.release(first)
    with pytest.raises(UbFullError) as caught:
        table.allocate(500, "prefill-1", 1, HOLDERS[2], 3)
    for part in ("'prefill-1'", "500 B", "free are 700 B", "largest hole is 400 B", "decode-0 300 B", "release"):
        assert part in str(caught.value)
    table = make(entries=1)
    table.allocate(1, "a", 1, HOLDERS[0], 1)
    with pytest.raises(UbFullError, match="all 1 table entries are in use"):
        table.allocate(1, "b", 1, HOLDERS[0], 2)


@pytest.mark.parametrize(("nbytes", "align"), [(0, 1), (-1, 1), (1, 0), (1, 3), (1, -4)])
def test_sizes_and_alignments_that_cannot_be(nbytes: int, align: int) -> None:
    with pytest.raises(UbRangeError, match="power of two"):
        make().allocate(nbytes, "a", align, HOLDERS[0], 1)


def test_names_are_kept_as_far_as_they_fit_and_generations_of_nobody_are_stale() -> None:
    table = make()
    assert table.allocate(1, "é" * 60, 1, HOLDERS[0], 1).owner == "é" * 40
    assert table.allocate(1, "预填-0", 1, HOLDERS[0], 2).owner == "预填-0"
    table = make()
    table.allocate(1, "a", 1, HOLDERS[0], 1)
    for generation in (0, 2, -1):  # 0 marks the free entries
        with pytest.raises(UbStaleError, match="treat its bytes as lost"):
            table.require_live(generation, "a")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("offset", START + 100, "overlaps its neighbour"),
        ("offset", START - 1, "overlaps its neighbour"),
        ("nbytes", 0, "overlaps its neighbour"),
        ("nbytes", 2000, "overlaps its neighbour"),
        ("generation", 2, "same generation"),
    ],
)
def test_check_finds_a_spoilt_table(column: str, value: int, message: str) -> None:
    entries = np.zeros(4, ENTRY)
    table = RegionTable(entries, START, END)
    table.allocate(100, "a", 1, HOLDERS[0], 1)
    table.allocate(100, "b", 1, HOLDERS[0], 2)
    table.check()
    entries[column][0] = value
    with pytest.raises(UbCorruptError, match=message):
        table.check()
