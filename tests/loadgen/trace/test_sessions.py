"""Requests are held back only where others may follow them, and ascend in time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.errors import TraceFormatError
from loadgen.trace import in_sessions, open_trace
from loadgen.trace.times import TraceTimes
from tests.cases.traces import line, mooncake, recorded, written


def groups(path: Path) -> Iterator[list[int]]:
    """Prompt lengths of each conversation."""
    return ([one.input_tokens for one in requests] for requests in in_sessions(open_trace(path)))


def test_requests_that_stand_alone_come_at_once(tmp_path: Path) -> None:
    found = groups(written(tmp_path, mooncake(line(0, 1), line(1, 2)) + "broken"))
    assert [next(found), next(found)] == [[1], [2]]
    with pytest.raises(TraceFormatError):
        next(found)


def test_sessions_that_stand_together_come_when_the_next_begins(tmp_path: Path) -> None:
    first, later, other = line(0, 1, session=0), line(5, 2, session=0, turn=1), line(1, 3, session=1)
    found = groups(written(tmp_path, recorded(first, later, other, requests=9)))
    assert next(found) == [1, 2]
    with pytest.raises(TraceFormatError, match="says 9 requests"):
        next(found)


def test_sessions_that_lie_between_others_keep_the_order_of_their_beginnings(tmp_path: Path) -> None:
    text = mooncake(
        line(0, 1),
        line(1, 2, session_id="a"),
        line(2, 3, session_id="b"),
        {"input_length": 4, "output_length": 1, "session_id": "a"},
        line(3, 5),
        {"input_length": 6, "output_length": 1, "session_id": "b"},
        line(4, 7, session_id="a"),  # at a time of its own: it waits for nobody
        {"input_length": 8, "output_length": 1, "session_id": "a"},
    )
    assert list(groups(written(tmp_path, text))) == [[1], [2, 4], [3, 6], [5], [7, 8]]


def test_offsets_within_a_day_are_taken_as_they_stand(tmp_path: Path) -> None:
    notes: dict[str, str] = {}
    clock = TraceTimes(tmp_path, notes, per_s=1000.0)
    assert [clock.seconds(number, at) for number, at in enumerate([86_399_999.0, 86_400_000.5])] == [
        86_399_999.0 / 1000,
        86_400_000.5 / 1000,
    ]
    assert notes == {}


@pytest.mark.parametrize(
    ("per_s", "first", "second", "gap_s"),
    [(1.0, 1.7e9, 1.7e9 + 2, 2), (1.0, 1.7e12, 1.7e12 + 2000, 2), (1000.0, 1.7e12, 1.7e12 + 2000, 2),
     (1000.0, 1.7e15, 1.7e15 + 2e6, 2), (1.0, 1.7e18, 1.7e18 + 2**31, 2**31 / 1e9), (1.0, 90_000.0, 90_002.0, 2)],
)  # fmt: skip
def test_times_of_another_zero_count_from_the_first(
    tmp_path: Path, per_s: float, first: float, second: float, gap_s: float
) -> None:
    notes: dict[str, str] = {}
    clock = TraceTimes(tmp_path, notes, per_s=per_s)
    assert clock.seconds(1, first) == 0.0
    assert clock.seconds(2, second) == pytest.approx(gap_s, abs=1e-6)
    assert "count from" in notes["times"]
