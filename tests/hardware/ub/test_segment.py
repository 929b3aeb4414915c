"""A segment in one process: regions, views, ranges, the end."""

import errno
import mmap
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from hardware.errors import (
    SpecError,
    UbBusyError,
    UbClosedError,
    UbCorruptError,
    UbFullError,
    UbRangeError,
    UbStaleError,
)
from hardware.ub import UbSegment, checksum
from hardware.ub import file as segment_file
from hardware.ub import segment as segment_module
from hardware.ub.file import open_file, remove_stale
from hardware.ub.process import ProcessStamp
from hardware.ub.region import PAGE
from hardware.units import MIB


def test_a_mapping_is_touched_before_its_first_use(shm: Path) -> None:
    size = 16 * MIB
    with UbSegment.create(shm / "ub", size) as made, UbSegment.attach(shm / "ub") as attached:
        for segment in (made, attached):
            region = segment.allocate(size, "a")
            view = np.frombuffer(segment.view(region), np.uint8)[::PAGE]
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            view[:] = 1
            assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < len(view) // 10
            segment.release(region)


def test_what_one_mapping_writes_the_other_reads(shm: Path) -> None:
    with UbSegment.create(shm / "ub", MIB) as writer, UbSegment.attach(shm / "ub") as reader:
        region = writer.allocate(1000, owner="prefill-0")
        writer.view(region)[:] = bytes(range(250)) * 4
        got = reader.read(region.offset, region.nbytes, region.generation)
        assert bytes(got) == bytes(range(250)) * 4
        assert got.readonly
        assert reader.session == writer.session
        assert reader.regions() == (region,) == writer.regions()
        assert (region.owner, region.process) == ("prefill-0", ProcessStamp.own())
        assert writer.owner == ProcessStamp.own()
    with UbSegment.create(shm / "arrays", MIB) as segment:
        region = segment.allocate(4096, "a")
        array = np.frombuffer(segment.view(region), np.float32)
        array[:] = 1.5
        assert checksum(segment.read(region.offset, 4096)) == checksum(np.full(1024, 1.5, np.float32).tobytes())


def test_regions_are_aligned_and_released(shm: Path) -> None:
    with UbSegment.create(shm / "ub", 4 * PAGE) as segment:
        first, second = segment.allocate(1, "a"), segment.allocate(1, "b")
        assert first.offset % PAGE == second.offset % PAGE == 0
        tight = segment.allocate(64, "c", align=64)
        assert tight.offset == first.offset + 64
        assert (segment.used_bytes, segment.free_bytes) == (66, 4 * PAGE - 66)
        for region in (first, second, tight):
            segment.release(region)
        segment.check()
        assert (segment.used_bytes, segment.regions()) == (0, ())
        assert segment.allocate(4 * PAGE, "all").generation == 4


def test_the_size_is_rounded_up_and_a_full_segment_or_table_refuses(shm: Path) -> None:
    with UbSegment.create(shm / "ub", PAGE + 1) as segment:
        assert segment.capacity_bytes == 2 * PAGE
        region = segment.allocate(2 * PAGE, "a")
        segment.view(region)[-1] = 7
        with pytest.raises(UbFullError, match="largest hole is 0 B"):
            segment.allocate(1, "b")
    with UbSegment.create(shm / "few", MIB, max_regions=2) as segment:
        segment.allocate(1, "a")
        segment.allocate(1, "b")
        with pytest.raises(UbFullError, match="all 2 table entries"):
            segment.allocate(1, "c")
        segment.check()


def test_a_released_region_is_stale_even_after_its_place_is_taken_again(shm: Path) -> None:
    with UbSegment.create(shm / "ub", MIB) as segment:
        old = segment.allocate(100, "a")
        segment.release(old)
        new = segment.allocate(100, "a")
        assert new.offset == old.offset
        for use in (segment.view, segment.release):
            with pytest.raises(UbStaleError, match="treat its bytes as lost"):
                use(old)
        with pytest.raises(UbStaleError):
            segment.read(old.offset, 100, old.generation)
        assert len(segment.read(old.offset, 100)) == 100


def test_ranges_sizes_owners_and_alignments_that_cannot_be(shm: Path) -> None:
    with UbSegment.create(shm / "ub", MIB) as segment:
        start, end = PAGE + 1024 * 128, PAGE + 1024 * 128 + MIB
        assert len(segment.read(end - 1, 1)) == 1
        assert len(segment.read(end, 0)) == 0
        for offset, nbytes in ((start - 1, 1), (0, 8), (end - 1, 2), (end + 1, 0), (start, -1), (start, 1 << 60)):
            with pytest.raises(UbRangeError, match="are outside"):
                segment.read(offset, nbytes)
        with UbSegment.create(shm / "larger", 4 * MIB) as larger:
            larger.allocate(2 * MIB, "a")
            with pytest.raises(UbRangeError, match="another segment"):
                segment.view(larger.allocate(MIB, "b"))
    for size, regions in ((0, 1), (-1, 1), (1, 0)):
        with pytest.raises(SpecError, match="above zero"):
            UbSegment.create(shm / "none", size, max_regions=regions)
    with pytest.raises(SpecError, match="cannot own a segment"):
        UbSegment.create(shm / "none", MIB, owner_pid=int(Path("/proc/sys/kernel/pid_max").read_text()) + 1)
    with UbSegment.create(shm / "odd", MIB) as segment, pytest.raises(UbRangeError):
        segment.allocate(1, "a", align=3)


