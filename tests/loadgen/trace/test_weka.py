"""Conversations of agents: pauses, branches and joins as they were recorded."""

from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.trace import Reading, TraceForm, TraceRecord, WekaTrace, convert, describe, open_trace
from tests.cases.traces import AGENTS, asks, conversation, mooncake, subagent, written


def read(folder: Path, text: str) -> list[TraceRecord]:
    return list(open_trace(written(folder, text)).requests())


def test_turns_wait_for_what_the_recorded_ones_waited_for(tmp_path: Path) -> None:
    records = read(tmp_path, AGENTS)
    assert [(one.session, one.branch, one.follows, one.waits_for, one.think_s) for one in records[:7]] == [
        ("a", 0, False, (), 0.0),
        ("a", 0, True, (), 3.0),
        ("a", 1, True, (), 2.0),
        ("a", 1, True, (), 6.0),
        ("a", 2, True, (1,), 10.0),
        ("a", 0, True, (1, 3, 4), 1.0),
        ("b", 0, False, (), 0.0),
    ]
    first_s = [one.arrival_s for one in records[:6]]
    assert first_s == [0, 3, 5, 11, 13, 14]  # if responses take no time, the turn after the branches waits for the last
    assert records[6].arrival_s > 0
    assert [one.stop for one in records[6:]] == ["tool_use", "end_turn"]


def test_a_response_of_unknown_duration_is_assumed_and_counted(tmp_path: Path) -> None:
    text = mooncake(conversation("a", asks(0, 64, 1000, api=None), asks(30, 64), asks(50, 64)))
    trace = open_trace(written(tmp_path, text))
    pauses = [one.think_s for one in trace.requests()]
    assert pauses == pytest.approx([0, 30 - 2.6 - 15.3, 18])
    assert trace.notes["api_time"].endswith("65 tokens/s: 1")
    assert trace.notes["starts"].startswith("no start times of conversations: 1 were drawn at 60 an hour")


def test_branches_of_branches_and_branches_without_requests(tmp_path: Path) -> None:
    inner = subagent(3, asks(0, 64, api=1.0))
    text = mooncake(conversation("a", asks(0, 64), subagent(9, asks(0, 64, api=1.0), inner), subagent(9), asks(9, 64)))
    trace = open_trace(written(tmp_path, text))
    records = list(trace.requests())
    assert [(one.branch, one.waits_for) for one in records] == [(0, ()), (1, ()), (2, ()), (0, (0, 1, 2))]
    assert trace.notes["branches"] == "subagents without a request, left out: 1"


def test_ids_of_other_conversations_differ_unless_they_are_global(tmp_path: Path) -> None:
    local = read(tmp_path, AGENTS)
    assert local[6].hash_ids == [95]
    assert local[2].hash_ids == local[4].hash_ids == [90, 91]
    shared = read(tmp_path, AGENTS.replace("local", "global"))
    assert shared[6].hash_ids == [1] == shared[0].hash_ids[:1]
    listed = asks(0, 130, hash_ids=[4, 9], runs=[])
    assert read(tmp_path, mooncake(conversation("a", listed)))[0].hash_ids == [4, 9]


def test_the_description_has_pauses_and_branches(tmp_path: Path) -> None:
    lines = describe(open_trace(written(tmp_path, AGENTS))).lines()
    assert lines[0].startswith("8 requests in 2 sessions")
    assert "2 branches that join their session; pauses of 4.5 s in the median" in " ".join(lines)


def test_a_block_size_is_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its lines say how many tokens a block has"):
        open_trace(written(tmp_path, AGENTS), Reading(block_tokens=128))


def test_our_own_format_keeps_the_branches_and_others_refuse_them(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, AGENTS))
    assert isinstance(trace, WekaTrace)
    assert convert(trace, tmp_path / "ours", TraceForm.LOADGEN) == 8
    ours = list(open_trace(tmp_path / "ours").requests())
    assert [one.waits_for for one in ours] == [one.waits_for for one in trace.requests()]
    assert [one.think_s for one in ours] == pytest.approx([one.think_s for one in trace.requests()])
    with pytest.raises(UsageError, match="no turns that wait for several others"):
        convert(trace, tmp_path / "other", TraceForm.MOONCAKE)
    assert convert(trace, tmp_path / "table", TraceForm.PLAIN) == 8


def test_the_start_times_are_the_same_in_every_pass(tmp_path: Path) -> None:
    text = mooncake(*(conversation(f"c{number}", asks(0, 64)) for number in range(2000)))
    trace = open_trace(written(tmp_path, text))
    starts = [one.arrival_s for one in trace.requests()]
    assert starts == [one.arrival_s for one in trace.requests()] == sorted(starts)
    assert starts[-1] / 1999 == pytest.approx(60, rel=0.1)
