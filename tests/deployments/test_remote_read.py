"""How another node's extents are cut into chunks. The reading itself is tested on two real nodes, in `tests/e2e`."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.deployments import remote_read

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
