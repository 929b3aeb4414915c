"""Mappings of servers' segments: once each, no longer than the server lives, and only the intended region."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hardware.ub.segment import UbSegment
from serving.errors import PoolUnreachableError
from serving.kvpool.live.segments import Mapped, Segments

MIB = 1 << 20


@pytest.fixture
def segment(segments: Path) -> Iterator[UbSegment]:
    """A segment of this process."""
    made = UbSegment.create(segments / "one", 8 * MIB)
    yield made
    made.remove()


def test_reads_and_writes_are_seen_by_the_owner(segment: UbSegment) -> None:
    segment.allocate(MIB, "before")
    region = segment.allocate(4 * MIB, "server")
    mapped = Segments().get(str(segment.path), region.generation)
    assert (mapped.base, len(mapped.memory)) == (region.offset, 4 * MIB)
    segment.view(region)[5000:5003] = b"abc"
    assert bytes(mapped.view(region.offset + 5000, 3)) == b"abc"
    mapped.view(region.offset + 4 * MIB - 3, 3)[:] = b"xyz"
    assert bytes(segment.view(region)[-3:]) == b"xyz"


def test_only_the_region_can_be_seen(segment: UbSegment) -> None:
    segment.allocate(MIB, "before")
    region = segment.allocate(MIB, "server")
    mapped = Segments().get(str(segment.path), region.generation)
    for offset, nbytes in ((region.offset - 1, 1), (region.offset + MIB, 1), (region.offset, MIB + 1), (-1, 10)):
        with pytest.raises(PoolUnreachableError, match="are not in"):
            mapped.view(offset, nbytes)


def test_mapped_once_until_the_region_is_another(segment: UbSegment) -> None:
    segments = Segments()
    region = segment.allocate(MIB, "server")
    first = segments.get(str(segment.path), region.generation)
    assert segments.get(str(segment.path), region.generation) is first
    segment.release(region)
    with pytest.raises(PoolUnreachableError, match="no longer exists"):
        segments.get(str(segment.path), region.generation)
    assert len(segments) == 0
    with pytest.raises(PoolUnreachableError, match="no longer a region"):
        segments.get(str(segment.path), region.generation)
    other = segment.allocate(2 * MIB, "server")
    assert len(segments.get(str(segment.path), other.generation).memory) == 2 * MIB
    again = segment.allocate(MIB, "server")
    assert segments.get(str(segment.path), again.generation).generation == again.generation
    assert len(segments) == 1


def test_what_is_no_segment_cannot_be_mapped(segments: Path) -> None:
    with pytest.raises(PoolUnreachableError, match="no UB segment"):
        Segments().get(str(segments / "absent"), 1)
    half = segments / "half"
    half.touch()
    with pytest.raises(PoolUnreachableError, match="does not exist yet"):
        Segments().get(str(half), 1)
    half.write_bytes(b"something else" * 1000)
    with pytest.raises(PoolUnreachableError, match="no UB segment"):
        Segments().get(str(half), 1)


def test_kept_and_dropped(segment: UbSegment) -> None:
    segments = Segments()
    region = segment.allocate(MIB, "server")
    mapped = segments.get(str(segment.path), region.generation)
    segments.keep({str(segment.path), "another"})
    segments.drop_dead()
    assert len(segments) == 1, "its owner, this process, lives"
    segments.keep({"another"})
    assert len(segments) == 0
    mapped.memory[:3] = b"abc"  # a process that still maps it has valid memory
    assert bytes(segment.view(region)[:3]) == b"abc"


def test_a_dead_owners_segment_is_dropped(segments: Path) -> None:
    path = segments / "theirs"
    program = (
        "import sys; from hardware.ub.segment import UbSegment\n"
        f"s = UbSegment.create({str(path)!r}, {MIB}); r = s.allocate({MIB}, 'server')\n"
        "print(r.generation, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        mapped = Segments()
        mapped.get(str(path), int(child.stdout.readline()))
        mapped.drop_dead()
        assert len(mapped) == 1
        child.kill()
        child.wait()
    mapped.drop_dead()
    assert len(mapped) == 0


@pytest.mark.real_time
def test_mapping_a_large_segment_holds_nobody_up(segments: Path) -> None:
    with UbSegment.create(segments / "large", 256 * MIB) as large:
        region = large.allocate(256 * MIB, "server")
        shared = Segments()
        got: list[Mapped] = []
        threads = [
            threading.Thread(target=lambda: got.append(shared.get(str(large.path), region.generation)))
            for _ in range(3)
        ]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - start < 0.5
        assert len({id(mapped) for mapped in got}) == 1
        touched = [thread for thread in threading.enumerate() if thread.name == "kvpool-touch"]
        for thread in touched:
            thread.join(10)
        assert np.frombuffer(got[0].memory, np.uint8)[:: 64 << 10].sum() == 0
        large.remove()
