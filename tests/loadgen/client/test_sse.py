from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.sse import SseSplitter


def split(*portions: bytes) -> list[bytes]:
    splitter = SseSplitter()
    found = [data for portion in portions for data in splitter.feed(portion)]
    return found + splitter.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_in_three_ways(end: bytes) -> None:
    lines = [b"data: one", b"", b"data: two", b"data:three", b""]
    assert split(b"".join(line + end for line in lines)) == [b"one", b"two\nthree"]


def test_comments_and_other_fields_carry_nothing() -> None:
    stream = b": keep-alive\n\nevent: message\nid: 4\nretry: 10\ndata: x\n\nnonsense\n\n:\n\n"
    assert split(stream) == [b"x"]


def test_only_one_space_after_the_colon_is_taken_away() -> None:
    assert split(b"data:  x\n\ndata:y\n\ndata\n\ndata:\n\n") == [b" x", b"y", b"", b""]


def test_a_byte_order_mark_at_the_start_is_dropped() -> None:
    assert split(b"\xef\xbb\xbfdata: x\n\ndata: \xef\xbb\xbfy\n\n") == [b"x", b"\xef\xbb\xbfy"]


def test_an_event_comes_out_with_its_empty_line_and_not_before() -> None:
    splitter = SseSplitter()
    found = [(splitter.feed(portion), splitter.idle) for portion in (b"data: x\n", b"\n", b"dat")]
    assert found == [([], False), ([b"x"], True), ([], False)]
    assert SseSplitter().idle


def test_the_empty_line_may_be_missing_at_the_end() -> None:
    assert split(b"data: x\n\ndata: [DONE]") == [b"x", b"[DONE]"]
    assert split(b"data: x\n\ndata: [DONE]\n") == [b"x", b"[DONE]"]


_LINES = st.sampled_from([b"data: {}", b"data:a b", b"data", b"", b": note", b"event: e", "data: äß€".encode(), b"x"])


@given(
    lines=st.lists(st.tuples(_LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12),
    cuts=st.lists(st.integers(0, 120), max_size=12),
)
def test_any_cutting_gives_the_same_events(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    portions = [stream[a:b] for a, b in pairwise(edges)]
    assert split(*portions) == split(stream)
    assert split(*(stream[i : i + 1] for i in range(len(stream)))) == split(stream)
