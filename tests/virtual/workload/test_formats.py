"""Each format is recognised by its content and read as it means."""

from pathlib import Path

from loadgen.trace import open_trace
from serving.virtual.workload.open import open_workload
from serving.virtual.workload.request import TraceRequest
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
