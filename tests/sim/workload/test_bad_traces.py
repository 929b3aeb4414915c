"""Every bad trace gives one line that names the file, the line, and what to do."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConfigError
from serving.sim.workload.columns import BATCH
from serving.sim.workload.errors import TraceError
from serving.sim.workload.mooncake import MooncakeTrace
from serving.sim.workload.open import open_workload
from serving.sim.workload.tables import AZURE as TABLE
from serving.sim.workload.tables import TableTrace
from tests.sim.workload.traces import CHAT, line, listed, mooncake, written

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"


def recorded(*lines: dict[str, Any], **header: Any) -> str:
    """A load generator's trace."""
    fields = {"schema": "loadgen-trace/1", "block_tokens": 16, "requests": len(lines)} | header
    return json.dumps(fields) + "\n" + mooncake(*lines)


BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "no request in it"),
    "blank": ("\n \n", "no request in it"),
    "text": ("hello\n", ":1: the first line tells of no trace that is known; known are Mooncake"),
    "binary": (b"\xff\xfe\x00\x01\n", ":1: the first line tells of no trace"),
    "lengths alone": ("num_prefill_tokens,num_decode_tokens\n1,2\n", ":1: the first line tells of no trace"),
    "JSON array": ("[1, 2]\n", ":1: the first line tells of no trace"),
    "another JSON": ('{"a": 1}\n', ":1: JSON without input_length"),
    "broken JSON": ('{"timestamp": 0, "input\n', ":1: not JSON"),
    "broken later": (CHAT + '{"timestamp": 0,\n', ":5: not JSON"),
    "not UTF-8": (CHAT.encode() + b'{"timestamp": 3000, "\xff": 0}\n', ":5: not"),
    "no output_length": (CHAT + '{"timestamp": 3000, "input_length": 1}\n', ":5: not a request .*output_length"),
    "text for a number": (CHAT + '{"timestamp": 3000, "input_length": "1", "output_length": 1}\n', ":5: not a request"),
    "unsorted": (CHAT + mooncake(line(2000, 9)), r":5: arrives at 2 s, after a line that arrives at 2\.5 s; sort"),
    "negative time": (mooncake(line(-1, 9)), r":1: an arrival at -0\.001 s"),
    "zero prompt": (mooncake(line(0, 0)), ":1: a prompt of 0 tokens; lengths are at least 1"),
    "negative prompt": (mooncake(line(0, -5)), ":1: a prompt of -5 tokens"),
    "endless prompt": (mooncake(line(0, 1 << 50)), ":1: a prompt of"),
    "zero answer": (mooncake(line(0, 9, 0)), ":1: an answer of 0 tokens; lengths are at least 1"),
    "too few ids": (mooncake(line(0, 1600, ids=(1, 2))), ":1: 2 hash_ids for 1600 tokens; .* make it 4"),
    "blocks of 16 tokens": (
        mooncake(line(0, 1600, ids=tuple(range(100)))),
        ":1: 100 hash_ids for 1600 tokens; .* blocks of 16 tokens: .* keep one id in 32, ",
    ),
    "too many ids": (mooncake(line(0, 1024, ids=(1, 2, 3))), ":1: 3 hash_ids for 1024 tokens; .* make it 2"),
    "negative id": (mooncake(line(0, 9, ids=(-1,))), ":1: hash_ids must lie between"),
    "huge id": (mooncake(line(0, 9, ids=(2**63,))), ":1: hash_ids must lie between"),
    "turn of nothing": (CHAT + '{"input_length": 1, "output_length": 1, "session_id": "x"}\n', ":5: no timestamp, and"),
    "turn of nobody": (CHAT + '{"input_length": 1, "output_length": 1}\n', ":5: no timestamp, and no turn"),
    "negative pause": (
        mooncake(line(0, 9, session_id=1), {"input_length": 1, "output_length": 1, "session_id": 1, "delay": -1}),
        ":2: a delay of -1 ms",
    ),
    "missing column": ("TIMESTAMP,ContextTokens\n", ":1: no column GeneratedTokens; the first line names TIMESTAMP"),
    "two columns missing": ("output_tokens\n1\n", ":1: no column arrival_s, prompt_tokens;"),
    "header alone": (AZURE, "no request in it"),
    "short row": (PLAIN + "0,1\n", ":2: not a line of arrival_s,prompt_tokens,output_tokens"),
    "no time": (AZURE + "yesterday,1,2\n", ":2: not a line of TIMESTAMP"),
    "no number": (PLAIN + "0,1,2\n1,x,2\n", ":3: not a line of"),
    "not a time": (PLAIN + "nan,1,2\n", ":2: an arrival at nan s"),
    "endless time": (PLAIN + "inf,1,2\n", ":2: an arrival at inf s"),
    "unsorted table": (PLAIN + "1,1,2\n0.5,1,2\n", r":3: arrives at 0\.5 s"),
    "unsorted Azure": (
        AZURE + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:45,1,2\n",
        ":3: an arrival at -1 s",
    ),
    "zero in a table": (PLAIN + "0,0,2\n", ":2: a prompt of 0 tokens"),
    "table not UTF-8": (PLAIN.encode() + b"0,1,\xff\n", ": not text in UTF-8"),
    "no CSV": (PLAIN + "0,1,2\n" + "x" * 200_000 + "\n", ":3: not CSV"),
    "other schema": (
        '{"schema": "loadgen-trace/9", "block_tokens": 1, "requests": 0}\n',
        ":1: schema 'loadgen-trace/9'",
    ),
    "no header": ('{"schema": "loadgen-trace/1"}\n', ":1: not the header .*block_tokens"),
    "no block": (recorded(block_tokens=0), ":1: block_tokens must be above 0"),
    "nothing recorded": (recorded(), "no request in it"),
    "cut off": (recorded(line(0, 9, session=0, turn=0), requests=2), "the header says 2 requests, there are 1"),
    "turn too late": (recorded(line(0, 9, session=0, turn=1)), ":2: turn 1 of session 0 where turn 0 belongs"),
    "turn missing": (
        recorded(line(0, 9, session=0, turn=0), line(0, 9, session=0, turn=2)),
        ":3: turn 2 of session 0 where turn 1 belongs",
    ),
    "turn before its session": (
        recorded(line(5000, 9, session=0, turn=0), line(4000, 9, session=0, turn=1)),
        ":3: arrives at 4 s",
    ),
    "sessions unsorted": (
        recorded(line(5000, 9, session=0, turn=0), line(4000, 9, session=1, turn=0)),
        ":3: arrives at 4 s",
    ),
    "recorded without prompt": (recorded(line(0, 0, session=0, turn=0)), ":2: a prompt of 0 tokens"),
    "recorded without session": (recorded(line(0, 9)), ":2: not a request .*session"),
    "recorded with bad ids": (recorded(line(0, 9, ids=(-4,), session=0, turn=0)), ":2: hash_ids must"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace_gives_one_line(tmp_path: Path, name: str) -> None:
    text, problem = BAD[name]
    path = written(tmp_path, text)
    with pytest.raises(TraceError, match=re.escape(str(path)) + ".*" + problem) as caught:
        open_workload(path)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ConfigError)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot be read \(No such file.*check the path"):
        open_workload(tmp_path / "nothing.jsonl")


def test_a_folder_that_is_no_servegen_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a folder without chunk-N-trace\.csv"):
        open_workload(tmp_path)


def test_a_reader_of_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request in it"):
        list(MooncakeTrace(written(tmp_path, "")).batches())


def test_a_file_that_goes_away_between_passes(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN + "0,1,2\n")
    workload = open_workload(path, kept_bytes=0)
    path.unlink()
    with pytest.raises(TraceError, match="cannot be read"):
        listed(workload)


def test_a_large_trace_is_checked_as_it_is_read(tmp_path: Path) -> None:
    good = BATCH + 10
    path = written(tmp_path, mooncake(*(line(at, 9) for at in range(good)), line(0, 9)))
    with pytest.raises(TraceError, match=f":{good + 1}: arrives"):
        open_workload(path)
    requests = iter(open_workload(path, kept_bytes=0).requests)
    for _ in range(BATCH):
        next(requests)
    with pytest.raises(TraceError, match=f":{good + 1}: arrives"):
        list(requests)


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_a_stretch_without_requests(tmp_path: Path, kept_bytes: int) -> None:
    with pytest.raises(TraceError, match="no request arrives from 5 s to 7 s; choose another"):
        listed(open_workload(written(tmp_path, CHAT), start_s=5, duration_s=2, kept_bytes=kept_bytes))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"rate": 0}, "factor of rate is 0"),
        ({"rate": float("nan")}, "factor of rate"),
        ({"length": -1}, "factor of prompt length is -1"),
        ({"output_length": float("inf")}, "factor of output length"),
        ({"length": 0.0005}, "leave nothing of the trace's blocks of 512 tokens; take at least"),
        ({"limit": 0}, "limit 0"),
        ({"repeat": 0}, "repeat 0"),
        ({"start_s": -1}, "from -1 s"),
        ({"start_s": 1, "duration_s": 0}, "from 1 s to 1 s is no stretch"),
        ({"shard": (2, 2)}, "shard 2 of 2"),
        ({"shard": (0, 0)}, "shard 0 of 0"),
        ({"token_s": -0.1}, "answers of -0.1 s"),
        ({"clients": (1,)}, "only ServeGen folders have clients"),
    ],
)
def test_arguments_that_cannot_be(tmp_path: Path, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_workload(written(tmp_path, CHAT), **arguments)


@pytest.mark.timeout(20)
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    """A pipe without a writer never ends."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(TraceError, match="not a regular file"):
            open_workload(path)
        with pytest.raises(TraceError, match="not a regular file"):
            list(TableTrace(path, TABLE).batches())
