"""Each format is recognised by its content and parsed correctly."""

from pathlib import Path

import pytest

from loadgen.trace import open_trace
from serving.errors import ConfigError
from serving.virtual.workload.columns import TraceError, TraceRequest
from serving.virtual.workload.open import open_workload
from tests.cases.traces import CHAT, line, mooncake, written
from tests.virtual.workload.traces import listed


def test_mooncake(tmp_path: Path) -> None:
    workload = open_workload(written(tmp_path, CHAT, "chat.jsonl"))
    assert listed(workload) == [
        TraceRequest(0.0, 1300, 5, (0, 1, 2)),
        TraceRequest(1.0, 1024, 6, (0, 3)),
        TraceRequest(1.0, 100, 7, ()),
        TraceRequest(2.5, 2000, 8, (0, 1, 4, 5)),
    ]
    assert (workload.name, workload.count, workload.duration_s, workload.block_tokens) == ("chat.jsonl", 4, 2.5, 512)
    workload = open_workload(written(tmp_path, mooncake(line(0, 1300, ids=(7, 8)))))
    assert listed(workload)[0].blocks == (7, 8)
    text = b"\xef\xbb\xbf\n" + CHAT.encode().replace(b"\n", b"\n\n")
    assert len(listed(open_workload(written(tmp_path, text)))) == 4
    trace = open_trace(written(tmp_path, CHAT))
    assert list(trace.requests()) == list(trace.requests())


def test_sessions_in_a_mooncake_trace_wait_for_answers_and_pauses(tmp_path: Path) -> None:
    text = mooncake(
        line(0, 100, 20, session_id="a"),
        {"input_length": 150, "output_length": 30, "session_id": "a", "delay": 2000},
        line(1000, 200, 5, session_id="b"),
        {"input_length": 260, "output_length": 5, "session_id": "a", "delay": 500},
        line(4000, 300, 5),
    )
    path = written(tmp_path, text)
    at_once = [(r.arrival_s, r.prompt_tokens) for r in open_workload(path).requests]
    assert at_once == [(0.0, 100), (1.0, 200), (2.0, 150), (2.5, 260), (4.0, 300)]
    slow = [(r.arrival_s, r.prompt_tokens) for r in open_workload(path, token_s=0.1).requests]
    assert slow == [(0.0, 100), (1.0, 200), (4.0, 150), (4.0, 300), (7.5, 260)]


NAMED = "when,asked,given"
"""Names in the order of the keys."""


def test_any_csv_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "when,who,asked,given\n2024-05-10 00:00:01,a,300,5\n2024-05-10 00:00:02.5,b,400,6\n")
    with pytest.raises(TraceError, match=r"the first line is of no known trace format.*--columns timestamp=NAME"):
        open_workload(path)
    for columns in ("timestamp=when,input=asked,output=given", "output=given, timestamp = when, input=asked", NAMED):
        read = listed(open_workload(path, columns=columns))
        assert [(one.arrival_s, one.prompt_tokens, one.output_tokens) for one in read] == [(0, 300, 5), (1.5, 400, 6)]
    with pytest.raises(TraceError, match="no column length; there are when, who, asked, given"):
        listed(open_workload(path, columns="timestamp=when,input=length,output=given"))
    for columns, told in {
        "timestamp=when,input=asked": "no column for output",
        "timestamp=when,more": "'more' is none of timestamp, input, output and unit",
        "when,,given": "no column for input",
        "input=asked,output=given,unit=ms": "no column for timestamp",
        "timestamp=when,input=asked,output=asked": "one column cannot be two of them",
        "timestamp=when,input=asked,input=given": "input is given twice",
        "time=when,input=asked,output=given": "'time' is none of timestamp, input, output and unit",
        "timestamp=when,input=asked,output=given,unit=min": "'min' is no unit of times, which are s, ms, us, ns",
    }.items():
        with pytest.raises(ConfigError, match=f"{told}.*; write timestamp=NAME,input=NAME,output=NAME"):
            open_workload(path, columns=columns)
    with pytest.raises(ConfigError, match="only CSV has columns to name"):
        open_workload(written(tmp_path, CHAT), columns="when,asked,given")


def test_columns_that_are_named_count_seconds_and_mooncakes_names_milliseconds(tmp_path: Path) -> None:
    names = "timestamp,input_length,output_length"
    path = written(tmp_path, f"{names}\n0,9,4\n3.5,9,4\n")
    in_ms, in_s = open_workload(path), open_workload(path, columns=names)
    in_us = open_workload(path, columns="timestamp=timestamp,input=input_length,output=output_length,unit=us")
    assert (in_ms.duration_s, in_s.duration_s, in_us.duration_s) == (0.0035, 3.5, 3.5e-6)
    assert "timestamp counts milliseconds" in in_ms.notes["columns"]
    assert "columns" not in in_s.notes
