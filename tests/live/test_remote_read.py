"""How another node's extents are cut into chunks. The reading itself is tested on two real nodes, in `tests/e2e`."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from hardware.ub.segment import UbSegment
from serving.errors import HandoffError, HandoffExpiredError, HandoffTimeoutError
from serving.ids import NodeId
from serving.instance.live import remote_read

EXTENTS = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 100)), max_size=30)


@given(extents=EXTENTS, limit=st.integers(1, 150))
def test_chunks_are_bounded_and_lose_nothing(extents: list[tuple[int, int]], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_read, "CHUNK_BYTES", limit)
        chunks = list(remote_read._chunks(extents))
    assert [extent for chunk in chunks for extent in chunk] == extents
    assert all(chunks), "no empty chunk"
    for chunk in chunks:
        assert len(chunk) == 1 or sum(size for _, size in chunk) <= limit
    for chunk, following in pairwise(chunks):
        assert sum(size for _, size in chunk) + following[0][1] > limit, "no chunk is shorter than it must be"


def test_a_block_larger_than_a_chunk_travels_alone() -> None:
    big = remote_read.CHUNK_BYTES + 1
    assert list(remote_read._chunks([(0, 10), (10, big), (20, 10)])) == [[(0, 10)], [(10, big)], [(20, 10)]]


def test_memory_of_instances_that_are_gone_is_let_go(tmp_path: Path) -> None:
    actor: Any = remote_read.SegmentReader
    reader = actor.__ray_metadata__.modified_class()
    owner = "from hardware.ub.segment import UbSegment; "
    owner += f"UbSegment.create({str(tmp_path / 'gone')!r}, 1 << 20); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with UbSegment.create(tmp_path / "here", 1 << 20, max_regions=1) as here:
        region = here.allocate(64, owner="prefill")
        process.stdout.readline()
        reader._segments.get(tmp_path / "gone")
        process.communicate("\n")
        assert reader.read(str(here.path), [(region.offset, 64)], region.generation).nbytes == 64
        assert len(reader._segments) == 1
        reader._segments.close()
        here.release(region)


class Reader:
    """A reader actor whose answers never come, or whose node is gone."""

    def __init__(self, error: Exception) -> None:
        self.read = self
        self._error = error

    def remote(self, *_: object) -> object:
        """A reference."""
        return self._error


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ray.exceptions.GetTimeoutError("late"), HandoffTimeoutError),
        (ray.exceptions.ActorDiedError(), HandoffError),
        (ValueError("no such node"), HandoffError),
        (ray.exceptions.RayTaskError("read", "traceback", OSError("no file")), HandoffExpiredError),
    ],
)
def test_what_ray_raises_is_told_in_our_words(
    raised: Exception, told: type[HandoffError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(ref: Exception, timeout: float) -> None:
        raise ref

    monkeypatch.setattr(remote_read, "_reader", lambda node: Reader(raised))
    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(HandoffError) as caught:
        list(remote_read.read_remote(NodeId("node"), "/segment", [(0, 10)], 1))
    assert type(caught.value) is told
