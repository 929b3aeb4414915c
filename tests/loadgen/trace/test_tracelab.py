"""Sessions of agents without hashes: pauses from events, prefixes from the order of calls."""

from itertools import pairwise
from pathlib import Path

import pytest

from loadgen.trace import Reading, TraceForm, TraceRecord, convert, describe, open_trace
from tests.cases.traces import TRACELAB, TRACELAB_CSV, written


def read(folder: Path, text: str, block_tokens: int | None = None) -> list[TraceRecord]:
    return list(open_trace(written(folder, text), Reading(block_tokens=block_tokens)).requests())


def shared(records: list[TraceRecord]) -> list[int]:
    """Leading blocks that each prompt has in common with the one in front of it."""
    return [sum(a == b for a, b in zip(one.hash_ids, other.hash_ids, strict=False)) for one, other in pairwise(records)]


def test_calls_in_order_with_their_pauses(tmp_path: Path) -> None:
    records = read(tmp_path, TRACELAB)
    assert [(one.session, one.follows, one.think_s, one.arrival_s) for one in records] == [
        ("p/a", False, 0, 0),
        ("p/a", True, 10, 10),
        ("p/a", True, 20, 30),
        ("p/a", True, 0, 30),  # it began while the one before was still written
        ("p/a", True, 0, 30),
        ("p/b", False, 0, 60),
    ]
    assert [one.input_tokens for one in records] == [192, 256, 256, 192, 640, 128]
    assert [one.stop for one in records[:3]] == ["end_turn", "tool_use", "tool_use"]
    assert not any(one.waits_for or one.branch for one in records)


def test_prefixes_follow_from_the_order(tmp_path: Path) -> None:
    records = read(tmp_path, TRACELAB)
    assert [len(one.hash_ids) for one in records] == [3, 4, 4, 3, 10, 2]
    assert shared(records) == [3, 4, 2, 3, 0]
    small = read(tmp_path, TRACELAB, 16)
    assert shared(small) == [12, 16, 8, 12, 0]


def test_a_csv_has_pauses_in_place_of_events(tmp_path: Path) -> None:
    records = read(tmp_path, TRACELAB_CSV)
    assert [(one.session, one.arrival_s, one.input_tokens) for one in records] == [
        ("3", 0, 64),
        ("7", 0.5, 200),
        ("7", pytest.approx(0.8), 300),
    ]
    assert records[2].think_s == 0.3
    assert (len(records[1].hash_ids), shared(records)) == (3, [0, 3])
    renamed = TRACELAB_CSV.replace("session_id,arrival_time", "id,unused")  # the other form of its header
    assert [one.session for one in read(tmp_path, renamed)] == ["7", "7", "3"]


def test_a_session_without_events_after_the_first_waits_for_its_tools(tmp_path: Path) -> None:
    lines = TRACELAB.splitlines(keepends=True)
    second = lines[3].replace("timing_events", "unused")
    assert [one.think_s for one in read(tmp_path, lines[1] + second + lines[2])] == [0, 0, 9]


def test_the_assumption_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, TRACELAB)
    lines = describe(open_trace(path)).lines()
    assert lines[0].startswith("6 requests in 2 sessions")
    assert lines[-1].startswith("no hashes of prompts: a prompt is taken to repeat the one before it")
    assert convert(open_trace(path), tmp_path / "ours", TraceForm.LOADGEN) == 6