def test_a_file_that_is_removed_while_it_is_made_is_made_anew(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start looks for stale files: an empty one looks incomplete until this process has its lock."""
    made: list[Path] = []

    def open_then_remove(path: Path, *, create: bool = False) -> int:
        fd = open_file(path, create=create)
        if create:
            made.append(path)
            if len(made) < removals:
                assert remove_stale(shm, "ub") == [path]
        return fd

    monkeypatch.setattr(segment_file, "open_file", open_then_remove)
    removals = 3
    with UbSegment.create(shm / "ub", MIB) as segment:
        segment.check()
        assert len(made) == removals
        segment.remove()
    made.clear()
    removals = 100
    with pytest.raises(UbBusyError, match="removed 16 times"):
        UbSegment.create(shm / "ub", MIB)
    assert list(shm.iterdir()) == []


def test_after_close_nothing_works_but_views(shm: Path) -> None:
    segment = UbSegment.create(shm / "ub", MIB)
    region = segment.allocate(10, "a")
    view = segment.view(region)
    segment.close()
    segment.close()
    view[:] = b"0123456789"
    for use in (
        lambda: segment.allocate(1, "a"),
        lambda: segment.release(region),
        lambda: segment.view(region),
        lambda: segment.read(region.offset, 1),
        lambda: segment.used_bytes,
        segment.regions,
        segment.check,
        segment.snapshot,
    ):
        with pytest.raises(UbClosedError, match="attach again"):
            use()
    with UbSegment.attach(shm / "ub") as again:
        assert bytes(again.read(region.offset, 10, region.generation)) == b"0123456789"


def test_close_gives_the_descriptors_and_the_mapping_back(shm: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    UbSegment.create(shm / "ub", MIB).close()
    for _ in range(20):
        with UbSegment.attach(shm / "ub") as segment:
            segment.release(segment.allocate(1, "a"))
    assert len(os.listdir("/proc/self/fd")) == before
    assert str(shm) not in Path("/proc/self/maps").read_text()


def test_remove_takes_the_file_away_but_not_a_later_one(shm: Path) -> None:
    first = UbSegment.create(shm / "ub", MIB)
    other = UbSegment.attach(shm / "ub")
    view = other.view(other.allocate(1, "a"))
    first.remove()
    first.remove()
    assert not (shm / "ub").exists()
    view[0] = 1  # a mapping keeps its memory
    second = UbSegment.create(shm / "ub", MIB)
    other.remove()
    assert (shm / "ub").exists()
    second.remove()
    assert list(shm.iterdir()) == []


def test_check_finds_what_was_overwritten_and_a_snapshot_names_the_owners(shm: Path) -> None:
    with UbSegment.create(shm / "named", MIB) as segment:
        segment.allocate(10, "prefill-0")
        segment.allocate(20, "prefill-0")
        segment.allocate(5, "decode-0")
        state = segment.snapshot()
        assert state["owners"] == {"prefill-0": 30, "decode-0": 5}
        assert (state["used_bytes"], state["free_bytes"], state["capacity_bytes"]) == (35, MIB - 35, MIB)
        assert state["path"] == str(shm / "named")
        assert int(state["session"], 16) == segment.session
    with UbSegment.create(shm / "ub", MIB) as segment:
        segment.allocate(1, "a")
        segment.check()
        with (shm / "ub").open("r+b") as file, mmap.mmap(file.fileno(), 0) as raw:
            raw[64:72] = bytes(8)  # next_generation
            with pytest.raises(UbCorruptError, match="newer than the counter"):
                segment.check()
            raw[56:64] = b"\1" * 8  # session
            with pytest.raises(UbCorruptError, match=r"header of .* was overwritten"):
                segment.check()


def test_memory_that_is_not_reserved_comes_with_the_first_write(shm: Path) -> None:
    with (
        UbSegment.create(shm / "ub", 64 * MIB, reserve=False) as segment,
        UbSegment.attach(shm / "ub") as attached,
    ):
        before = os.stat(segment.path).st_blocks * 512
        assert before < MIB
        region = segment.allocate(64 * MIB, "a")
        segment.view(region)[MIB] = 7
        assert attached.read(region.offset + MIB, 1)[0] == 7
        assert os.stat(segment.path).st_blocks * 512 < before + 8 * MIB  # one page, small or huge


def test_a_segment_that_cannot_be_mapped_is_not_left_behind(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens under a limit of addresses. Its memory would be held for as long as this process lives."""

    def no_addresses(_mapping: mmap.mmap) -> bool:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as limited:
        limited.setattr(segment_module, "populate", no_addresses)
        with pytest.raises(OSError, match="Cannot allocate memory"):
            UbSegment.create(shm / "segment", MIB)
        assert list(shm.iterdir()) == []
    with UbSegment.create(shm / "segment", MIB) as segment, monkeypatch.context() as limited:
        limited.setattr(segment_module, "populate", no_addresses)
        with pytest.raises(OSError, match="Cannot allocate memory"):
            UbSegment.attach(segment.path)
        assert list(shm.iterdir()) == [segment.path], "another one's"
