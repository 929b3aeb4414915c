"""Routing traces: written traces are read back, and placement policies are tried on them."""

import pytest

from serving.errors import PlacementError, RoutingTraceError
from serving.group.core.placement_policies import try_policies
from serving.group.core.routing_trace import TraceHead, TraceSlice, read_trace, trace_lines

HEAD = TraceHead("decode#a", 2, 3, 2.0)
SLICES = (
    TraceSlice(100.0, 0, ((1, 2, 3), (0, 0, 9))),
    TraceSlice(100.0, 1, ((10, 0, 0), (0, 0, 0))),
    TraceSlice(104.0, 0, ((5, 5, 5), (1, 1, 1))),
)


def test_what_is_written_is_read_back_and_summed_over_source_ranks() -> None:
    trace = read_trace(trace_lines(HEAD, SLICES))
    assert (trace.head, trace.slices) == (HEAD, SLICES)
    assert trace.loads() == [((11, 2, 3), (5, 5, 5)), ((0, 0, 9), (1, 1, 1))]


def test_a_last_line_that_was_cut_off_does_not_count() -> None:
    lines = list(trace_lines(HEAD, SLICES))
    lines[-1] = lines[-1][:20]
    assert read_trace(lines).slices == SLICES[:2]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "empty"),
        ([b"{}"], "line 1"),
        ([b"\xff\xfe"], "line 1"),
        ([b"[" * 100_000], "line 1"),
        ([b'{"format":"other","version":1}'], "line 1"),
        ([*trace_lines(HEAD, ()), b"nonsense", *list(trace_lines(HEAD, SLICES))[1:]], "line 2"),
        ([*trace_lines(HEAD, (TraceSlice(1.0, 0, ((1, 2, 3),)),))], "number of layers"),
        ([*trace_lines(HEAD, (TraceSlice(1.0, 0, ((1, 2, 3), (0, -1, 0))),))], "negative"),
    ],
)
def test_what_is_no_trace_is_refused(lines: list[bytes], why: str) -> None:
    with pytest.raises(RoutingTraceError, match=why):
        read_trace(lines)


def test_policies_are_tried_on_slices_that_they_were_not_planned_on() -> None:
    hot = ((80, 10, 10, 10),) * 6
    results = {one.policy: one for one in try_policies([hot, ((0,) * 4,) * 6], ranks=2, redundant=1)}
    assert results["static"].balancedness == pytest.approx((110 / 2 / 90,)), "a layer without rows is left out"
    assert results["time_sliced"].mean > 0.95
    assert results["global"].worst > 0.95


@pytest.mark.parametrize(("slices", "ranks"), [(0, 2), (1, 2), (4, 0), (4, 9)])
def test_what_cannot_be_tried_is_refused(slices: int, ranks: int) -> None:
    with pytest.raises(PlacementError):
        try_policies([((1, 1),) * slices] if slices else [], ranks, redundant=1)
    with pytest.raises(PlacementError, match="no rows"):
        try_policies([((0, 0),) * 4], 2, redundant=1)
