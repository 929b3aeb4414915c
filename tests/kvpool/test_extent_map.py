"""Mappings of single entries: contents, layout, lifetime."""

import gc
from pathlib import Path

import pytest

from hardware.ub.pages import let_go
from hardware.ub.segment import UbSegment
from serving.errors import PoolUnreachableError
from serving.kvpool.live.segments import HUGE_PAGE, ExtentMap
from serving.model.image import address_of
from tests.hardware.ub.resident import resident_bytes

MIB = 1 << 20


@pytest.fixture
def segment(segments: Path) -> UbSegment:
    return UbSegment.create(segments / "seg", 8 * MIB)


def mappings(path: Path) -> int:
    """Number of this process's mappings of a file."""
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.parametrize("skip", [0, 64, 4096, 4096 + 64, HUGE_PAGE - 64])
def test_a_writer_and_a_reader_see_the_same_bytes(segment: UbSegment, skip: int) -> None:
    region = segment.allocate(6 * MIB, "test")
    path, offset = str(segment.path), region.offset + skip
    writer = ExtentMap(path, offset, 3 * MIB, writable=True).memory
    writer[:4], writer[-4:] = b"head", b"tail"
    reader = ExtentMap(path, offset, 3 * MIB).memory
    assert (bytes(reader[:4]), bytes(reader[-4:])) == (b"head", b"tail")
    assert reader.readonly
    assert len(reader) == 3 * MIB
    assert bytes(segment.read(offset, 4)) == b"head"
    assert (address_of(reader) - offset) % HUGE_PAGE == 0


def test_a_mapping_lives_as_long_as_any_part_of_its_memory(segment: UbSegment) -> None:
    region = segment.allocate(MIB, "test")
    segment.view(region)[:5] = b"hello"
    before = mappings(segment.path)
    part = ExtentMap(str(segment.path), region.offset, MIB).memory[1:3]
    gc.collect()
    assert mappings(segment.path) == before + 1
    segment.remove()
    assert bytes(part) == b"el"
    del part
    gc.collect()
    assert mappings(segment.path) <= before


def test_huge_pages_leave_the_bytes_alone(segment: UbSegment) -> None:
    region = segment.allocate(6 * MIB, "test")
    extent = ExtentMap(str(segment.path), region.offset, 6 * MIB, writable=True)
    content = bytes(range(256)) * (6 * MIB // 256)
    extent.memory[:] = content
    extent.use_huge_pages()  # whether the kernel can is its business
    assert bytes(segment.view(region)) == content
    small = ExtentMap(str(segment.path), region.offset, MIB)
    assert not small.use_huge_pages()


def test_what_is_not_there_cannot_be_mapped(segment: UbSegment, segments: Path) -> None:
    end = segment.path.stat().st_size
    for offset, nbytes in ((end, 1), (0, end + 1), (-4096, 10), (4096, 0)):
        with pytest.raises(PoolUnreachableError):
            ExtentMap(str(segment.path), offset, nbytes)
    with pytest.raises(PoolUnreachableError, match="no UB segment"):
        ExtentMap(str(segments / "other"), 0, 10)
    (segments / "text").write_text("no segment at all, but long enough to hold a header of one " * 10)
    with pytest.raises(PoolUnreachableError, match="no UB segment"):
        ExtentMap(str(segments / "text"), 0, 10)


def test_parts_that_are_let_go_do_not_come_back_with_their_neighbours(segment: UbSegment) -> None:
    """A huge page would restore them."""
    region = segment.allocate(6 * MIB, "test")
    segment.view(region)[:] = bytes([1]) * region.nbytes
    writer = ExtentMap(str(segment.path), region.offset, region.nbytes, writable=True)
    writer.use_huge_pages()  # if the kernel supports it; otherwise no page could return
    reader = ExtentMap(str(segment.path), region.offset, region.nbytes).memory
    assert sum(reader[::4096]) == region.nbytes // 4096
    parts = [reader[start + 100_000 : start + 900_000] for start in range(0, region.nbytes, MIB)]
    assert let_go(parts) >= 800_000 * len(parts)
    assert [reader[start + 5000] for start in range(0, region.nbytes, MIB)] == [1] * len(parts)
    assert sum(map(resident_bytes, parts)) == 0
    assert bytes(parts[3]) == bytes([1]) * 800_000
